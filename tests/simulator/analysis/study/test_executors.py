"""Executors give the same table, also when workers die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from scaleproof.simulator.analysis.study.executors import Workers, workers
from scaleproof.simulator.analysis.study.study import Study, read
from scaleproof.simulator.analysis.study.sweep import done, sweep, tasks
from scaleproof.simulator.common.errors import InputError

STUDY = {
    "scenario": "resnet50-ring-p100",
    "axes": {
        "strategy.workers": [2, 4, 8, 16, 32],
        "batch.per_worker": {"from": 8, "to": 80, "points": 10},
    },
}


@pytest.fixture(scope="module")
def study() -> Study:
    return read(STUDY)


@pytest.fixture(scope="module")
def expected(study: Study) -> pd.DataFrame:
    return sweep(study)


def rows_by_point(study: Study, at_work: Workers) -> dict[int, dict[str, Any]]:
    """The rows by point."""
    given = tasks(study, np.arange(len(study)), at_work.alone)
    found = [row for part in done(study, given, False, at_work) for row in part]
    assert len(found) == len(study)
    return {row["point"]: row for row in found}


def assert_equal_rows(found: dict[int, dict[str, Any]], expected: pd.DataFrame) -> None:
    times_s = [found[point]["step_time_s"] for point in range(len(expected))]
    np.testing.assert_array_equal(times_s, expected["step_time_s"])


class InProcessExecutor(Executor):
    """Does each task when it is handed out; its worker dies of some points."""

    def __init__(self, deadly: set[int]) -> None:
        self.deadly = deadly

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.deadly & set(arguments[1].tolist()):
            future.set_exception(BrokenExecutor("killed"))
        else:
            future.set_result(function(*arguments, **options))
        return future


@pytest.mark.full
def test_a_point_that_kills_workers_gets_an_error_and_the_others_results(study: Study, expected: pd.DataFrame) -> None:
    found = rows_by_point(study, Workers(lambda: InProcessExecutor({17}), 2, (BrokenExecutor,)))
    assert "workers die at this point" in found.pop(17)["error"]
    for point, row in found.items():
        assert row["step_time_s"] == expected["step_time_s"][point]


@pytest.mark.full
def test_points_whose_worker_died_once_are_retried(study: Study, expected: pd.DataFrame) -> None:
    started = []

    def start() -> Executor:
        started.append(1)
        return InProcessExecutor(set(range(30)) if len(started) == 1 else set())

    assert_equal_rows(rows_by_point(study, Workers(start, 2, (BrokenExecutor,))), expected)
    assert len(started) == 2


@pytest.mark.full
def test_a_local_worker_that_is_killed_is_replaced(study: Study, expected: pd.DataFrame) -> None:
    at_work = workers("local", None, Path())
    killed: list[int] = []
    found = []
    for part in done(study, tasks(study, np.arange(len(study)), at_work.alone), False, at_work):
        found += part
        if not killed:
            ours = psutil.Process().children(recursive=True)
            killed += [child.pid for child in ours if "LokyProcess" in " ".join(child.cmdline())][:1]
            os.kill(killed[0], signal.SIGKILL)
    assert killed
    assert_equal_rows({row["point"]: row for row in found}, expected)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    # on one interface, where a port that is free is free on all of it
    pages = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, silence_logs=50, **pages) as made:
        yield made


@pytest.mark.full
def test_results_are_complete_if_a_dask_worker_is_killed(cluster: Any, tmp_path: Path, expected: pd.DataFrame) -> None:
    pids = [worker.process.pid for worker in cluster.workers.values()]
    parts: list[int] = []

    def progress(points: int) -> None:
        parts.append(points)
        if len(parts) == 3:
            os.kill(pids[0], signal.SIGKILL)

    address = cluster.scheduler_address
    found = sweep(STUDY, tmp_path, executor="dask", scheduler=address, progress=progress)
    assert len(parts) > 3
    pd.testing.assert_frame_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "scheduler", "message"),
    [
        ("dask", None, "give the address"),
        ("dask", "nonsense://there", "no connection"),
        ("local", "tcp://127.0.0.1:1", "needs --executor dask"),
        ("slurm", None, "sbatch"),
        ("cloud", None, "choose from local, dask, slurm"),
    ],
)
def test_unreachable_workers_are_reported_in_one_line(
    name: str, scheduler: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # this machine may have a Slurm
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        workers(name, scheduler, tmp_path)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
