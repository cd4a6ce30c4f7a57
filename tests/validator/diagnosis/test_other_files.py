"""Findings from logs, tests of collectives, samples of devices and flight recorders."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaleproof.simulator.analysis.diagnosis import Diagnosis
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.diagnosis.diagnose import diagnose
from scaleproof.validator.reconciliation.jobs.iterations import StepSeries, findings
from tests.validator.calibration.imports.logs import nccl_log
from tests.validator.diagnosis.jobs import ADAM, FORWARD, Job, megatron_log


def _found(*paths: Path) -> Diagnosis:
    return diagnose(paths, lambda _: None)[0]


def _series(values: Sequence[float]) -> StepSeries:
    return StepSeries("a.log", "iteration", range(1, len(values) + 1), np.array(values))


def _noisy(seed: int, count: int = 200, noise: float = 0.01) -> Any:
    return 0.6 * np.exp(noise * np.random.default_rng(seed).standard_normal(count))


def test_a_job_that_became_slower_is_named_with_iteration_and_time(tmp_path: Path) -> None:
    steps_s = _noisy(0, 120) * np.where(np.arange(120) < 60, 1.0, 1.25)
    found = _found(megatron_log(tmp_path / "train.log", steps_s))
    (fault,) = found.faults
    assert found.headline.startswith("since iteration 61 (10:00:3")
    assert "(+2" in found.headline
    assert fault.loss_s == pytest.approx(0.15, rel=0.05)
    assert fault.share == pytest.approx(0.2, rel=0.05)
    assert fault.source == "train.log:61"


@pytest.mark.parametrize("seed", range(8))
def test_changes_stalls_and_drifts_are_found_at_any_noise(seed: int) -> None:
    noise = (0.003, 0.01, 0.02, 0.03)[seed % 4]
    at, period = 40 + 15 * seed, 10 + seed
    place = np.arange(200)
    (change,) = findings(_series(_noisy(seed, noise=noise) * np.where(place < at, 1, 1.2)))
    assert change.cause == "slower since"
    assert change.first == pytest.approx(at + 1, abs=2)
    (until,) = findings(_series(_noisy(seed, noise=noise) * np.where((place < 60) | (place >= 150), 1, 1.2)))
    assert until.first == pytest.approx(61, abs=2)
    assert until.last == pytest.approx(150, abs=2)
    (stall,) = findings(_series(_noisy(seed, noise=noise) + np.where(place % period == period - 1, 2.0, 0.0)))
    assert (stall.cause, stall.since) == ("periodic stall", f"every {period}")
    assert stall.loss_s == pytest.approx(2.0 * (200 // period) / 200, rel=0.1)
    (drift,) = findings(_series(_noisy(seed, noise=noise) * (1 + 0.002 * place)))
    assert drift.cause == "drift"
    # on average above the first step
    assert drift.loss_s == pytest.approx(0.6 * 0.002 * 199 / 2, rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_quiet_logs_have_no_findings(seed: int) -> None:
    assert not list(findings(_series(_noisy(seed, 50 + 40 * seed, (0.002, 0.01, 0.03)[seed % 3]))))


def test_step_times_that_vary_are_jitter() -> None:
    (found,) = findings(_series(_noisy(0, noise=0.15)))
    assert found.cause == "jitter"


def test_a_log_of_rates_gives_shares_without_seconds(tmp_path: Path) -> None:
    line = "[titan] 2026-01-05 10:{:02}:00,000 - root - INFO - step: {}  loss:  6.1  memory: 40.50GiB(50%)  tps: {}  mfu: 35%"
    path = tmp_path / "titan.log"
    path.write_text("\n".join(line.format(number, number, 6000 if number <= 30 else 4800) for number in range(1, 60)))
    (fault,) = _found(path).faults
    assert fault.words == "since iteration 31 (10:31:00) steps take +25.0 %"
    assert fault.loss_s is None
    assert fault.share == pytest.approx(0.2)


def _pair(folder: Path, one: int, other: int, slow: bool) -> None:
    hosts = [f"gpu{one:03}"] * 2 + [f"gpu{other:03}"] * 2
    rate_Bps = (2.3e10 if slow else 4.6e10) * (1 + 0.004 * one)
    (folder / f"{one}-{other}.log").write_text(nccl_log("all_reduce", hosts, 2e-5, rate_Bps))


def test_the_host_that_all_slow_pairs_have_in_common_is_named(tmp_path: Path) -> None:
    for one in range(1, 6):
        _pair(tmp_path, one, one + 1, slow=4 in (one, one + 1))
    found = _found(tmp_path)
    assert found.headline.startswith("gpu004 is in all 2 slow pairs of 5 logs: all-reduce reaches")
    assert found.faults[0].hosts == ("gpu004",)
    assert next((host.host, host.slow, host.logs) for host in found.hosts) == ("gpu004", 2, 2)


def test_two_slow_hosts_are_both_named(tmp_path: Path) -> None:
    pairs = [(1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 1)]
    for one, other in pairs:
        _pair(tmp_path, one, other, slow=bool({3, 7} & {one, other}))
    assert {fault.hosts for fault in _found(tmp_path).faults} == {("gpu003",), ("gpu007",)}


def test_a_slow_path_between_fast_hosts_accuses_neither(tmp_path: Path) -> None:
    for one, other in ((1, 2), (2, 3), (1, 3), (3, 4), (1, 4)):
        _pair(tmp_path, one, other, slow=(one, other) == (1, 2))
    _pair(tmp_path, 2, 4, slow=False)
    assert _found(tmp_path).headline.startswith("the path between gpu001 and gpu002 is slow, and both are fast with others")


def test_equal_pairs_accuse_nobody(tmp_path: Path) -> None:
    for one in range(1, 8):
        _pair(tmp_path, one, one + 1, slow=False)
    assert not _found(tmp_path).faults


def _samples(path: Path, MHz: Any, reasons: str = "0x0000000000000000") -> Path:
    lines = [
        "timestamp, index, name, clocks.current.sm [MHz], temperature.gpu, utilization.gpu [%], clocks_event_reasons.active"
    ]
    for second in range(40):
        for gpu in range(8):
            rate, bits = MHz(gpu, second), reasons if MHz(gpu, second) < 1500 else "0x0000000000000000"
            lines.append(f"2026/01/05 10:00:{second:02}.000, {gpu}, NVIDIA H100, {rate} MHz, 61, 98 %, {bits}")
    path.write_text("\n".join([*lines, "cut off"]))
    return path


def test_a_throttled_gpu_is_named_with_its_reason_and_time(tmp_path: Path) -> None:
    path = _samples(tmp_path / "gpu001.csv", lambda gpu, at: 1200 if gpu == 3 and at >= 20 else 1755, "0x0000000000000040")
    (fault,) = _found(path).faults
    assert fault.cause == "throttling"
    assert "GPU 3 (gpu001) runs at 1,200 MHz where 1,755 MHz are usual since 2026/01/05 10:00:20.000" in fault.words
    assert "hardware thermal limit" in fault.words
    assert not _found(_samples(tmp_path / "gpu002.csv", lambda gpu, at: 1755 + 15 * ((gpu + at) % 3))).faults


def test_a_low_clock_is_the_reason_of_the_slow_rank_on_that_device(tmp_path: Path) -> None:
    Job(ranks=16, compute=lambda rank, _: 1.4 if rank == 11 else 1.0).write(tmp_path)
    _samples(tmp_path / "smi-gpu001.csv", lambda gpu, at: 1200 if gpu == 3 else 1755, "0x0000000000000040")
    (fault,) = _found(tmp_path).faults
    assert (fault.cause, fault.ranks) == ("throttling", (11,))
    assert "rank 11 (gpu001, GPU 3) computes" in fault.words
    assert fault.words.endswith("runs at 1,200 MHz where 1,755 MHz are usual (hardware thermal limit, 61 °C)")


# Heads and rows of tables, as their tools write them.
TABLES = {
    "nvidia-smi dmon": (
        "# gpu   pwr gtemp mtemp    sm   mem   enc   dec   jpg   ofa  mclk  pclk\n"
        "# Idx     W     C     C     %     %     %     %     %     %   MHz   MHz",
        "    {gpu}   640    61    74    99    45     0     0     0     0  2619  {clock}",
    ),
    "nvidia-smi dmon -o DT": (
        "#Date       Time        gpu   pwr gtemp mtemp    sm   mem   enc   dec  mclk  pclk\n"
        "#YYYYMMDD   HH:MM:SS    Idx     W     C     C     %     %     %     %   MHz   MHz",
        " 20260105   10:00:{at:02}      {gpu}   640    61     -    99    45     0     0  2619  {clock}",
    ),
    "nvidia-smi dmon --format csv": ("#gpu, pwr, gtemp, sm, mclk, pclk", "{gpu}, 640, 61, 99, 2619, {clock}"),
    "dcgmi dmon": ("#Entity   SMCLK     TMPTR     GPUTL\nID", "GPU {gpu}     {clock}      60    99"),
    "dcgmi dmon, older": (
        "# Entity              SMCLK     TMPTR     GPUTL\n      Id",
        "    GPU {gpu}       {clock}      60    99",
    ),
}


@pytest.mark.parametrize("tool", TABLES)
def test_tables_of_samples_are_read(tool: str, tmp_path: Path) -> None:
    head, row = TABLES[tool]
    lines = [row.format(gpu=gpu, clock=1300 if gpu == 2 else 1755, at=at) for at in range(10) for gpu in range(4)]
    path = tmp_path / "gpu001.txt"
    path.write_text("\n".join([head, *lines[:20], head, *lines[20:]]))
    found = _found(path)
    assert found.headline.startswith("GPU 2 (gpu001) runs at 1,300 MHz where 1,755 MHz are usual")
    assert not found.notes


def test_scrapes_of_dcgm_exporter_name_host_and_reason(tmp_path: Path) -> None:
    label = (
        '{{gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="gpu00{host}"}} {value}'
    )
    metrics = {"SM_CLOCK": (1200, 1755), "GPU_TEMP": (88, 61), "GPU_UTIL": (100, 100), "CLOCK_THROTTLE_REASONS": (64, 0)}
    scrape = ""
    for name, (slow, usual) in metrics.items():
        scrape += f"# HELP DCGM_FI_DEV_{name} Help.\n# TYPE DCGM_FI_DEV_{name} gauge\n"
        for host in range(2):
            for gpu in range(8):
                value = slow if (host, gpu) == (1, 5) else usual
                scrape += f"DCGM_FI_DEV_{name}{label.format(gpu=gpu, host=host, value=value)}\n"
    path = tmp_path / "metrics.prom"
    path.write_text(scrape * 4)
    assert _found(path).headline == (
        "GPU 5 (gpu001) runs at 1,200 MHz where 1,755 MHz are usual (hardware thermal limit, 88 °C): compute of each step "
        "takes up to 46.2 % longer"
    )
    path.write_text(scrape)
    once = _found(path)
    assert not once.faults
    assert "fewer than 3 samples of each GPU" in once.notes[0]


def _entry(number: int, op: str, done: bool, group: str = "0", sizes: Sequence[int] = (1024,)) -> dict[str, Any]:
    return {
        "record_id": number, "process_group": [group, "default_pg"], "collective_seq_id": number,
        "profiling_name": f"nccl:{op}", "time_created_ns": (1767607200 + number) * 10**9, "input_sizes": [list(sizes)],
        "state": "completed" if done else "started", "is_p2p": False,
        "frames": [{"name": "step", "filename": "/job/train.py", "line": 88}],
    }  # fmt: skip


def _dump(path: Path, entries: Sequence[dict[str, Any]], groups: dict[str, list[int]], pickled: bool) -> None:
    about = {name: {"name": name, "desc": f"group_{name}", "ranks": str(ranks)} for name, ranks in groups.items()}
    document = {"version": "2.5", "entries": list(entries), "pg_config": about}
    path.write_bytes(pickle.dumps(document) if pickled else json.dumps(document).encode())


def test_the_rank_that_has_not_entered_a_collective_is_named(tmp_path: Path) -> None:
    for rank in range(8):
        entries = [_entry(number, "all_reduce", True) for number in range(1, 10)]
        entries += [] if rank == 5 else [_entry(10, "all_gather", False)]
        _dump(tmp_path / f"nccl_trace_rank_{rank}", entries, {"0": list(range(8))}, pickled=rank % 2 == 0)
    found = _found(tmp_path)
    assert found.headline.startswith(
        "rank 5 has not entered all_gather 10 of group_0, in which 7 ranks wait since 10:00:10 UTC"
    )


def test_a_rank_that_waits_in_another_group_is_a_victim(tmp_path: Path) -> None:
    """Rank 1 is missing in group 0, since it waits in group 1 for rank 3."""
    groups = {"0": [0, 1], "1": [1, 3]}
    calls = {0: [_entry(1, "all_reduce", False)], 1: [_entry(1, "all_gather", False, "1")], 3: [_entry(1, "x", True, "2")]}
    for rank, entries in calls.items():
        _dump(tmp_path / f"nccl_trace_rank_{rank}", entries, groups, pickled=True)
    assert [fault.ranks for fault in _found(tmp_path).faults] == [(3,)]


def test_a_rank_that_calls_another_collective_is_named(tmp_path: Path) -> None:
    for rank in range(4):
        sizes = (2048,) if rank == 2 else (1024,)
        _dump(tmp_path / f"nccl_trace_rank_{rank}", [_entry(1, "all_reduce", False, sizes=sizes)], {"0": [0, 1, 2, 3]}, True)
    assert _found(tmp_path).headline.startswith("rank 2 called all_reduce [[2048]] where the other ranks of group_0 called")


def test_dumps_of_finished_collectives_have_no_findings(tmp_path: Path) -> None:
    for rank in range(4):
        _dump(tmp_path / f"nccl_trace_rank_{rank}", [_entry(1, "all_reduce", True)], {"0": [0, 1, 2, 3]}, True)
    assert not _found(tmp_path).findings


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": _Harmful()}))
    with pytest.raises(InputError, match=r"it names \w+\.mkdir, which plain data does not"):
        _found(tmp_path / "nccl_trace_rank_0")
    assert not (tmp_path / "harmed").exists()


def _nsight(path: Path, slowdown: float) -> None:
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, correlationId INTEGER, "
            "demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER)"
        )
        base.execute("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER)")
        names = [FORWARD, ADAM, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"]
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(names)))
        at = 0
        for step in range(4):
            begin = at
            for name, length in ((0, round(8e6 * slowdown)), (2, round(2e6 + 8e6 * (1.3 - slowdown))), (1, 10**6)):
                row = (at, at + length, 0, step, name, 128, 1, 1)
                base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                at += length
            base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, NULL, 7)", (begin, at - 1, f"step {step}"))


def test_exports_of_nsight_systems_are_traces(tmp_path: Path) -> None:
    for rank in range(4):
        _nsight(tmp_path / f"rank{rank}.sqlite", 1.3 if rank == 2 else 1.0)
    fault = _found(tmp_path).faults[0]
    assert (fault.cause, fault.ranks) == ("slow device", (2,))
    (tmp_path / "rank9.sqlite").write_bytes(b"SQLite format 3\0" + b"damaged" * 99)
    assert any("rank9.sqlite: cannot be read" in note for note in _found(tmp_path).notes)


# Tables of `nsys export --type sqlite` of release 2024.5, without columns of other kinds of events.
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
    blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
    gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,
    color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER,
    int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER,
    jsonText TEXT, binaryData TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,
    nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 'x', 'Hostname', 1, 'gpu001');
"""


