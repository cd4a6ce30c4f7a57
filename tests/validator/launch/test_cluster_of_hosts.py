"""Ranks started by torchrun or srun, also on several hosts: they measure, report failures once, and listen where they must."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaleproof.simulator.run.files import load_run
from scaleproof.validator.netlab.lab import Netlab
from tests.validator import processes
from tests.validator.netlabs import lab_cluster, needs_netlab
from tests.validator.verdicts import at_night

pytestmark = pytest.mark.full

MODEL = "model: {kind: mlp, layers: 4, inputs: 32, hidden: 64, outputs: 16}\ncluster: cpu-2core\nbatch: 16\nsteps: 4\n"
RING = "strategy: {kind: data_parallel, workers: 2}\n"
PIPELINE = "strategy: {kind: pipeline, stages: 2, microbatches: 4}\n"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
FAULTY = str(Path(__file__).parents[1] / "joinfaulty.py")
# Of two ranks: rank 0's store, and gloo on both.
LISTENERS = 3
# One line of the kernel's table of TCP sockets: local address, and 0A where it listens.
LISTENING = re.compile(r"^\s*\d+: ([0-9A-F]+):([0-9A-F]{4}) \S+ 0A ", re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.yaml").write_text(MODEL + RING)
    (tmp_path / "b.yaml").write_text(MODEL + PIPELINE)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"], **more}


def run_all(commands: Sequence[Sequence[str]], folder: Path, *places: dict[str, str], timeout_s: float = 250) -> list[str]:
    """Runs commands at the same time until all have ended; what each printed on both streams, its exit code last."""
    with started(commands, folder, *places) as running:
        return [f"{process.communicate(timeout=timeout_s)[0].rstrip()}\nexit {process.returncode}" for process in running]


@contextmanager
def started(commands: Sequence[Sequence[str]], folder: Path, *places: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []
    try:
        for number, command in enumerate(commands):
            own = environment(**(places[number] if places else {}))
            running.append(
                subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        yield running
    finally:
        for process in running:
            descendants = processes.descendants(process.pid)
            process.kill()
            process.communicate()
            assert processes.wait_until(lambda: not any(map(processes.is_running, descendants)))  # noqa: B023


def on_this_machine(ranks: int, *arguments: str) -> list[str]:
    return [*TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), *arguments]


def ours(text: str) -> list[str]:
    """Lines that are not torchrun's about its own."""
    return [line for line in text.splitlines() if re.match(r"(scenario|a|b|rank|not measured|interrupted|.*--|MASTER)\b", line)]


def test_several_scenarios_run_in_one_group_and_only_rank_0_prints(folder: Path) -> None:
    command = [sys.executable, "-m", "scaleproof", "measure", "a.yaml", "b.yaml", "--verify", "--out", "out"]
    reported, silent = run_all([command] * 2, folder, slurm(0, 2), slurm(1, 2))
    assert reported.endswith("exit 0"), reported
    assert silent.strip() == "exit 0"
    assert [line.split()[0] for line in ours(reported)] == ["scenario", "a", "b"]
    for name in "ab":
        run = load_run(folder / "out" / name / "measured")
        assert run.verified is not None
        assert run.verified.deviation < run.verified.tolerance
        assert run.provenance["on"] == "cluster"
        assert run.ranks == 2
    before = sorted((path, path.stat().st_mtime_ns) for path in (folder / "out").rglob("*"))
    again, _ = run_all([[*command, "--resume"]] * 2, folder, slurm(0, 2), slurm(1, 2))
    assert again.count("measured before") == 2, again
    assert sorted((path, path.stat().st_mtime_ns) for path in (folder / "out").rglob("*")) == before


