"""Planted faults in traces: what is named first, how much it costs, and that nothing is named in quiet jobs."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaleproof.simulator.analysis.diagnosis import Diagnosis
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.diagnosis.diagnose import diagnose
from tests.validator.diagnosis.jobs import FORWARD, Job, Pipeline
from tests.validator.reconciliation.jobs.traces import TraceWriter


def _found(folder: Path) -> Diagnosis:
    return diagnose([folder], lambda _: None)[0]


def _cost_s(job: Job, among: slice = slice(1, None)) -> float:
    """Mean seconds that its faults add to some of a job's steps."""
    healthy = Job(job.seed, job.ranks, job.tensor, job.steps, noise=job.noise)
    healthy.events()
    return float(np.mean(job.step_s[among]) - np.mean(healthy.step_s[among]))


FAULTS: dict[str, Callable[[int], Job]] = {
    "slow device": lambda rank: Job(rank, compute=lambda one, _: 1.25 if one == rank else 1.0),
    "input": lambda rank: Job(rank, late_s=lambda one, _: 0.02 if one == rank else 0.0),
    "slow host": lambda rank: Job(rank, gap_s=lambda one, _: 0.02 if one == rank else 0.0),
    "imbalance": lambda rank: Job(rank, work=lambda one, _: 1.3 if one == rank else 1.0),
    "slow link": lambda rank: Job(rank, link=lambda members: 3.0 if len(members) == 2 and rank in members else 1.0),
}


@pytest.mark.parametrize("cause", FAULTS)
@pytest.mark.parametrize("rank", [3, 11, pytest.param(0, marks=pytest.mark.full), pytest.param(14, marks=pytest.mark.full)])
def test_the_rank_with_a_fault_is_named_first_with_its_cost(cause: str, rank: int, tmp_path: Path) -> None:
    job = FAULTS[cause](rank)
    job.write(tmp_path)
    found = _found(tmp_path)
    (fault,) = found.faults
    assert fault.cause == cause
    assert rank in fault.ranks
    assert fault.hosts == (f"gpu{rank // 8:03}",)
    assert fault.loss_s == pytest.approx(_cost_s(job), rel=0.2)
    assert found.headline == fault.words


def test_a_rank_that_computes_slower_is_named_with_host_device_and_share(tmp_path: Path) -> None:
    FAULTS["slow device"](11).write(tmp_path)
    assert _found(tmp_path).headline.startswith("rank 11 (gpu001, GPU 3) computes 2")


def test_a_device_that_throttles_is_named_with_its_first_slow_step(tmp_path: Path) -> None:
    job = Job(1, steps=12, compute=lambda rank, step: 1.3 if rank == 5 and step >= 7 else 1.0)
    job.write(tmp_path)
    (fault,) = _found(tmp_path).faults
    # the first marked step is warm-up
    assert (fault.cause, fault.ranks, fault.since) == ("throttling", (5,), "from step 7 of 11 on")
    assert fault.loss_s == pytest.approx(_cost_s(job, slice(7, None)), rel=0.2)


@pytest.mark.parametrize(("seed", "noise"), [(2, 0.03), (9, 0.06)])
def test_ranks_that_become_slower_together_are_not_accused(seed: int, noise: float, tmp_path: Path) -> None:
    job = Job(
        seed, ranks=4, tensor=1, steps=42, layers=1, per_host=1, noise=noise, compute=lambda _, step: 1.018 ** min(step, 39)
    )
    job.write(tmp_path)
    (fault,) = _found(tmp_path).faults
    assert (fault.cause, fault.ranks) == ("drift", ())


@pytest.mark.parametrize(
    ("steps", "slow"), [(12, (1, 4, 7, 10)), pytest.param(26, (3, 6, 8, 11, 16, 20, 23, 24, 25), id="the last three by chance")]
)
def test_a_rank_that_is_slow_in_single_steps_is_named(steps: int, slow: tuple[int, ...], tmp_path: Path) -> None:
    Job(2, steps=steps, layers=4, compute=lambda rank, step: 1.5 if rank == 5 and step in slow else 1.0).write(tmp_path)
    fault = _found(tmp_path).faults[0]
    assert (fault.cause, fault.ranks) == ("jitter", (5,))


def test_a_stall_of_all_ranks_is_no_rank_s_fault(tmp_path: Path) -> None:
    Job(2, steps=16, late_s=lambda rank, step: 0.2 if step % 4 == 3 else 0.0).write(tmp_path)
    faults = _found(tmp_path).faults
    assert faults[0].cause == "periodic stall"
    assert not any(fault.ranks for fault in faults)


def test_a_rank_that_stalls_in_single_steps_is_named(tmp_path: Path) -> None:
    job = Job(2, steps=16, late_s=lambda rank, step: 0.2 if step % 4 == 3 and rank == 6 else 0.0)
    job.write(tmp_path)
    (fault,) = _found(tmp_path).faults
    assert (fault.cause, fault.ranks) == ("stalls", (6,))
    assert fault.loss_s == pytest.approx(_cost_s(job), rel=0.2)