def test_a_report_of_a_node_has_the_ranks_of_all_its_processes(tmp_path: Path) -> None:
    """Processes have the same numbers of launches, and clocks of their own steps."""
    with closing(sqlite3.connect(tmp_path / "node.sqlite")) as base, base:
        base.executescript(SCHEMA)
        names = [FORWARD, ADAM, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"]
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(names)))
        for rank in range(4):
            process, slowdown, at, launches = (1 << 48) | (100 + rank) << 24, 1.3 if rank == 2 else 1.0, 0, 0
            for step in range(4):
                begin = at
                for name, length in ((0, round(8e6 * slowdown)), (2, round(2e6 + 8e6 * (1.3 - slowdown))), (1, 10**6)):
                    launches += 1
                    kernel = (at, at + length, rank, 1, None, 7, launches, process, name, name, name)
                    values = (*kernel, None, None, 32, 128, 1, 1, 256, 1, 1, 0, 0, 0, 0, 0, None, None, None)
                    base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(values))})", values)
                    launch = (at, at + 1000, 0, process | 7, launches, 0, 0, None)
                    base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?, ?)", launch)
                    at += length
                mark = (begin, at - 1, 59, f"step {step}", process | 7)
                base.execute("INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (?, ?, ?, ?, ?)", mark)
    found = _found(tmp_path / "node.sqlite")
    assert found.files == ("4 traces",)
    assert not found.notes
    assert found.headline.startswith("rank 2 (gpu001, GPU 2) computes 26.7 % slower than its peers")