@pytest.mark.parametrize("fault", ["fail", "fail unseen"])
def test_a_failure_on_one_rank_is_reported_once_and_the_next_scenario_is_measured(fault: str, folder: Path) -> None:
    arguments = ["measure", "a.yaml", "b.yaml", "--timeout", "15", "--out", "out"]
    reported, _ = run_all([[sys.executable, FAULTY, fault, *arguments]] * 2, folder, slurm(0, 2), slurm(1, 2))
    assert reported.endswith("exit 1")
    (failure,) = (line for line in reported.splitlines() if line.startswith("a could not be measured"))
    assert "rank 1 (worker 1) failed in forward of step 3: ValueError: the weights are gone" in failure
    assert "up to step 2 are kept in out/a/measured" in failure
    assert load_run(folder / "out" / "a" / "measured").provenance["partial"] == "2 of 4 steps"
    assert "partial" not in load_run(folder / "out" / "b" / "measured").provenance


def test_a_hung_rank_is_named_and_the_others_end(folder: Path) -> None:
    arguments = ["measure", "b.yaml", "a.yaml", "--timeout", "15", "--out", "out"]
    (reported,) = run_all([on_this_machine(2, FAULTY, "hang", *arguments)], folder)
    assert "a could not be measured: rank 1 has not responded" in reported
    assert "partial" not in load_run(folder / "out" / "b" / "measured").provenance


def test_kill_9_of_a_rank_ends_the_others_and_keeps_finished_runs(folder: Path) -> None:
    arguments = ["measure", "b.yaml", "a.yaml", "--out", "out"]
    (reported,) = run_all([on_this_machine(2, FAULTY, "die", *arguments)], folder)
    assert reported.endswith("exit 1")
    assert "partial" not in load_run(folder / "out" / "b" / "measured").provenance


@pytest.mark.parametrize(
    ("ranks", "arguments", "message"),
    [
        (3, ["a.yaml"], "a: started as 3 ranks, but the strategy has 2; start 2 processes"),
        *at_night(
            (2, ["c.yaml"], "c.yaml: no such file"),
            (2, ["a.yaml", "--out", "a.yaml"], "--out a.yaml: "),
            (2, ["a.yaml", "--interface", "eth77"], "--interface eth77: .* has no such interface; give one of .*lo"),
        ),
    ],
)
def test_bad_input_ends_all_ranks(ranks: int, arguments: list[str], message: str, folder: Path) -> None:
    (reported,) = run_all([on_this_machine(ranks, "-m", "scaleproof", "measure", *arguments)], folder)
    assert reported.endswith("exit 1"), "torchrun's own"
    assert re.search(message, reported), reported
    assert reported.count("Traceback") == 1, "torchrun's own"


def slurm(rank: int, ranks: int, **more: str) -> dict[str, str]:
    """Environment variables that srun sets for a task; all tasks are on one node."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(ranks),
        "SLURM_LOCALID": str(rank),
        "SLURM_JOB_ID": str(os.getpid()),
        # each test has a port of its own
        "SLURM_STEP_ID": str(zlib.crc32(os.environ["PYTEST_CURRENT_TEST"].encode()) % 1000),
        "SLURM_STEP_NUM_TASKS": str(ranks),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_STEP_TASKS_PER_NODE": str(ranks),
    } | more


def test_a_port_in_use_gives_a_one_line_error(folder: Path) -> None:
    command = [sys.executable, "-m", "scaleproof", "measure", "a.yaml"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        place = slurm(0, 2, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        (reported,) = run_all([command], folder, place)
    expected = f"ranks cannot meet at 127.0.0.1:{port}: Address already in use; set MASTER_PORT to a free port"
    assert reported.splitlines() == [expected, "exit 2"]


def test_an_unreachable_rank_0_gives_a_one_line_error(folder: Path) -> None:
    command = [sys.executable, "-m", "scaleproof", "measure", "a.yaml", "--timeout", "2"]
    (reported,) = run_all([command], folder, slurm(1, 2))
    (line, end) = reported.splitlines()
    assert re.match(r"rank 1 could not connect at 127.0.0.1:\d+ within 2 s; is rank 0 running", line), reported
    assert end == "exit 1"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_ranks_listen_only_on_the_loopback_interface(folder: Path) -> None:
    """The store that rank 0 has, and gloo's sockets, as the kernel sees them while a rank hangs."""
    command = [sys.executable, FAULTY, "hang", "measure", "a.yaml"]
    with started([command] * 2, folder, slurm(0, 2), slurm(1, 2)) as running:
        pids = [process.pid for process in running]
        assert processes.wait_until(lambda: sum(len(listening(pid)) for pid in pids) >= LISTENERS)
        found = [address for pid in pids for address in listening(pid)]
    assert {address for address, _ in found} <= {"0100007F", "0000000000000000FFFF00000100007F"}


