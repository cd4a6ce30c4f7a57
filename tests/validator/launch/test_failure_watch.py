"""Failures of other ranks are noticed by all, and end NCCL's kernels alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
import torch.distributed as dist
from torch.distributed import FileStore, Store, distributed_c10d  # type: ignore[attr-defined]

from scaleproof.validator.launch import failure_watch
from scaleproof.validator.launch.failure_watch import FailureWatch, abort

# Longer than the time between two looks.
LONG_S = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return FileStore(str(tmp_path / "store"), 2)


def test_the_others_abort_after_a_failure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = Event()
    monkeypatch.setattr(failure_watch, "abort", aborted.set)
    with FailureWatch(store) as other:
        assert not other.has_seen_failure
        with FailureWatch(store) as failed:
            failed.report()
            aborted.clear()

        assert aborted.wait(LONG_S)
        assert (other.has_seen_failure, failed.has_seen_failure) == (True, False)


def test_nothing_is_aborted_without_a_failure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = Event()
    monkeypatch.setattr(failure_watch, "abort", aborted.set)
    with FailureWatch(store) as watch:
        assert not aborted.wait(3 * failure_watch._PERIOD_S)

    assert not watch.has_seen_failure


@pytest.mark.parametrize(("backend", "calls"), [("nccl", 1), ("gloo", 0), ("staged", 0)])
def test_only_groups_of_nccl_are_aborted(backend: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's connections break by themselves, and its errors say why."""
    made: list[bool] = []
    replaced: dict[str, Callable[[], object]] = {"is_initialized": lambda: True, "get_backend": lambda: backend}
    for name, function in replaced.items():
        monkeypatch.setattr(dist, name, function)
    monkeypatch.setattr(distributed_c10d, "_abort_process_group", lambda: made.append(True))

    abort()

    assert len(made) == calls
