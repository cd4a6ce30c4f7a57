"""The GPU check: calibrates, reconciles, measures and reports by the commands that users have, within a time budget.

A ledger keeps each command with its outcome. A check that was interrupted continues: what is calibrated or measured already is
not measured again.
"""

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

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Device
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.common.units import format_bytes, format_change, format_time_s
from scaleproof.simulator.model import ResNet
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.files import load_run
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.gpu_check import scenarios
from scaleproof.validator.calibration.gpu_sizes import TINY
from scaleproof.validator.calibration.gpus import shipped
from scaleproof.validator.kernels.from_points import kernels_path
from scaleproof.validator.measure import check as check_measurable
from scaleproof.validator.reconciliation.reconcile import measured_folder
from scaleproof.validator.train.steps import total_steps

RESULT_FILE: Final = "results.json"
_CLUSTER_FILE: Final = "cluster.yaml"
_FUNCTIONAL: Final = "functional"
_DEVICE: Final = "device"
# Files of an earlier check, next to the folders.
_WRITTEN: Final = (
    _CLUSTER_FILE, "cluster.points.parquet", "cluster.kernels.csv", f"{_DEVICE}.yaml", "reconcile.json", "index.html",
)  # fmt: skip
_VERSION: Final = 2
_DONE: Final = "done"
# Seconds in which a command saves its results when it is interrupted, and for a page that is made when time is out.
_END_S: Final = 10.0
_PAGE_S: Final = 30.0
# Memory that is not allocated by torch's allocator.
_OUTSIDE: Final = ("context", "library", "fragmentation")
_LABEL_BYTES: Final = 8
_ROOT: Final = Path(__file__).resolve().parents[3]


def check(out: Path, dry: bool, limit_s: float, site: Path | None, again: bool = False) -> int:
    """Runs all commands that fit into `limit_s` seconds; returns the exit code, 1 if one failed.

    site: folder of packages that this Python lacks. again: replaces the results of a finished check. Raises InputError for a
    finished check otherwise.
    """
    ledger = Ledger.opened(out, TINY.label if dry else "", time.monotonic() + limit_s, site, again)
    trainings, path = scenarios.DRY if dry else scenarios.FULL, out / _CLUSTER_FILE
    if not (ledger.has_done("calibrate") and path.exists()):
        size = "tiny" if dry else "full"
        code = ledger.run("calibrate", "calibrate", "--on", "local", "--gpu", size, "--timeout", "60", "--out", path)
        if code in (None, InputError.exit_code):
            return 1 if code is None else code
    devices = 1
    if ledger.has_done("calibrate"):
        cluster = load_cluster(path)
        devices = cluster.devices
        fit_kernels(ledger, path, shipped(cluster.device.name))
        separate = scenarios.write(scenarios.separate(trainings, devices, f"../{_CLUSTER_FILE}"), out / "scenarios")
        own = list(ledger.trainable(separate))
        files = [file for file, _ in own]
        ledger.run("reconcile", "reconcile", *files, "--on", "local", "--resume", "--out", out)
        ledger.compare((scenario for _, scenario in own), shipped(cluster.device.name))
    few = scenarios.write(scenarios.shared(trainings, devices, ledger.label), out / "scenarios" / _FUNCTIONAL)
    if few:
        files = [file for file, _ in few]
        ledger.run("measure", "measure", *files, "--on", "local", "--verify", "--resume", "--out", out / _FUNCTIONAL)
    for name, folder, runs in (("page", out, "runs"), (f"{_FUNCTIONAL} page", out / _FUNCTIONAL, "*/measured")):
        if any(folder.glob(runs)):
            ledger.run(name, "report", folder, least_s=_PAGE_S)
    return ledger.verdict()


def fit_kernels(ledger: Ledger, cluster_file: Path, device: Device | None) -> None:
    """Scores the kernels that were timed, and fits a device to them if one with its data sheet ships."""
    table = kernels_path(cluster_file)
    if not table.exists():
        return
    ledger.run("kernels", "score", table)
    if device is not None:
        fitted = ledger.out / f"{_DEVICE}.yaml"
        if ledger.run("device", "import", "kernels", table, "--out", fitted) == 0:
            ledger.run("device figures", "device", fitted, "--table", table, "--out", ledger.out / _DEVICE)


