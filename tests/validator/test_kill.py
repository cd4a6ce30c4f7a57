"""Kill -9 of any process at any time: all others end, nothing is left behind, and finished runs are readable."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.run.files import load_run
from scaleproof.validator.launch.job import JobFolder
from scaleproof.validator.record.status_board import NO_STEP, STARTING, Board
from scaleproof.validator.results import listed
from tests.validator import processes
from tests.validator.netlabs import needs_netlab

pytestmark = [pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes in /proc"), pytest.mark.full]

DEVICE = "device: {name: cpu, peak: {fp32: 50 GFLOP/s}, memory: 8 GiB, memory_bandwidth: 10 GB/s}"
SHORT = f"""\
model: {{kind: mlp, layers: 4, inputs: 32, hidden: 64, outputs: 16}}
cluster: {{nodes: 2, node: {{cores: 2}}, network: {{bandwidth: 500 Mbit/s, latency: 60 us}}, {DEVICE}}}
strategy: {{kind: data_parallel, workers: 2}}
batch: 16
steps: 3
"""
# A run of a minute, unless it is killed.
LONG = SHORT.replace("hidden: 64", "hidden: 1024").replace("steps: 3", "steps: 2000").replace("16\n", "512\n")
SERVERS = LONG.replace("{kind: data_parallel, workers: 2}", "{kind: parameter_server, workers: 2}").replace(
    "nodes: 2", "nodes: 3"
)


@dataclass
class Command:
    """A `scaleproof measure` under way, with temporary folders of its own. locked: files that are closed after it."""

    process: subprocess.Popen[str]
    temporary: Path
    seen: set[int]
    locked: list[IO[bytes]]

    @property
    def pid(self) -> int:
        return self.process.pid

    def server(self) -> list[int]:
        """The fork server, as the process that ranks are children of or will be."""
        return [pid for pid in processes.children(self.pid) if "fork_server" in command_line(pid)]

    def holder(self) -> list[int]:
        return [pid for pid in processes.children(self.pid) if "namespaces" in command_line(pid)]

    def ranks(self) -> list[int]:
        return [rank for server in self.server() for rank in processes.children(server)]

    def has_ended(self) -> bool:
        self.seen |= {self.pid, *processes.descendants(self.pid)}
        return self.process.poll() is not None

    def phases(self, ranks: int) -> list[tuple[int, int]]:
        """Phase and step of each rank of the job that runs, if one does."""
        for path in self.temporary.glob("scaleproof-*/status"):
            try:
                board = Board.open(path)
            except (OSError, ValueError):
                continue
            found = [board.read(rank) for rank in range(ranks)]
            board.close()
            return [(activity.phase, activity.step) for activity in found]
        return []


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@contextmanager
def started(folder: Path, *command: str) -> Iterator[Command]:
    """Afterwards no process of it runs, and no temporary folder of it is there."""
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]), "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        one = Command(process, temporary, set(), [])
        try:
            yield one
            assert processes.wait_until(lambda: not any(map(processes.is_running, one.seen)))
            assert processes.wait_until(lambda: not list(temporary.glob("scaleproof*"))), list(temporary.iterdir())
        finally:
            for file in one.locked:
                file.close()
            for pid in {process.pid, *one.seen}:
                if processes.is_running(pid):
                    processes.kill(pid)


def strike(one: Command, find: Callable[[Command], Sequence[int]]) -> None:
    """Kills the first process that `find` finds, as soon as it does."""
    victims: list[int] = []
    assert processes.wait_until(lambda: bool(victims.extend(find(one)) or victims) or one.has_ended())
    assert victims, one.process.communicate()
    one.has_ended()
    processes.kill(victims[0])


def at_start(one: Command) -> list[int]:
    """The fork server once it is to start ranks and has started none; one that dies before has another take its place."""
    has_job = any(JobFolder(path).job.exists() for path in one.temporary.glob("scaleproof-*"))
    return one.server() if has_job and not one.ranks() else []


def in_phase(victim: str, phase: int, rank: int, ranks: int = 2) -> Callable[[Command], list[int]]:
    """Once that rank of the long run is in the phase."""

    def find(one: Command) -> list[int]:
        phases = one.phases(ranks)
        # the short run has three steps, and two before those
        if len(phases) <= rank or phases[rank][0] != phase or (phase != STARTING and phases[rank][1] <= 3):
            return []
        own = one.ranks()
        if (phase == STARTING and phases[rank][1] != NO_STEP) or len(own) < ranks:
            return []
        return {"rank": own[rank : rank + 1], "server": one.server(), "launcher": [one.pid], "holder": one.holder()}[victim]

    return find


def in_rendezvous(victim: str, rank: int) -> Callable[[Command], list[int]]:
    """Once that rank of the long run waits for the others, which it does as long as we have locked the file they meet in."""

    def find(one: Command) -> list[int]:
        for path in one.temporary.glob("scaleproof-*") if not one.locked else ():
            file = JobFolder(path).store.open("ab")
            one.locked.append(file)
            fcntl.flock(file, fcntl.LOCK_EX)
        return in_phase(victim, STARTING, rank)(one)

    return find


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "short.yaml").write_text(SHORT)
    (tmp_path / "long.yaml").write_text(LONG)
    (tmp_path / "servers.yaml").write_text(SERVERS)
    return tmp_path


def measure(*scenarios: str, on: str = "local") -> list[str]:
    return ["-m", "scaleproof", "measure", *scenarios, "--on", on, "--out", "out", "--timeout", "60"]


KILLS = {
    "server at start": (at_start, "ranks cannot be started: ended by another process"),
    "rank 1 in rendezvous": (in_rendezvous("rank", 1), "rank 1 (worker 1) was killed by signal 9 in start-up"),
    "rank 0 in forward": (in_phase("rank", Phase.FORWARD, 0), "rank 0 (worker 0) was killed by signal 9 in "),
    "server in backward": (in_phase("server", Phase.BACKWARD, 0), "ranks was ended by another process"),
    "launcher in rendezvous": (in_rendezvous("launcher", 0), None),
    "launcher in synchronise": (in_phase("launcher", Phase.SYNCHRONISE, 0), None),
}


@pytest.mark.parametrize("kill", KILLS)
def test_killing_any_process_gives_an_error_and_leaves_nothing(kill: str, folder: Path) -> None:
    find, message = KILLS[kill]
    with started(folder, *measure("long.yaml")) as one:
        strike(one, find)
        reported = one.process.communicate(timeout=200)[1]
    if message is None:
        assert one.process.returncode == -9
    else:
        assert one.process.returncode == 1
        assert len(reported.splitlines()) == 1
        assert message in reported


def test_a_killed_parameter_server_is_named(folder: Path) -> None:
    waits = in_phase("rank", Phase.WAIT, 0, ranks=3)
    with started(folder, *measure("servers.yaml")) as one:
        strike(one, lambda one: one.ranks()[2:] if waits(one) else [])
        reported = one.process.communicate(timeout=200)[1]
    assert "rank 2 (server 0) was killed by signal 9" in reported
    assert one.process.returncode == 1


def test_finished_runs_are_readable_and_resume_measures_the_rest(folder: Path) -> None:
    (folder / "last.yaml").write_text(SHORT)
    with started(folder, *measure("short.yaml", "long.yaml", "last.yaml")) as one:
        strike(one, in_phase("rank", Phase.BACKWARD, 1))
        _, errors = one.process.communicate(timeout=200)
    assert one.process.returncode == 1
    assert "long could not be measured: rank 1 (worker 1) was killed by signal 9" in errors
    kept = {one.folder.parent.name: one.run for one in listed(folder / "out")}
    assert set(kept) == {"short", "long", "last"}
    assert all(run is not None and ("partial" in run.provenance) == (name == "long") for name, run in kept.items())


def test_ctrl_c_ends_ranks_and_keeps_their_steps(folder: Path) -> None:
    with started(folder, *measure("short.yaml", "long.yaml")) as one:
        assert processes.wait_until(lambda: bool(in_phase("rank", Phase.BACKWARD, 1)(one)) or one.has_ended())
        one.has_ended()
        one.process.send_signal(signal.SIGINT)
        errors = one.process.communicate(timeout=200)[1]
    assert one.process.returncode == 130
    assert errors == "scaleproof measure interrupted; long was being measured; --out out --resume continues\n"
    assert load_run(folder / "out" / "long" / "measured").provenance["partial"].endswith(" of 2000 steps")


@pytest.mark.parametrize(
    "place",
    [
        "scaleproof.validator.measure.gathered",
        "scaleproof.validator.results.save",
        "scaleproof.simulator.common.atomic_file.write_atomically",
    ],
)
def test_a_launcher_killed_while_gathering_or_writing_leaves_readable_results(place: str, folder: Path) -> None:
    """It is the second scenario's turn; of what is written a file, the first of each run is that of the spans."""
    (folder / "last.yaml").write_text(SHORT)
    times = {"scaleproof.simulator.common.atomic_file.write_atomically": "4"}.get(place, "2")
    dying = str(Path(__file__).with_name("dying.py"))
    arguments = measure("short.yaml", "last.yaml")[2:]
    with started(folder, dying, place, times, *arguments) as one:
        one.seen |= {one.pid}
        assert processes.wait_until(lambda: one.seen.update(processes.descendants(one.pid)) or one.process.poll() is not None)
    assert one.process.returncode == -9
    assert load_run(folder / "out" / "short" / "measured").ranks == 2
    assert not (folder / "out" / "last" / "measured" / "run.json").exists()
    with started(folder, "-m", "scaleproof", *arguments, "--resume") as again:
        reported, _ = again.process.communicate(timeout=200)
    _, first, second = reported.splitlines()
    assert first.endswith("measured before")
    assert second.startswith("last")
    assert "measured before" not in second