def test_dumps_of_all_releases_of_torch_are_read(tmp_path: Path) -> None:
    """torch 2.2: a list of entries; 2.3: a mapping, groups by number; 2.4 and 2.5: named groups; JSON since 2.6."""
    frames = [{"name": "step", "filename": "/job/train.py", "line": 88}]
    done = {"profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "frames": frames, "time_created_ns": 10**18}

    def entries(release: int, rank: int) -> list[dict[str, Any]]:
        count = 3 if rank == 1 else 4
        common: dict[int, dict[str, Any]] = {2: {"pg_id": 0, "seq_id": 1}, 3: {"pg_name": "0", "seq_id": 1, "is_p2p": False}}
        later = {"process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "is_p2p": False}
        numbered = common.get(release, later)
        sequence = "seq_id" if release < 4 else "collective_seq_id"
        states = ["completed"] * 3 + ["started"]
        return [{**done, **numbered, sequence: number + 1, "state": states[number]} for number in range(count)]

    for release in (2, 3, 4, 6):
        folder = tmp_path / str(release)
        folder.mkdir()
        for rank in range(4):
            about = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}} if release > 3 else {}
            document: Any = {"version": "2.4", "entries": entries(release, rank), **about}
            document = document["entries"] if release == 2 else document
            content = json.dumps(document).encode() if release == 6 else pickle.dumps(document)
            (folder / f"nccl_trace_rank_{rank}").write_bytes(content)
        headline = _found(folder).headline
        assert headline.startswith("rank 1 has not entered all_reduce 4 of "), release
        assert "train.py:88" in headline
