"""Planted faults that `diagnose` names from traces, logs and tests of collectives alone, and how well it finds their cost.

Run from the repository: python -m benchmarks.diagnose [SEEDS]   (10 seeds; a minute on a quiet core)

Each kind of fault is planted with each seed, which draws the number of ranks, the tensor-parallel degree, the noise of kernels,
the place and the size of the fault. Named: the first finding has the cause and the place. Wrong: another place is named, or
anything in a quiet job. Cost: relative error of the loss against the same job without the fault.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Finding
from scaleproof.validator.diagnosis.diagnose import diagnose
from tests.validator.calibration.imports.logs import nccl_log
from tests.validator.diagnosis.jobs import Job, megatron_log

_STEPS = 12


class _Case(NamedTuple):
    """A fault. ranks, hosts: its places. job: writes traces; otherwise files are written. loss_s: where there is no job."""

    kind: str
    cause: str
    ranks: tuple[int, ...]
    job: Job | None = None
    hosts: tuple[str, ...] = ()
    loss_s: float = 0.0
    since: int = 1


def _traced(seed: int) -> Iterator[_Case]:
    """Faults of traced jobs."""
    draw = np.random.default_rng(seed)
    ranks, tensor = int(draw.choice([8, 16])), int(draw.choice([1, 2]))
    one, other = map(int, draw.choice(ranks, 2, replace=False))
    factor, late_s, since = float(draw.uniform(1.12, 1.5)), float(draw.uniform(0.008, 0.05)), int(draw.integers(5, 9))
    common: dict[str, Any] = {
        "seed": seed, "ranks": ranks, "tensor": tensor, "steps": _STEPS, "per_host": ranks // 2,
        "noise": float(draw.choice([0.005, 0.01, 0.02])),
    }  # fmt: skip

    def slow(rank: int, step: int) -> float:
        return factor if rank == one else 1.0

    def late(rank: int, step: int) -> float:
        return late_s if rank == one else 0.0

    yield _Case("slow device", "slow device", (one,), Job(**common, compute=slow))
    throttled = Job(**common, compute=lambda rank, step: factor if rank == one and step >= since else 1.0)
    yield _Case("throttling from the middle", "throttling", (one,), throttled, since=since)
    hot = Job(**common, compute=lambda rank, _: factor if rank // (ranks // 2) == 1 else 1.0)
    yield _Case("slow host of several ranks", "slow device", tuple(range(ranks // 2, ranks)), hot)
    yield _Case("late loader or start", "input", (one,), Job(**common, late_s=late))
    yield _Case("busy host", "slow host", (one,), Job(**common, gap_s=late))
    yield _Case("imbalance", "imbalance", (one,), Job(**common, work=slow))
    uneven = Job(**common, compute=lambda rank, step: 1.5 if rank == one and (7919 * step + seed) % 5 < 2 else 1.0)
    yield _Case("jitter of a rank", "jitter", (one,), uneven)
    stalls = Job(**common, late_s=lambda rank, step: 0.2 if rank == one and step % 4 == 2 else 0.0)
    yield _Case("stalls of a rank", "stalls", (one,), stalls)
    pairs = Job(
        **{**common, "ranks": 16, "tensor": 2, "per_host": 8}, link=lambda who: 2.5 if len(who) == 2 and one in who else 1
    )
    yield _Case("slow link of a group", "slow link", (one,), pairs)
    both = Job(**common, compute=slow, late_s=lambda rank, _: late_s if rank == other else 0.0)
    yield _Case("two faults", "", (one, other), both)
    clocks = Job(**common, clock_s=lambda rank: 3.0 * rank)
    yield _Case("quiet, clocks off by seconds", "quiet", (), clocks)
    yield _Case("quiet, three steps", "quiet", (), Job(**{**common, "seed": seed + 1000, "steps": 4}))


def _files(seed: int, folder: Path) -> Iterator[_Case]:
    """Faults in logs and in tests of pairs; writes the files of each before it is yielded."""
    draw = np.random.default_rng(seed)
    noise, place = float(draw.choice([0.003, 0.01, 0.03])), np.arange(200)
    steps_s = 0.6 * np.exp(noise * draw.standard_normal(200))
    change, at, period = float(draw.uniform(0.08, 0.4)), int(draw.integers(40, 160)), int(draw.integers(8, 30))
    path = folder / "train.log"
    megatron_log(path, (steps_s * np.where(place < at, 1, 1 + change)).tolist())
    yield _Case("log: slower since", "slower since", (), loss_s=0.6 * change)
    megatron_log(path, (steps_s + np.where(place % period == period - 1, 3.0, 0.0)).tolist())
    yield _Case("log: periodic stall", "periodic stall", (), loss_s=3.0 * (200 // period) / 199)
    megatron_log(path, (steps_s * (1 + change * place / 200)).tolist())
    yield _Case("log: drift", "drift", (), loss_s=0.6 * change / 2)
    megatron_log(path, steps_s.tolist())
    yield _Case("log: quiet", "quiet", ())
    path.unlink()
    slow = int(draw.integers(1, 7))
    for one in range(1, 7):
        hosts = [f"gpu{one}"] * 8 + [f"gpu{one % 6 + 1}"] * 8
        rate_Bps = 4.6e10 * float(draw.uniform(0.98, 1.02)) / (1.5 if slow in (one, one % 6 + 1) else 1.0)
        (folder / f"pair{one}.log").write_text(nccl_log("all_reduce", hosts, 2e-5, rate_Bps))
    yield _Case("pairs: slow host", "slow link", (), hosts=(f"gpu{slow}",))


def _is_named(case: _Case, faults: tuple[Finding, ...]) -> bool:
    if case.cause == "quiet":
        return not faults
    if not case.cause:
        return set(case.ranks) <= {rank for fault in faults[:3] for rank in fault.ranks}
    if not faults or faults[0].cause != case.cause:
        return False
    return set(case.ranks) <= set(faults[0].ranks) and set(case.hosts) <= set(faults[0].hosts)


def _accuses(case: _Case, faults: tuple[Finding, ...]) -> bool:
    """Whether a rank or host is named that has no fault; a link has two ends."""
    ranks = {rank for fault in faults for rank in fault.ranks if fault.cause != "slow link"}
    hosts = {host for fault in faults for host in fault.hosts if not fault.ranks}
    return bool(ranks - set(case.ranks) or hosts - set(case.hosts)) or (case.cause == "quiet" and bool(faults))


def _loss_s(case: _Case) -> float:
    """Seconds that the fault adds to each step since it began."""
    if case.job is None or len(case.ranks) != 1:
        return case.loss_s
    healthy = Job(case.job.seed, case.job.ranks, case.job.tensor, case.job.steps, noise=case.job.noise)
    healthy.events()
    return float(np.mean(case.job.step_s[case.since :]) - np.mean(healthy.step_s[case.since :]))


def main() -> None:
    """Prints a row for each kind."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    named: dict[str, list[bool]] = {}
    wrong: dict[str, int] = {}
    errors: dict[str, list[float]] = {}

    def judge(case: _Case, folder: Path) -> None:
        faults = diagnose([folder], lambda _: None)[0].faults
        named.setdefault(case.kind, []).append(_is_named(case, faults))
        wrong[case.kind] = wrong.get(case.kind, 0) + _accuses(case, faults)
        loss_s = _loss_s(case)
        if loss_s and named[case.kind][-1] and faults[0].loss_s:
            errors.setdefault(case.kind, []).append(abs(faults[0].loss_s / loss_s - 1))

    for seed in range(seeds):
        for case in _traced(seed):
            with tempfile.TemporaryDirectory() as folder:
                assert case.job is not None
                case.job.write(Path(folder))
                judge(case, Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            for case in _files(seed, Path(folder)):
                judge(case, Path(folder))
    print(f"{'kind':<30} {'named first':>12} {'wrong':>6} {'median error of cost':>21} {'worst':>7}")
    for kind, hits in named.items():
        own = errors.get(kind, [])
        cost = f"{statistics.median(own):>21.1%} {max(own):>7.1%}" if own else f"{'':>29}"
        print(f"{kind:<30} {f'{sum(hits)} of {len(hits)}':>12} {wrong[kind]:>6} {cost}".rstrip())


if __name__ == "__main__":
    main()
