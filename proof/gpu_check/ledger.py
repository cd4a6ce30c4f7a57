"""The ledger of a GPU check: a file that keeps each command with its outcome, so that an interrupted check continues."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scaleproof.proof.gpu_check.comparison import compared, describe
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.files import load_run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.preflight.checks import check as check_measurable
from scaleproof.validator.reconciliation.reconcile import RESULT_FILE as RECONCILED_FILE
from scaleproof.validator.reconciliation.reconcile import measured_folder

RESULT_FILE: Final = "results.json"
CLUSTER_FILE: Final = "cluster.yaml"
FUNCTIONAL: Final = "functional"
DEVICE: Final = "device"
PROVENANCE_FILE: Final = "provenance.txt"
ARCHIVE_PREFIX: Final = "gpu-check-"
# What a check leaves, next to archives.
FOLDERS: Final = ("runs", "figures", "tables", "scenarios", DEVICE, FUNCTIONAL)
FILES: Final = (
    RESULT_FILE, PROVENANCE_FILE, CLUSTER_FILE, "cluster.points.parquet", "cluster.kernels.csv", f"{DEVICE}.yaml",
    RECONCILED_FILE, "index.html",
)  # fmt: skip
# Results that take minutes to measure again.
_MEASURED: Final = (CLUSTER_FILE, "runs", FUNCTIONAL)
_VERSION: Final = 3
_DONE: Final = "done"
# Seconds in which a command saves its results when it is interrupted.
_END_S: Final = 10.0
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass
class Ledger:
    """Commands in order, with their outcomes. label: note on every result, if it is not accurate. until_s: time.monotonic()
    after which none begins. begun: date of the check."""

    out: Path
    label: str
    until_s: float
    site: Path | None = None
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    compared: dict[str, dict[str, float]] = field(default_factory=dict)
    begun: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d}")

    @classmethod
    def opened(cls, out: Path, label: str, until_s: float, site: Path | None = None, again: bool = False) -> Ledger:
        """The ledger of an interrupted check in `out`; otherwise a new one, and with `again` earlier results are removed.

        Raises InputError for results of a finished check, and for those that this version, or a check of this kind, cannot
        continue, unless it is to be done `again`.
        """
        if again:
            _remove(out)
            return cls(out, label, until_s, site)
        replace = "give another --out, or replace them with --again"
        measured = [name for name in _MEASURED if (out / name).exists()]
        try:
            kept = json.loads((out / RESULT_FILE).read_text())
            is_same, is_complete = (kept["version"], kept["label"]) == (_VERSION, label), bool(kept["complete"])
        except (OSError, ValueError, LookupError, TypeError):
            is_same = is_complete = False
        if is_complete and measured:
            raise InputError(f"{out} has the results of a finished check; {replace}")
        if is_same:
            return cls(out, label, until_s, site, kept["steps"], compared=kept["compared"], begun=kept["begun"])
        if measured:
            what = "of another version, or of a dry run" if not label else "of another version, or of GPUs"
            raise InputError(f"{out} has {', '.join(measured)} of a check {what}, which cannot be continued; {replace}")
        return cls(out, label, until_s, site)

    def has_done(self, step: str) -> bool:
        """Whether a step has succeeded."""
        return self.steps.get(step, {}).get("state") == _DONE

    def run_once(self, step: str, *arguments: str | Path) -> None:
        """Runs a command, unless it has succeeded before."""
        if not self.has_done(step):
            self.run(step, *arguments)

    def run(self, step: str, *arguments: str | Path, least_s: float = 0.0) -> int | None:
        """Exit code of a command of scaleproof; None if there was no time, or it was interrupted because time was out.

        least_s: seconds that it may take even if time is out.
        """
        command = ["scaleproof", *map(str, arguments)]
        left_s, begin_s = max(self.until_s - time.monotonic(), least_s), time.monotonic()
        if left_s <= 0:
            print(f"{step}: not run: out of time", file=sys.stderr)
            self._record(step, command, "not run", 0.0)
            return None
        print(f"$ {shlex.join(command)}", flush=True)
        # in its own session, so that an interrupt from the keyboard reaches it once
        process = subprocess.Popen([sys.executable, "-m", *command], env=self._environment(), start_new_session=True)
        state, code = "interrupted", None
        try:
            code = process.wait(left_s)
            state = "failed" if code else _DONE
        except subprocess.TimeoutExpired:
            state = "out of time"
            print(f"{step}: interrupted: out of time", file=sys.stderr)
        finally:
            _end(process)
            self._record(step, command, state, time.monotonic() - begin_s)
        return code

    def trainable(self, named: Iterable[tuple[Path, Scenario]]) -> Iterable[tuple[Path, Scenario]]:
        """The scenarios that fit into memory and can be measured here; the others are reported as not run."""
        for path, scenario in named:
            try:
                check_measurable(scenario, "local", None)
                forecast = predict(scenario)
                needed, there = forecast.memory_bytes_per_rank or 0.0, forecast.capacity_bytes or 0.0
                why = "" if forecast.fits else f"needs {format_bytes(needed)} of {format_bytes(there)}"
            except ScaleproofError as error:
                why = str(error)
            if why:
                self.left_out[scenario.name] = why
                print(f"{scenario.name}: not run: {why}")
            else:
                yield path, scenario

    def compare(self, named: Iterable[Scenario], device: Device | None) -> None:
        """Compares measured runs with predictions for the shipped device, without calibration, and with predicted memory."""
        for scenario in named:
            folder = measured_folder(self.out, scenario)
            if not (folder / "run.json").exists():
                continue
            measured, predicted = load_run(folder), load_run(folder.with_name("predicted"))
            if numbers := compared(scenario, measured, predicted, device):
                self.compared[scenario.name] = numbers
                print(f"{scenario.name}: {describe(numbers)}")
        self._save()

    def verdict(self) -> int:
        """Prints what has failed and what is left, and returns the exit code. A check without failures is then complete."""
        states = [step["state"] for step in self.steps.values()]
        self._save(complete=all(state == _DONE for state in states))
        failed = [name for name, step in self.steps.items() if step["state"] == "failed"]
        late = len(states) - len(failed) - states.count(_DONE)
        again = "; run it again to continue" if late else ""
        print(f"{len(states)} commands: {len(failed)} failed, {late} not completed{again}; results in {self.out}")
        for name in failed:
            print(f"failed: {name}", file=sys.stderr)
        return 1 if failed else 0

    def _environment(self) -> dict[str, str]:
        paths = [str(path.resolve()) for path in (self.site, _ROOT) if path is not None]
        before = os.environ.get("PYTHONPATH")
        return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *([before] if before else [])])}

    def _record(self, step: str, command: list[str], state: str, seconds: float) -> None:
        # a command that runs again comes last
        self.steps.pop(step, None)
        self.steps[step] = {"command": shlex.join(command), "state": state, "seconds": round(seconds, 3)}
        self._save()

    def _save(self, complete: bool = False) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        plain = {"version": _VERSION, "written": now, "begun": self.begun, "label": self.label, "complete": complete}
        plain |= {"steps": self.steps, "left_out": self.left_out, "compared": self.compared}
        write_atomically(self.out / RESULT_FILE, (json.dumps(plain, indent=1) + "\n").encode())


def _remove(out: Path) -> None:
    """Removes the results of a check, and its archives; a history stays."""
    for name in FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)
    for path in (*(out / name for name in FILES), *out.glob(f"{ARCHIVE_PREFIX}*.tar.gz")):
        path.unlink(missing_ok=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts a process that has not ended, so that it can save its results; kills it if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