def listening(pid: int) -> list[tuple[str, str]]:
    """Local addresses and ports, in the kernel's hexadecimal, at which the process listens."""
    try:
        own = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    except OSError:
        return []
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line for table in tables for line in table.splitlines()[1:] if f"socket:[{line.split()[9]}]" in own]
    return [(found[1], found[2]) for row in rows if (found := LISTENING.match(row))]


@needs_netlab
@pytest.mark.parametrize(("hosts", "ranks"), [(2, 2), *at_night((4, 1))])
def test_torchrun_works_on_several_hosts(hosts: int, ranks: int, folder: Path) -> None:
    (folder / "c.yaml").write_text(MODEL + "strategy: {kind: hybrid, workers: 2, stages: 2, microbatches: 2}\n")
    with Netlab(lab_cluster(hosts)) as lab:
        static = [
            "--nnodes",
            str(hosts),
            "--nproc-per-node",
            str(ranks),
            "--master-addr",
            lab.address(0),
            "--master-port",
            "29500",
        ]
        command = ["-m", "scaleproof", "measure", "c.yaml", "--on", "cluster", "--verify", "--out", "out"]
        agents = [lab.command(host, [*TORCHRUN, *static, "--node-rank", str(host), *command]) for host in range(hosts)]
        reported = run_all(agents, folder)
    assert [one.splitlines()[-1] for one in reported] == ["exit 0"] * hosts, reported
    run = load_run(folder / "out" / "c" / "measured")
    assert run.ranks == hosts * ranks
    assert run.verified is not None
    assert run.verified.deviation < run.verified.tolerance


@needs_netlab
def test_srun_on_several_hosts_listens_only_on_their_network(folder: Path) -> None:
    with Netlab(lab_cluster(2)) as lab:
        point = {"MASTER_ADDR": lab.address(0), "MASTER_PORT": "29500", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
        places = [slurm(host, 2, SLURM_LOCALID="0", SLURM_NODEID=str(host), **point) for host in range(2)]
        command = [sys.executable, FAULTY, "hang", "measure", "a.yaml"]
        with started([lab.command(host, command) for host in range(2)], folder, *places) as running:
            pids = [process.pid for process in running]
            assert processes.wait_until(lambda: sum(len(listening(pid)) for pid in pids) >= LISTENERS)
            found = [listening(pid) for pid in pids]
    for host, addresses in enumerate(found):
        own = "".join(f"{int(part):02X}" for part in reversed(lab.address(host).split(".")))
        assert {address[-8:] for address, _ in addresses} == {own}


@needs_netlab
def test_an_unreachable_host_is_reported(folder: Path) -> None:
    """Kill -9 of all that runs on one host: the others end within their timeout."""
    with Netlab(lab_cluster(2)) as lab:
        point = {"MASTER_ADDR": lab.address(0), "MASTER_PORT": "29500", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
        places = [slurm(host, 2, SLURM_LOCALID="0", SLURM_NODEID=str(host), **point) for host in range(2)]
        command = [sys.executable, FAULTY, "die", "measure", "b.yaml", "a.yaml", "--timeout", "15", "--out", "out"]
        reported = run_all([lab.command(host, command) for host in range(2)], folder, *places)
    assert reported[0].endswith("exit 1")
    assert "a could not be measured: rank 1 has not responded for 20 s" in reported[0]
    assert load_run(folder / "out" / "b" / "measured").ranks == 2