@dataclass
class Ledger:
    """Commands in order, with their outcomes. until_s: time.monotonic() after which none begins. label: note on every result,
    if it is not accurate."""

    out: Path
    label: str
    until_s: float
    site: Path | None = None
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    compared: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def opened(cls, out: Path, label: str, until_s: float, site: Path | None = None, again: bool = False) -> Ledger:
        """The ledger of an interrupted check in `out`; otherwise a new one, and earlier results are removed. Raises InputError
        for a finished check, unless it is to be done `again`."""
        try:
            kept = json.loads((out / RESULT_FILE).read_text())
            is_same, is_complete = (kept["version"], kept["label"]) == (_VERSION, label), bool(kept["complete"])
            steps = kept["steps"] if is_same and not is_complete else {}
        except (OSError, ValueError, LookupError, TypeError):
            is_complete, steps = False, {}
        if is_complete and not again:
            raise InputError(f"{out} has the results of a finished check; give another --out, or replace them with --again")
        if not steps:
            for name in ("runs", "figures", "tables", "scenarios", _DEVICE, _FUNCTIONAL):
                shutil.rmtree(out / name, ignore_errors=True)
            for name in (*_WRITTEN, RESULT_FILE):
                (out / name).unlink(missing_ok=True)
        return cls(out, label, until_s, site, steps)

    def has_done(self, step: str) -> bool:
        """Whether a step has succeeded."""
        return self.steps.get(step, {}).get("state") == _DONE

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
        """Prints the closing lines, and returns the exit code. After a check without failures the next one starts anew."""
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
        self.steps[step] = {"command": shlex.join(command), "state": state, "seconds": round(seconds, 3)}
        self._save()

    def _save(self, complete: bool = False) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        plain = {"version": _VERSION, "written": now, "label": self.label, "complete": complete, "steps": self.steps}
        plain |= {"left_out": self.left_out, "compared": self.compared}
        write_atomically(self.out / RESULT_FILE, (json.dumps(plain, indent=1) + "\n").encode())


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupts a process that has not ended, so that it can save its results; kills it if it does not end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()


def compared(scenario: Scenario, measured: Run, predicted: Run, device: Device | None) -> dict[str, float]:
    """Step time in seconds and peak memory in bytes, measured and predicted, as far as known.

    uncalibrated_s: predicted for the shipped device.
    """
    numbers: dict[str, float] = {}
    if device is not None:
        cluster = scenario.cluster.model_copy(update={"device": device})
        uncalibrated = predict(scenario.model_copy(update={"cluster": cluster}))
        numbers |= {"measured_s": measured.step_time_s, "uncalibrated_s": uncalibrated.step_time_s}
    if measured.memory_bytes_per_rank:
        bytes_by_holder = predicted.memory_bytes or {}
        numbers["measured_bytes"] = measured.memory_bytes_per_rank - ahead_bytes(scenario)
        numbers["predicted_bytes"] = sum(size for holder, size in bytes_by_holder.items() if holder not in _OUTSIDE)
    return numbers


def describe(numbers: dict[str, float]) -> str:
    """The result of `compared` as text."""
    parts = []
    if "uncalibrated_s" in numbers:
        error = numbers["uncalibrated_s"] / numbers["measured_s"] - 1
        times = format_time_s(numbers["measured_s"]), format_time_s(numbers["uncalibrated_s"])
        parts.append(f"measured {times[0]}, uncalibrated {times[1]} ({format_change(error)})")
    if "measured_bytes" in numbers:
        error = numbers["predicted_bytes"] / numbers["measured_bytes"] - 1
        parts.append(f"memory {format_bytes(numbers['measured_bytes'])}, predicted {format_change(error)}")
    return "; ".join(parts)


def ahead_bytes(scenario: Scenario) -> float:
    """Bytes of the samples of later steps, which are on the device before the first step begins."""
    model = scenario.model
    if isinstance(model, ResNet):
        sample_bytes = 3 * model.image**2 * ELEMENT_BYTES[scenario.training.precision] + _LABEL_BYTES
    else:
        sample_bytes = 2 * _LABEL_BYTES * getattr(model, "sequence", 1)
    return float(scenario.samples_per_worker * sample_bytes * (total_steps(scenario) - 1))
