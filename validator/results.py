"""Storage of measured runs: where they are kept, which can be reused, and which there are."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError, RunError
from scaleproof.simulator.run.files import load_run, save
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.job import needed_nodes
from scaleproof.validator.record.assemble import assemble, finished_steps
from scaleproof.validator.record.provenance import warned

# Errors that reading truncated or foreign files can raise.
_UNREADABLE: Final = (
    OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

# Frameworks that measured ranks use, or that stand for no framework.
_MEASURED_AS: Final = ("gloo-cpu", "ideal")
_PYTORCH: Final = "pytorch-"


def folder_of(out: Path, scenario: Scenario) -> Path:
    """The folder of a scenario's measured run."""
    return out / scenario.name / "measured"


def digest(scenario: Scenario) -> str:
    """A hash of the scenario, equal for scenarios that train identically.

    Descriptions do not count, nor frameworks unless compute is emulated, whose durations depend on them.
    """
    left_out: dict[str, Any] = {"description": True, "convergence": True, "cluster": {"description", "framework"}}
    if scenario.compute == "real":
        left_out["framework"] = True
    plain = scenario.model_dump_json(exclude=left_out)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def stamped(run: Run, scenario: Scenario, on: str) -> Run:
    """The run with its place, scenario digest and warnings as provenance; with host and date if ranks did not give them."""
    here = {"host": socket.gethostname(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    warnings = [*run.warnings, _network_warning(scenario, on), _framework_warning(scenario)]
    entries = {"on": on, "scenario_digest": digest(scenario)} | warned(warnings)
    return replace(run, provenance=here | dict(run.provenance) | entries)


def _network_warning(scenario: Scenario, on: str) -> str:
    """A warning where ranks of several nodes emulate compute but communicate within this machine; else empty."""
    nodes = needed_nodes(scenario)
    if on != "local" or scenario.compute != "paced" or nodes == 1:
        return ""
    return f"{nodes} nodes communicate through this machine's memory, not the scenario's network; --on netlab builds it"


def _framework_warning(scenario: Scenario) -> str:
    """A warning where ranks do not train with the scenario's framework; else empty."""
    name = scenario.framework.name
    if scenario.framework_is_default or name in _MEASURED_AS or name.startswith(_PYTORCH) or scenario.compute == "paced":
        return ""
    return f"ranks train with PyTorch, not with {name}, which decides only the strategy fields that the scenario leaves out"


def is_right(run: Run) -> bool | None:
    """Whether the trained parameters are those of reference training in one process; None if not verified, or undecided."""
    return run.verified.is_right if run.verified is not None and run.verified.is_decided else None


def find(folder: Path, scenario: Scenario, on: str, verify: bool) -> Run | None:
    """The complete run of this scenario in `folder`, measured on `on`, and verified if requested; None if absent."""
    try:
        run = load_run(folder)
        same = (run.provenance.get("scenario_digest"), run.provenance.get("on")) == (digest(scenario), on)
        return run if same and "partial" not in run.provenance and (is_right(run) or not verify) else None
    except _UNREADABLE:
        return None


def prepare(out: Path) -> None:
    """Creates the folder. Raises InputError where it cannot be written to."""
    probe = out / f".scaleproof-{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}; choose a folder that can be written") from None


def keep(run: Run, scenario: Scenario, folder: Path) -> None:
    """Writes the run into its folder, and the scenario into the parent folder.

    Raises RunError where that fails; the run may then be kept without its spans.
    """
    try:
        dump.keep(scenario, folder.parent)
        save(run, folder)
    except OSError as error:
        kept = "; all but its spans is kept" if _kept_without_spans(run, folder) else ""
        raise RunError(f"{folder}: {error.strerror}{kept}; make room, or choose another --out") from None


def _kept_without_spans(run: Run, folder: Path) -> bool:
    """Writes the run without its spans, which are most of its bytes; returns whether that succeeded."""
    if run.spans is None:
        return False
    provenance = {**run.provenance, "partial": "without spans"}
    try:
        save(replace(run, spans=None, provenance=provenance), folder)
        # spans of a previous run in this folder
        (folder / "spans.npz").unlink(missing_ok=True)
    except OSError:
        return False
    return True


def keep_finished(scenario: Scenario, on: str, recorded: Sequence[bytes], logs: Sequence[Path], folder: Path | None) -> str:
    """Saves the steps that all ranks finished in a failed run, and the output of ranks; returns a text for the error message.

    recorded: the spans of each rank so far, in rank order.
    """
    if folder is None:
        return ""
    steps = finished_steps(recorded)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        dump.keep(scenario, folder.parent)
        for log in logs:
            if log.exists() and log.stat().st_size:
                shutil.copyfile(log, folder / log.name)
        if steps >= 1:
            partial = assemble(scenario, recorded, steps)
            provenance = {"partial": f"{steps} of {scenario.steps} steps"}
            # clocks are aligned only at the end of a run
            provenance |= {"clocks": "not aligned"} if on == "cluster" else {}
            partial = replace(partial, provenance=provenance)
            save(stamped(partial, scenario, on), folder)
    except OSError as error:
        return f"; what was measured could not be kept in {folder}: {error.strerror}"
    return f"; measurements up to step {steps} are kept in {folder}" if steps >= 1 else "; no step was finished"


@dataclass(frozen=True)
class KeptRun:
    """A run in a folder. run: None if it cannot be read, for the reason in `problem`."""

    folder: Path
    run: Run | None
    problem: str = ""


def listed(folder: Path) -> Iterator[KeptRun]:
    """The measured runs below `folder`, sorted by path. Raises InputError where there is no such folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give one that measure or reconcile wrote with --out")
    for file in sorted(folder.rglob("run.json")):
        try:
            run = load_run(file.parent)
            _check(run)
        except _UNREADABLE as error:
            yield KeptRun(file.parent, None, _reason(error))
            continue
        if run.origin == "measured":
            yield KeptRun(file.parent, run)


def _check(run: Run) -> None:
    """Raises ValueError or TypeError for values that JSON allows but a run cannot have."""
    numbers: list[Any] = [run.ranks, run.step_time_s, *run.step_times_s]
    if run.step_time_interval_s is not None:
        low_s, high_s = run.step_time_interval_s
        numbers += [low_s, high_s]
    texts = [run.origin, run.scenario, run.strategy, *run.provenance.values()]
    if not all(isinstance(number, int | float) for number in numbers) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it has values of wrong types")


def _reason(error: BaseException) -> str:
    """A short reason from an error."""
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]}"
    lines = (getattr(error, "strerror", None) or str(error)).strip().splitlines() or [type(error).__name__]
    return lines[0]
