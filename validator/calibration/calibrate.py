"""Calibration of a cluster: runs probes on it and fits a cluster file to their points."""

from __future__ import annotations

import gc
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.validator.calibration.cluster_file.from_points import CalibrationFacts, cluster_from_points, provenance
from scaleproof.validator.calibration.fit.gpu import machine
from scaleproof.validator.calibration.gpu_sizes import GpuSizes
from scaleproof.validator.calibration.plan import ProbePlan, Task, tasks
from scaleproof.validator.calibration.sites import Site, site
from scaleproof.validator.kernels.from_points import rows
from scaleproof.validator.launch.launch import require_torch, run_on_ranks
from scaleproof.validator.launch.rank_environment import ContactLostError
from scaleproof.validator.measure import MeasureOptions, On, where_to
from scaleproof.validator.probe.points import FAILED, Point
from scaleproof.validator.record import provenance as environment
from scaleproof.validator.record.cpu_usage import Usage, foreign_loads
from scaleproof.validator.record.provenance import disturbance

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CalibrationResult:
    """cluster: data of its YAML file. points: measurements that it was fitted to. notes: outliers and what was left out, a line
    each. kernels: rows of a table of kernels, of those timed on GPUs."""

    cluster: Mapping[str, Any]
    points: Sequence[Point]
    notes: Sequence[str]
    kernels: Sequence[Mapping[str, str | float]] = ()


def calibrate(
    plan: ProbePlan,
    on: On | None = None,
    base: Mapping[str, Any] | None = None,
    hosts: int | None = None,
    watch: MeasureOptions | None = None,
    progress: AbstractContextManager[Progress] | None = None,
) -> CalibrationResult | None:
    """Runs the planned probes and fits a cluster to their points. None on a rank that was started from outside and is not rank
    0.

    base: data of the YAML file that describes the cluster; required for netlab and for several machines. Without one, a plan of
    GPU probes describes this machine's GPUs itself, with a rank on each. hosts: number of hosts of a lab. progress: is called
    with a text before each probe. Raises InputError and RunError as `site` and `cluster_from_points` do.
    """
    if plan.gpu and base is None:
        base = _this_machine(plan.gpu, on)
    if base is None and plan.names and "layer" not in plan.names:
        raise InputError(f"--probe {plan.names[0]}: the device of a rank is not known; add --probe layer, or give --cluster")
    cluster = Cluster.model_validate(base) if base else None
    if plan.gpu and cluster and cluster.node.cores is not None:
        raise InputError(
            f"--gpu: the nodes of {cluster.name or 'the cluster'} compute on {cluster.node.cores:g} cores; leave it out"
        )
    ranks = cluster.node.devices if plan.gpu and cluster else plan.ranks
    with site(on, cluster, ranks, watch or MeasureOptions(), hosts) as where:
        planned = tasks(plan, where, cluster)
        if not where.is_reporter:
            probe(planned, where, plan.timeout_s, lambda _: None)
            return None
        with progress or nullcontext(lambda _: None) as report:
            probed = probe(planned, where, plan.timeout_s, report)
    origin = provenance() | {"on": where.on} | where.lab
    if plan.models:
        origin["models"] = ", ".join(model.name for model in plan.models)
    if base:
        origin["described by"] = str(base.get("name", "a file"))
    if probed.load is not None:
        origin |= disturbance(probed.load, "calibration", "calibrate")
    origin["probes"] = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in probed.took_s.items())
    context = CalibrationFacts(where.on, where.nodes, plan.precision, base, origin, plan.gpu is not None)
    fitted, notes = cluster_from_points(probed.points, context)
    return CalibrationResult(fitted, [*probed.points, context.point()], notes, kernels_of(fitted, probed.points, context))


def kernels_of(
    cluster: Mapping[str, Any], points: Sequence[Point], facts: CalibrationFacts
) -> Sequence[Mapping[str, str | float]]:
    """Rows of a table of the kernels that were timed on GPUs; empty for a calibration of cores. cluster: data of its file."""
    if not facts.on_gpus:
        return ()
    source = f"scaleproof calibrate, {facts.provenance.get('date', '')}, torch {facts.provenance.get('torch', '')}"
    return rows(points, cluster["device"]["name"], source)


def _this_machine(sizes: GpuSizes, on: On | None) -> dict[str, Any]:
    """Description of this machine's GPUs. Raises InputError if other machines take part, or if there is no GPU."""
    from scaleproof.validator.probe import gpu

    if where_to(on) != "local":
        raise InputError("--gpu: the ranks' machines are not known; describe them in a file and name it with --cluster")
    require_torch()
    return machine(run_on_ranks(gpu.facts, 1, accelerator=True)[0], sizes)


