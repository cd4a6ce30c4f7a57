"""Results: where measured runs are kept, which of them need not be measured again, and what is there."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError, RunError
from scaleproof.simulator.run.run import Run, load_run, save
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.hosts import needed_nodes
from scaleproof.validator.record.assemble import assemble, finished_steps
from scaleproof.validator.record.provenance import warned

# What reading files that others may have cut short or written can raise.
_UNREADABLE: Final = (
    OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

# Frameworks that ranks do train with, or that stand for none.
_MEASURED_AS: Final = ("gloo-cpu", "ideal")
_PYTORCH: Final = "pytorch-"


def folder_of(out: Path, scenario: Scenario) -> Path:
    """Where the measured run of a scenario is kept."""
    return out / scenario.name / "measured"


def digest(scenario: Scenario) -> str:
    """The same for scenarios that train identically: descriptions do not count, nor frameworks unless ranks wait for as long as
    these are predicted to compute."""
    left_out: dict[str, Any] = {"description": True, "convergence": True, "cluster": {"description", "framework"}}
    if scenario.compute == "real":
        left_out["framework"] = True
    plain = scenario.model_dump_json(exclude=left_out)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def stamped(run: Run, scenario: Scenario, on: str) -> Run:
    """The run with where it was measured, and of what; with host and date where ranks did not tell them."""
    here = {"host": socket.gethostname(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    told = {"on": on, "scenario_digest": digest(scenario)} | warned(
        [*run.warnings, _not_the_network(scenario, on), _not_the_framework(scenario)]
    )
    return replace(run, provenance=here | dict(run.provenance) | told)


def _not_the_network(scenario: Scenario, on: str) -> str:
    """A warning where ranks of several nodes wait as if they were there and talk as if they were not."""
    nodes = needed_nodes(scenario)
    if on != "local" or scenario.compute != "paced" or nodes == 1:
        return ""
    return f"{nodes} nodes talk through this machine's memory, not over the scenario's network; --on netlab lays it"


def _not_the_framework(scenario: Scenario) -> str:
    """A warning where the scenario names a framework that is not what ranks train with."""
    name = scenario.framework.name
    if scenario.framework_is_default or name in _MEASURED_AS or name.startswith(_PYTORCH) or scenario.compute == "paced":
        return ""
    return f"ranks train with PyTorch, not with {name}, which decides only the strategy fields that the scenario leaves out"


def is_right(run: Run) -> bool | None:
    """Whether the parameters that it came to are those of one process; None where that was not asked."""
    return None if run.verified is None else bool(run.verified["deviation"] <= run.verified["tolerance"])


def find(folder: Path, scenario: Scenario, on: str, verify: bool) -> Run | None:
    """The complete run of this very scenario that is kept in `folder`, if there is one: measured there, and found right where
    that is asked for."""
    try:
        run = load_run(folder)
        same = (run.provenance.get("scenario_digest"), run.provenance.get("on")) == (digest(scenario), on)
        return run if same and "partial" not in run.provenance and (is_right(run) or not verify) else None
    except _UNREADABLE:
        return None


def prepare(out: Path) -> None:
    """Makes the folder, and raises InputError where nothing can be written to it."""
    probe = out / f".scaleproof-{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}; choose a folder that can be written") from None


def keep(run: Run, scenario: Scenario, folder: Path) -> None:
    """Writes the run into its folder, and what was trained beside it. Raises RunError where it cannot; without its spans it may
    be there all the same."""
    try:
        dump.keep(scenario, folder.parent)
        save(run, folder)
    except OSError as error:
        kept = "; all but its spans is kept" if _kept_without_spans(run, folder) else ""
        raise RunError(f"{folder}: {error.strerror}{kept}; make room, or choose another --out") from None


def _kept_without_spans(run: Run, folder: Path) -> bool:
    """Whether the little that tells most of a run could be written, where the whole could not."""
    if run.spans is None:
        return False
    told = {**run.provenance, "partial": "without spans"}
    try:
        save(replace(run, spans=None, provenance=told), folder)
        # those of another run, which this one has replaced
        (folder / "spans.npz").unlink(missing_ok=True)
    except OSError:
        return False
    return True


def keep_finished(scenario: Scenario, on: str, recorded: Sequence[bytes], logs: Iterable[Path], folder: Path | None) -> str:
    """Saves the steps that all ranks finished in a run that failed, and what they printed; returns what to say of it.

    recorded: what each rank noted so far, in rank order.
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
            told = {"partial": f"{steps} of {scenario.steps} steps"}
            # clocks are compared at the end
            told |= {"clocks": "not aligned"} if on == "cluster" else {}
            partial = replace(partial, provenance=told)
            save(stamped(partial, scenario, on), folder)
    except OSError as error:
        return f"; what was measured could not be kept in {folder}: {error.strerror}"
    return f"; measurements up to step {steps} are kept in {folder}" if steps >= 1 else "; no step was finished"


@dataclass(frozen=True)
class Kept:
    """A run that lies in a folder. run: None where it cannot be read; problem then says why."""

    folder: Path
    run: Run | None
    problem: str = ""


def listed(folder: Path) -> Iterator[Kept]:
    """The measured runs below `folder`, by path. Raises InputError where it is not there."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give one that measure or reconcile wrote with --out")
    for file in sorted(folder.rglob("run.json")):
        try:
            run = load_run(file.parent)
            _check(run)
        except _UNREADABLE as error:
            yield Kept(file.parent, None, _reason(error))
            continue
        if run.origin == "measured":
            yield Kept(file.parent, run)


def _check(run: Run) -> None:
    """Raises ValueError or TypeError for what JSON can hold and no run does."""
    numbers: list[Any] = [run.ranks, run.step_time_s, *run.step_times_s]
    if run.step_time_interval_s is not None:
        low_s, high_s = run.step_time_interval_s
        numbers += [low_s, high_s]
    if run.verified is not None:
        numbers += [run.verified["deviation"], run.verified["tolerance"]]
    texts = [run.origin, run.scenario, run.strategy, *run.provenance.values()]
    if not all(isinstance(number, int | float) for number in numbers) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it holds other things than a run does")


def _reason(error: BaseException) -> str:
    """An error in a few words."""
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]}"
    lines = (getattr(error, "strerror", None) or str(error)).strip().splitlines() or [type(error).__name__]
    return lines[0]
