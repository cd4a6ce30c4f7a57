"""Launched ranks return results; a failing rank is named, the others end, and no process outlives the launcher."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import MissingDependencyError, RankError, RunError
from scaleproof.validator.launch import fork_server
from scaleproof.validator.launch.launch import run_on_ranks
from tests.validator import faults, processes


@pytest.fixture(autouse=True)
def _no_rank_is_left() -> Iterator[None]:
    yield
    assert processes.own_ranks() == []


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_a_group_and_return_in_order(ranks: int) -> None:
    total = sum(range(ranks))

    assert run_on_ranks(faults.add_ranks, ranks, 7) == [[total, 7]] * ranks


def test_torch_is_loaded_once() -> None:
    run_on_ranks(faults.add_ranks, 2, 0)
    server = fork_server.shared().pid
    run_on_ranks(faults.add_ranks, 2, 0)

    assert fork_server.shared().pid == server


def broken(_control: int, _folders: str) -> None:
    raise ImportError("libtorch is broken")


@pytest.mark.full
def test_a_fork_server_that_cannot_start_reports_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "serve", broken)
    server = fork_server.ForkServer()

    with pytest.raises(RunError, match="ranks cannot be started: ImportError: libtorch is broken"):
        server.wait_until_ready()
    server.close()


def test_a_failing_rank_is_named_in_one_line_without_the_ranks_it_affects() -> None:
    with pytest.raises(RankError) as caught:
        run_on_ranks(faults.fail_on, 3, 1)

    assert str(caught.value) == "rank 1 failed in its work: ValueError: the weights are gone"


def test_a_rank_that_exits_without_a_result_counts_as_failed() -> None:
    with pytest.raises(RankError, match="rank 1 exited with code 0 in its work"):
        run_on_ranks(faults.leave_early, 2, 1)


@pytest.mark.full
def test_ranks_without_progress_are_ended() -> None:
    with pytest.raises(RankError, match="made no progress for 5 s in its work"):
        run_on_ranks(faults.sleep_for_ever, 2, timeout_s=5.0)


@pytest.mark.parametrize(("rank", "for_memory"), [(0, False), (2, True)])
def test_kill_9_of_any_rank_is_reported(rank: int, for_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that the kernel killed something meanwhile because there was no memory left."""
    killed = itertools.count(step=int(for_memory))
    monkeypatch.setattr("scaleproof.validator.launch.launch.ended_for_memory", lambda: next(killed))

    def strike() -> None:
        assert processes.wait_until(lambda: len(processes.own_ranks()) == 3)
        time.sleep(0.3)
        processes.kill(processes.own_ranks()[rank])

    striker = threading.Thread(target=strike)
    striker.start()
    with pytest.raises(RankError, match=f"rank {rank} was killed by signal 9") as error:
        run_on_ranks(faults.sleep_for_ever, 3)
    striker.join()
    assert str(error.value).endswith(": probably out of memory; give fewer ranks or a smaller model") is for_memory


@pytest.mark.full
def test_kill_9_of_the_fork_server_ends_the_ranks_and_the_next_run_starts_another() -> None:
    ranks: list[int] = []

    def strike() -> None:
        assert processes.wait_until(lambda: len(processes.own_ranks()) == 2)
        ranks.extend(processes.own_ranks())
        processes.kill(fork_server.shared().pid)

    striker = threading.Thread(target=strike)
    striker.start()
    with pytest.raises(RunError, match="ended by another process"):
        run_on_ranks(faults.sleep_for_ever, 2)
    striker.join()

    assert processes.wait_until(lambda: not any(map(processes.is_running, ranks)))
    assert run_on_ranks(faults.add_ranks, 1, 7) == [[0, 7]]


@pytest.mark.full
def test_kill_9_of_the_launcher_leaves_no_process_or_file(tmp_path: Path) -> None:
    imports = "from tests.validator import faults; from scaleproof.validator.launch.launch import run_on_ranks"
    command = f"{imports}; run_on_ranks(faults.sleep_for_ever, 2)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", command], env=environment) as launcher:
        assert processes.wait_until(lambda: len(processes.descendants(launcher.pid)) == 3)
        started = processes.descendants(launcher.pid)
        assert list(tmp_path.glob("scaleproof-*"))

        processes.kill(launcher.pid)

    assert processes.wait_until(lambda: not any(map(processes.is_running, started)))
    assert not list(tmp_path.glob("scaleproof-*"))


def test_an_interrupt_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: fork_server.ForkServer, timeout_s: float) -> list[fork_server.Exit]:
        monkeypatch.undo()
        raise KeyboardInterrupt

    run_on_ranks(faults.add_ranks, 2, 0)
    monkeypatch.setattr(fork_server.ForkServer, "exits", interrupted)

    with pytest.raises(KeyboardInterrupt):
        run_on_ranks(faults.sleep_for_ever, 2)


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'scaleproof\[validator\]'"):
        run_on_ranks(faults.add_ranks, 1, 0)


def test_ranks_of_an_earlier_job_that_end_late_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process with a GPU may take longer to end than the launcher waits."""
    server = fork_server.shared()
    server.wait_until_ready()
    receive = server.receive
    late = [["/tmp/an-earlier-job", 0, -9]]
    monkeypatch.setattr(server, "receive", lambda timeout_s: [late.pop()] if late else receive(timeout_s))
    assert run_on_ranks(faults.add_ranks, 2, 0) == [[1, 0]] * 2
    assert not late
