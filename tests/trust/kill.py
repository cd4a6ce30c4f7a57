"""Killing: commands killed at random moments and then run again give the result of undisturbed ones.

python -m tests.trust.kill 25

kills each of them N times, and prints the outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conftest import SMALL
from tests.trust import watched

_STUDY: Final = """\
scenario: resnet50-ring-p100
axes:
  strategy.workers: {from: 1, to: 32, points: 32}
  batch.per_worker: {from: 1, to: 10, points: 10}
"""
_TRAINED: Final = """\
model: {kind: mlp, layers: 2, inputs: 16, hidden: 32, outputs: 8}
cluster: {nodes: 1, node: {devices: 2, cores: 2, link: {bandwidth: 1 GB/s, latency: 50 us}}, device: cpu-core}
strategy: {kind: data_parallel, workers: 2}
batch: 8
steps: 4
"""
# Latest kill, relative to the usual duration: half of the commands have then ended by themselves.
_BEYOND: Final = 1.1


@dataclass(frozen=True)
class Subject:
    """A command that is killed. prepare: writes what it reads. again: what goes on afterwards. result: what it comes to."""

    prepare: Callable[[Path], None]
    command: Sequence[str]
    again: Sequence[str]
    result: Callable[[Path], Any]


def _swept(folder: Path) -> Any:
    from scaleproof.simulator.analysis.study.store import table

    # as text, since NaN does not equal itself
    return table(folder / "out").to_json(orient="records", double_precision=15)


def _written(folder: Path) -> Mapping[str, bytes]:
    files = (path for path in (folder / "out").rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _measured(folder: Path) -> Any:
    """Of each run what is the same each time: what was trained, and what came of it."""
    from scaleproof.validator.results import listed

    runs = [one.run for one in listed(folder / "out")]
    assert all(run is not None and "partial" not in run.provenance for run in runs)
    return {
        run.scenario: (run.ranks, run.samples, len(run.step_times_s), [round(loss, 6) for loss in run.losses])
        for run in runs
        if run is not None
    }


def _reconciled(folder: Path) -> Any:
    """What was measured, and the names of the cases that were reconciled."""
    cases = json.loads((folder / "out" / "reconcile.json").read_text())["cases"]
    return _measured(folder), sorted(case["scenario"] for case in cases)


def _prepare_study(folder: Path) -> None:
    (folder / "study.yaml").write_text(_STUDY)


def _prepare_scenarios(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(_TRAINED)


def _points(folder: Path) -> None:
    from scaleproof.validator.probe.points import write
    from tests.validator.calibration.made import all_pairs, facts, sends, sums

    write([facts().point(), *sends(all_pairs(4)), *sums(4, 4, 1e-3, 1e7)], folder / "lab.points.parquet")


def _prepare_prediction(folder: Path) -> None:
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.run.files import save
    from scaleproof.simulator.scenario.load import load

    (folder / "small.yaml").write_text(SMALL)
    save(predict(load(folder / "small.yaml")), folder / "out" / "predicted")


_SWEEP: Final = ("sweep", "study.yaml", "--out", "out")
_MEASURE: Final = ("measure", "one.yaml", "two.yaml", "--on", "local", "--out", "out")
_RECONCILE: Final = ("reconcile", "one.yaml", "two.yaml", "--on", "local", "--out", "out")
_CALIBRATE: Final = ("calibrate", "--from", "lab.points.parquet", "--out", "out/lab.yaml")
SUBJECTS: Final[Mapping[str, Subject]] = {
    "sweep": Subject(_prepare_study, _SWEEP, (*_SWEEP, "--resume"), _swept),
    "calibrate": Subject(_points, _CALIBRATE, _CALIBRATE, _written),
    "measure": Subject(_prepare_scenarios, _MEASURE, (*_MEASURE, "--resume"), _measured),
    "reconcile": Subject(_prepare_scenarios, _RECONCILE, (*_RECONCILE, "--resume"), _reconciled),
    "report": Subject(_prepare_prediction, ("report", "out"), ("report", "out"), _written),
}


@dataclass
class Killed:
    """Of how many rounds the command was killed in the midst of its work, and how many files were there then, all whole."""

    rounds: int = 0
    midst: int = 0
    files: int = 0


def kill(name: str, rounds: int, seed: int) -> Killed:
    """Kills a command at random moments, runs it again, and raises AssertionError where that comes to something else."""
    subject, moments, reported = SUBJECTS[name], random.Random(seed), Killed()
    with tempfile.TemporaryDirectory() as place:
        folder = _fresh(Path(place) / "undisturbed", subject)
        begun_s = time.monotonic()
        _end(_started(subject.command, folder))
        took_s, expected = time.monotonic() - begun_s, subject.result(folder)
        for number in range(rounds):
            folder = _fresh(Path(place) / f"round {number}", subject)
            before = set(_written(folder))
            process = _started(subject.command, folder)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moments.uniform(0, _BEYOND * took_s))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            reported.rounds += 1
            reported.midst += process.returncode == -signal.SIGKILL
            reported.files += len(_whole(folder, before))
            _end(_started(subject.again, folder))
            assert subject.result(folder) == expected, (
                f"{name}, killed in round {number} of seed {seed}, comes to something else"
            )
            assert not list(folder.rglob("*.lock"))
    return reported


def _fresh(folder: Path, subject: Subject) -> Path:
    folder.mkdir()
    subject.prepare(folder)
    return folder


def _started(command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])}
    return subprocess.Popen(
        [sys.executable, "-m", "scaleproof", *command],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _end(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def _whole(folder: Path, before: set[str]) -> list[str]:
    """The new files, all of them checked for completeness, without journals, which SQLite deletes when it opens a file."""
    found = [name for name in _written(folder) if name not in before and not name.endswith("-journal")]
    for name in found:
        watched.check_whole(folder / name)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, help="of each command")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), help="commands to kill (all)")
    options = parser.parse_args(arguments)
    print(f"{'killed':<10} {'times':>6} {'in midst':>9} {'files there':>12}  then")
    for name in options.only:
        reported = kill(name, options.rounds, options.seed)
        print(
            f"{name:<10} {reported.rounds:>6} {reported.midst:>9} {reported.files:>12}  the same result each time", flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