# concurrently built labs could reuse the inode numbers of removed namespaces
@needs_netlab
@pytest.mark.alone
@pytest.mark.parametrize("victim", ["holder", "launcher"])
def test_killing_a_process_in_a_lab_leaves_nothing(victim: str, folder: Path) -> None:
    with started(folder, *measure("long.yaml", on="netlab")) as one:
        spaces: set[str] = set()

        def find(one: Command) -> list[int]:
            found = in_phase(victim, Phase.SYNCHRONISE, 1)(one)
            if found:
                spaces.update(namespaces_of(one.holder()[0]))
            return found

        strike(one, find)
        reported = one.process.communicate(timeout=200)[1]
    assert len(spaces) >= 3, "two hosts and what joins them"
    assert not spaces & {space for pid in os.listdir("/proc") if pid.isdecimal() for space in namespaces_of(int(pid))}
    assert one.process.returncode == (-9 if victim == "launcher" else 1)
    assert victim == "launcher" or len(reported.splitlines()) == 1, reported
    assert victim != "holder" or "the process that keeps it was ended" in reported


def namespaces_of(pid: int) -> set[str]:
    """Network namespaces that a process is in or holds open, but for this process's own."""
    found = set()
    for path in [Path(f"/proc/{pid}/ns/net"), *_files(pid)]:
        try:
            found.add(os.readlink(path))
        except OSError:
            continue
    return {name for name in found if name.startswith("net:")} - {os.readlink("/proc/self/ns/net")}


def _files(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