def test_a_slow_host_is_named_once(tmp_path: Path) -> None:
    Job(3, compute=lambda rank, _: 1.2 if rank >= 8 else 1.0).write(tmp_path)
    (fault,) = _found(tmp_path).faults
    assert fault.where == "ranks 8 to 15 (gpu001)"


def test_two_faults_are_both_named(tmp_path: Path) -> None:
    job = Job(4, compute=lambda rank, _: 1.3 if rank == 2 else 1.0, late_s=lambda rank, _: 0.02 if rank == 9 else 0.0)
    job.write(tmp_path)
    causes = {(fault.cause, *fault.ranks) for fault in _found(tmp_path).faults[:3]}
    assert causes >= {("slow device", 2), ("input", 9)}


def _contended(folder: Path, slowdown: Callable[[int], float], ranks: int = 4) -> None:
    """Traces of ranks with kernels, of which some run next to a sum; another sum follows once all ranks are done. slowdown: of
    these kernels by rank."""
    summed: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 10**6, "dtype": "Float", "Group size": ranks}
    kernel_s, alone, together, hidden_s, exposed_s = 0.004, 10, 6, 0.02, 0.002
    step_s = kernel_s * (alone + together * max(map(slowdown, range(ranks)))) + exposed_s
    for rank in range(ranks):
        writer = TraceWriter()
        for step in range(4):
            at_s = began_s = 1.0 + step * step_s
            writer.kernel(
                "ncclDevKernel_AllReduce", at_s + alone * kernel_s, at_s + alone * kernel_s + hidden_s, 1, 20, **summed
            )
            for number in range(alone + together):
                seconds = kernel_s * (slowdown(rank) if number >= alone else 1.0)
                writer.kernel(FORWARD, at_s, at_s + seconds)
                at_s += seconds
            writer.kernel("ncclDevKernel_AllReduce", at_s, began_s + step_s, 1, 20, **summed)
            writer.host("user_annotation", f"ProfilerStep#{step}", began_s, began_s + step_s)
        writer.write(folder / f"rank{rank}.json.gz", rank, ranks)


def test_kernels_that_last_longer_next_to_communication_are_contention(tmp_path: Path) -> None:
    _contended(tmp_path, lambda rank: 1.3)
    found = _found(tmp_path)
    finding = found.findings[0]
    assert (finding.cause, finding.ranks) == ("contention", ())
    # a kernel that begins when the sum has ended is not next to it
    assert finding.loss_s == pytest.approx(4 * 0.004 * 0.3, rel=1e-3)
    assert not found.faults


def test_a_rank_that_is_slow_only_next_to_communication_is_contended(tmp_path: Path) -> None:
    _contended(tmp_path, lambda rank: 1.5 if rank == 2 else 1.05)
    (fault,) = _found(tmp_path).faults
    assert (fault.cause, fault.ranks) == ("contention", (2,))
    assert fault.loss_s == pytest.approx(6 * 0.004 * 0.45, rel=0.1)
    assert fault.is_fault


def test_a_rank_whose_core_others_use_is_slow_although_it_varies(tmp_path: Path) -> None:
    """Two to three times as long in every step, at random: a core that is shared is no jitter."""
    draw = np.random.default_rng(7).uniform(2.0, 3.0, 12)
    job = Pipeline(5, ranks=3, per_host=1, steps=12, compute=lambda rank, step: draw[step] if rank == 1 else 1.0)
    job.write(tmp_path)
    fault = _found(tmp_path).faults[0]
    assert (fault.cause, fault.ranks) == ("slow device", (1,))


def test_stages_that_wait_for_a_slow_one_are_not_accused(tmp_path: Path) -> None:
    job = Pipeline(5, ranks=4, per_host=4, compute=lambda rank, _: 1.25 if rank == 2 else 1.0)
    job.write(tmp_path)
    (fault,) = _found(tmp_path).faults
    assert (fault.cause, fault.ranks) == ("slow device", (2,))
    healthy = Pipeline(5, ranks=4)
    healthy.events()
    # most of the slow stage's excess is on the critical path
    assert fault.loss_s == pytest.approx(np.mean(job.step_s[1:]) - np.mean(healthy.step_s[1:]), rel=0.25)


def test_a_quiet_pipeline_has_no_faults(tmp_path: Path) -> None:
    Pipeline(6, ranks=8).write(tmp_path)
    assert not _found(tmp_path).faults


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_nothing_is_named_in_a_quiet_job_whose_clocks_differ_by_seconds(seed: int, noise: float, tmp_path: Path) -> None:
    Job(seed, ranks=4 * (1 + seed), tensor=1 + seed % 2, noise=noise, clock_s=lambda rank: 3.0 * rank).write(tmp_path)
    found = _found(tmp_path)
    assert not found.faults
    assert found.headline.startswith("nothing is slower than its peers")