class _ProbeRecord(NamedTuple):
    """What a rank records of a probe: its points, which only the first rank has, the rank's machine, and the usage of its
    processors meanwhile."""

    points: Sequence[Mapping[str, Any]]
    machine: str
    usage: dict[str, Any]

    @classmethod
    def all_of(cls, recorded: bytes) -> list[Self]:
        """Those of probes that have ended, each in a line; a rank that is killed may leave a part of one."""
        return [cls(*json.loads(line)) for line in recorded.splitlines(keepends=True) if line.endswith(b"\n")]


def observe(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
    """Runs probes on a rank one after the other, and records what each found; each is a step of the rank's status. calls: their
    functions and arguments."""
    import torch

    from scaleproof.validator.launch.rank import here

    for number, (function, arguments) in enumerate(calls, start=1):
        here().status.begin_step(number)
        began = Usage.now()
        points = function(*arguments)
        # every rank has the points of all
        own = points if here().rank == 0 else []
        observed = _ProbeRecord(own, environment.machine(), Usage.now().since(began))
        here().record(json.dumps(observed).encode() + b"\n")
        # modules and their hooks form reference cycles; torch keeps the memory of what is freed
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()


@dataclass
class ProbeResults:
    """points: of all probes that ended, and for each that failed one without times that gives the reason. took_s: by probe.
    loads: of each task, the share of the busiest machine's cores that other work used, and seconds."""

    points: list[Point] = field(default_factory=list)
    took_s: dict[str, float] = field(default_factory=dict)
    loads: list[tuple[float, float]] = field(default_factory=list)

    def add(self, task: Task, ranks: Sequence[_ProbeRecord]) -> None:
        """Adds a task that has ended. ranks: what each of its ranks recorded."""
        first, elapsed_s = ranks[0], float(ranks[0].usage["elapsed_s"])
        self.points += map(Point.of, first.points)
        self.took_s[task.name] = self.took_s.get(task.name, 0.0) + elapsed_s
        loads = foreign_loads([rank.machine for rank in ranks], [rank.usage for rank in ranks])
        self.loads += [(max(loads.values()), elapsed_s)] if loads else []

    @property
    def load(self) -> float | None:
        """Share of the cores that other work used, over all tasks; None if it is not known."""
        total_s = sum(seconds for _, seconds in self.loads)
        return sum(load * seconds for load, seconds in self.loads) / total_s if total_s else None


def probe(tasks: Sequence[Task], site: Site, timeout_s: float, progress: Progress) -> ProbeResults:
    """Runs the tasks, those on the same number of ranks in the same processes.

    A failed one does not end the calibration, since new processes run those after it. Stops after a task whose ranks no longer
    respond, because none are left to run the rest.
    """
    probed = ProbeResults()
    for left in _batches(tasks, site):
        while left:
            error = _run(left, probed, site, timeout_s, progress)
            if isinstance(error, ContactLostError):
                return probed
    return probed


def _batches(tasks: Sequence[Task], site: Site) -> Iterable[list[Task]]:
    """Tasks that share processes, in their order: those on the same number of ranks where processes are started for them."""
    if not site.starts_ranks:
        return [[task] for task in tasks]
    by_ranks: defaultdict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        by_ranks[task.ranks or site.ranks].append(task)
    return by_ranks.values()


def _run(left: list[Task], probed: ProbeResults, site: Site, timeout_s: float, progress: Progress) -> RankError | None:
    """Runs tasks until one fails; removes it and those before it. Returns the error."""
    reported = 0

    def report(number: int) -> None:
        nonlocal reported
        for task in left[reported:number]:
            progress(task.what)
        reported = max(reported, number)

    report(1)
    begin_s = time.monotonic()
    calls = [(task.function, (*task.arguments, task.budget_s)) for task in left]
    # waiting for one another counts as no progress and may last for the whole budget
    within_s = timeout_s + max(task.budget_s for task in left)
    recorded, error = site.recorded_by_all(observe, calls, ranks=left[0].ranks, timeout_s=within_s, progress=report)
    # on a rank that takes no part, nothing is recorded
    ended = list(zip(*map(_ProbeRecord.all_of, recorded), strict=False))
    for task, ranks in zip(left, ended, strict=False):
        probed.add(task, ranks)
    if error is None:
        left.clear()
        return None
    failed = min(len(ended), len(left) - 1)
    report(failed + 1)
    task, spent_s = left[failed], sum(ranks[0].usage["elapsed_s"] for ranks in ended)
    # the point names the task
    why = str(error).replace(f" of step {failed + 1}", "", 1)
    probed.points.append(Point(task.name, task.what, "", (), "", 0.0, "", (), f"{FAILED}: {why}"))
    probed.took_s[task.name] = probed.took_s.get(task.name, 0.0) + time.monotonic() - begin_s - spent_s
    del left[: failed + 1]
    return error