def test_some_of_the_ranks_suffice(tmp_path: Path) -> None:
    FAULTS["slow device"](11).write(tmp_path, [1, 6, 11, 12])
    found = _found(tmp_path)
    assert found.faults[0].ranks == (11,)
    assert "traces of 4 of 16 ranks: the others cannot be named" in found.notes


@pytest.mark.full
def test_a_late_rank_is_named_in_traces_of_this_torch(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("real_ranks.py")), str(tmp_path), "1", "0.15"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = diagnose(sorted(tmp_path.glob("*.gz")), lambda _: None)[0]
    fault = found.faults[0]
    assert (fault.cause, fault.ranks) == ("input", (1,))
    assert fault.loss_s == pytest.approx(0.15, rel=0.2)


def test_bad_files_are_named_and_the_others_are_used(tmp_path: Path) -> None:
    paths = FAULTS["slow device"](11).write(tmp_path)
    text = gzip.decompress(paths[3].read_bytes())
    paths[3].write_bytes(gzip.compress(text[: len(text) // 2]))
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "notes.txt").write_text("no times here\n")
    Job(ranks=2, tensor=1).write(tmp_path, [0])[0].rename(tmp_path / "other.json.gz")
    FAULTS["slow device"](11).write(tmp_path, [0])
    found = _found(tmp_path)
    assert found.faults[0].ranks == (11,)
    notes = "\n".join(found.notes)
    assert "rank3.json.gz:1: not JSON from here on" in notes
    assert "left out: " in notes
    assert "empty.log:1: the file is empty" in notes
    assert "notes.txt: no line reports the time of an iteration" in notes
    assert "other.json.gz: of a job of 2 ranks, the others are of 16" in notes


def test_a_trace_without_steps_is_compared_as_a_whole(tmp_path: Path) -> None:
    for rank in range(4):
        writer = TraceWriter()
        seconds = 0.005 * (1.3 if rank == 2 else 1.0)
        for number in range(10):
            writer.kernel(FORWARD, number * 0.01, number * 0.01 + seconds)
        recorded: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 10**6, "dtype": "Float", "Group size": 4}
        writer.kernel("ncclDevKernel_AllReduce", 9 * 0.01 + seconds, 0.11, stream=20, **recorded)
        writer.write(tmp_path / f"rank{rank}.json.gz", rank, 4)
    found = _found(tmp_path)
    assert any("no steps found; the whole trace is compared as one" in note for note in found.notes)
    assert found.ranks[2].slowdown == pytest.approx(1.3)


# Categories and numbers of events, as releases of torch write them.
RELEASES: dict[str, tuple[dict[str, str], Callable[[float], float]]] = {
    "1.10": ({"kernel": "Kernel", "cuda_runtime": "Runtime", "user_annotation": "Operator"}, int),
    "2.1": ({"kernel": "kernel", "cuda_runtime": "cuda_runtime"}, int),
    "2.9": ({"kernel": "kernel", "cuda_runtime": "cuda_driver"}, lambda us: round(us, 3)),
    "2.9 of Intel": ({"kernel": "kernel", "cuda_runtime": "xpu_runtime"}, lambda us: round(us, 3)),
}


@pytest.mark.parametrize("release", RELEASES)
def test_traces_of_several_releases_of_torch_name_the_slow_rank(release: str, tmp_path: Path) -> None:
    categories, number = RELEASES[release]
    for path in FAULTS["slow device"](11).write(tmp_path):
        document = json.loads(gzip.decompress(path.read_bytes()))
        if release == "1.10":
            # neither hosts nor shapes of collectives
            del document["host_name"]
        for event in document["traceEvents"]:
            event["cat"] = categories.get(event["cat"], event["cat"])
            event["ts"], event["dur"] = number(event["ts"]), number(event["dur"])
        document["traceEvents"].append({"ph": "i", "s": "t", "name": "[memory]", "pid": 0, "tid": 0, "ts": 1, "args": {}})
        path.write_bytes(gzip.compress(json.dumps(document, indent=2).encode(), 1))
    assert re.match(r"rank 11 \((gpu001, )?GPU 3\) computes 2", _found(tmp_path).headline)


def test_a_second_trace_of_a_rank_is_left_out(tmp_path: Path) -> None:
    paths = Job().write(tmp_path)
    (tmp_path / "rank3-copy.json.gz").write_bytes(paths[3].read_bytes())
    assert any("a second trace of rank 3" in note for note in _found(tmp_path).notes)


def test_files_of_which_none_can_be_used_are_refused_with_each_reason(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"traceEvents": [')
    (tmp_path / "b.log").write_text("")
    with pytest.raises(InputError, match=r"a\.json:1: not JSON(?s:.*)b\.log:1: the file is empty"):
        _found(tmp_path)
