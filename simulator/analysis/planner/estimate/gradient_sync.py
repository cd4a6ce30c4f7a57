"""Seconds of sums of gradients, and of gathers of sharded states and parameters, for stages of a model on groups of ranks.

What a stage sums depends on how its layers are sharded and where buckets close: its pattern. How long that takes depends on the
group of ranks as well. Both are found once for all configurations that have them in common.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from scaleproof.simulator.analysis.planner.estimate.configurations import Space, Values
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerTimes, StageCut
from scaleproof.simulator.analysis.planner.estimate.transfers import SecondsOf, TransferTimes
from scaleproof.simulator.cluster.collectives.groups import Group, LinkLevel, Op
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import V_SHAPED
from scaleproof.simulator.strategy.data_parallel.buckets import REPLICA_GROUPS, RankLayers, SyncUnit
from scaleproof.simulator.strategy.job import Job

# Number of collectives by name of their group of ranks and size in bytes.
_Collectives = Mapping[tuple[str, float], int]
# Operations in place of these where ranks own whole tensors.
_OF_WHOLE_TENSORS: Final[dict[Op, Op]] = {"reduce_scatter": "all_reduce", "all_gather": "broadcast"}


class _Pattern(NamedTuple):
    """Collectives of the ranks that have a stage: all sums of a step's last pass, those of the unit whose gradients are
    complete last, gathers before a forward and before a backward pass, the first of a forward pass, and gathers after the step.

    first: layers of the unit whose gradients are complete first. parameters: trained ones, by names of groups.
    """

    sums: _Collectives
    last: _Collectives
    gathers: _Collectives
    again: _Collectives
    opening: _Collectives
    after: _Collectives
    first: range
    parameters: tuple[int, int]


class StageSync(NamedTuple):
    """Seconds of a stage's collectives, as in `_Pattern`; begin, stop: layers of the unit whose gradients are complete first.
    replicated, experts: trained parameters."""

    sums_s: float
    last_s: float
    gathers_s: float = 0.0
    again_s: float = 0.0
    opening_s: float = 0.0
    after_s: float = 0.0
    begin: int = 0
    stop: int = 0
    replicated: int = 0
    experts: int = 0


class _Groups(NamedTuple):
    """Ranks that sum gradients, and the number of equivalent groups on the same nodes, by name. sharing: factor on the time of
    large sums if the groups of all stages sum at the same time. seconds_of: of collectives by operation and name."""

    by_name: Mapping[str, tuple[Group, int]]
    sharing: float
    seconds_of: dict[tuple[Op, str, str | None], SecondsOf]


class RankSync(NamedTuple):
    """Gradient synchronisation of ranks: stages of each kind; seconds of the sum of the gradients of weights that the first and
    the last stage share; the factor on all times if the groups of all stages share links; the links that limit sums."""

    kinds: Sequence[StageSync]
    copied_s: float
    sharing: float
    level: LinkLevel


class SyncTimes:
    """Times gradient synchronisation of configurations, equal parts once."""

    def __init__(self, space: Space, layers: LayerTimes, transfers: TransferTimes) -> None:
        self._space, self._layers, self._transfers = space, layers, transfers
        self._zero_1 = space.scenario.framework.zero_1
        self._rank_layers: dict[Any, RankLayers] = {}
        self._patterns: dict[Any, list[_Pattern]] = {}
        self._groups: dict[Any, _Groups] = {}
        self._stages: dict[Any, list[StageSync]] = {}

    def ranks(self, values: Values, cut: StageCut) -> RankSync:
        """The gradient synchronisation of a configuration."""
        zero, schedule = values["zero"], self._space.schedules[values["schedule"]]
        # where the first and the last stage are on different ranks, both have a copy of the weights they share
        shard = (
            *(values[name] for name in ("tensor", "expert", "expert_tensor")),
            values["stages"] > 1 and schedule not in V_SHAPED,
        )
        # how many ranks broadcast the tensors that they own is part of a pattern
        owners = values["workers"] if self._zero_1.owns_tensors and zero == 1 else 0
        pattern_key = shard, id(cut), values["bucket"], zero, owners
        if pattern_key not in self._patterns:
            self._patterns[pattern_key] = self._patterns_of(values, cut, shard)
        group_key = shard[:3], *(values[name] for name in ("context", "workers", "order", "stages"))
        if group_key not in self._groups:
            self._groups[group_key] = self._groups_of(values)
        groups, key = self._groups[group_key], (pattern_key, group_key, zero)
        if key not in self._stages:
            self._stages[key] = [self._stage(pattern, groups, zero) for pattern in self._patterns[pattern_key]]
        level = LinkLevel.of(groups.by_name["replicas"][0])
        return RankSync(self._stages[key], self._copied_s(values, self._rank_layers[shard]), groups.sharing, level)

    def _patterns_of(self, values: Values, cut: StageCut, shard: object) -> list[_Pattern]:
        """The pattern of a stage of each kind."""
        plan = self._space.plan(values)
        plan = plan if plan.averages else plan.model_copy(update={"workers": 2 * plan.expert})
        job = replace(self._layers.job(plan.shard), zero=values["zero"])
        if shard not in self._rank_layers:
            self._rank_layers[shard] = RankLayers(job.layers, plan, job.gathered_bytes)
        return [_pattern(self._rank_layers[shard], plan, job, cut.ranges[kind]) for kind in cut.kinds]

    def _groups_of(self, values: Values) -> _Groups:
        grid = self._layers.grid(values)
        concurrent = grid.on_first_node([grid.rank(0, 0) + i * grid.stride("tensor") for i in range(grid.tensor)])
        groups = {"replicas": (grid.replicas_of(0), concurrent)}
        if grid.expert > 1 or grid.expert_shards < grid.tensor:
            groups["experts"] = _expert_replicas(grid)
        return _Groups(groups, self._transfers.sharing(grid, concurrent), {})

    def _stage(self, pattern: _Pattern, groups: _Groups, zero: int) -> StageSync:
        sums: Op = "reduce_scatter" if zero and not (zero == 1 and self._zero_1.sums_whole) else "all_reduce"
        found = StageSync(
            self._seconds(sums, pattern.sums, groups, zero), self._seconds(sums, pattern.last, groups, zero),
            begin=pattern.first.start, stop=pattern.first.stop, replicated=pattern.parameters[0], experts=pattern.parameters[1],
        )  # fmt: skip
        if zero == 0:
            return found
        gathers = pattern.gathers, pattern.again, pattern.opening, pattern.after
        seconds = [self._seconds("all_gather", each, groups, zero) for each in gathers]
        return found._replace(gathers_s=seconds[0], again_s=seconds[1], opening_s=seconds[2], after_s=seconds[3])

    def _seconds(self, op: Op, collectives: _Collectives, groups: _Groups, zero: int) -> float:
        algorithm = self._space.kept.get("algorithm") if op == "all_reduce" else None
        timed = _OF_WHOLE_TENSORS.get(op, op) if zero == 1 and self._zero_1.owns_tensors else op
        total_s = 0.0
        for (name, size_bytes), count in collectives.items():
            if (key := (timed, name, algorithm)) not in groups.seconds_of:
                groups.seconds_of[key] = self._transfers.collective(timed, *groups.by_name[name], algorithm)
            total_s += count * groups.seconds_of[key](size_bytes)
        return total_s

    def _copied_s(self, values: Values, rank_layers: RankLayers) -> float:
        """Seconds of the sum over the first and the last stage of the weights that they share."""
        if not rank_layers.copied:
            return 0.0
        grid, senders, job = self._layers.grid(values), self._layers.place(values).senders, self._layers.base
        share = grid.workers * grid.context if values["zero"] >= 2 else 1
        group = Group.of([grid.rank(0, rank) for rank in (0, grid.stages - 1)], grid.devices)
        size_bytes = rank_layers.copied * job.reduced_bytes / share
        return self._transfers.collective("all_reduce", group, min(senders, grid.devices))(size_bytes)


def _pattern(rank_layers: RankLayers, plan: Plan, job: Job, stage: range) -> _Pattern:
    """The pattern of a stage. job: with the ZeRO stage. `after` is empty with ZeRO's stage 3."""
    found, size = rank_layers.units(stage, plan, job)[::-1], job.reduced_bytes
    units = found if job.zero == 3 else []
    gathered = [rank_layers.parameters(unit.layers) for unit in units]
    regathered = [
        rank_layers.parameters(unit.layers)
        for unit in units
        if any(job.is_gathered_again(rank_layers.layers[i]) for i in unit.layers)
    ]
    trained = rank_layers.trained(stage)
    sums = _summed(rank_layers, found, size)
    last = sums if len(found) == 1 else _summed(rank_layers, found[-1:], size)
    gathers, again, opening, after = (
        _collectives(each, job.gathered_bytes) for each in (gathered, regathered, gathered[-1:], [trained])
    )
    if job.owns_tensors:
        count = job.broadcasts([rank_layers.layers[i] for i in stage], plan.sharing)
        after = {(name, size_bytes / count): count for name, size_bytes in after}
    if job.zero == 3:
        after = {}
    return _Pattern(sums, last, gathers, again, opening, after, found[0].layers, trained)


def _summed(rank_layers: RankLayers, found: Sequence[SyncUnit], size: int) -> _Collectives:
    """Buckets of units, and gradients of their experts."""
    filled = rank_layers.gradients.filled
    buckets = Counter([filled[end] - filled[begin] for unit in found for begin, end in itertools.pairwise(unit.bounds)])
    sizes = {("replicas", float(elements * size)): count for elements, count in buckets.items() if elements}
    kept = (rank_layers.trained(unit.layers) for unit in found)
    return sizes | _collectives([(0, experts) for _, experts in kept if experts], size)


def _collectives(parameters: Iterable[tuple[int, int]], size: int) -> dict[tuple[str, float], int]:
    pairs = (zip(REPLICA_GROUPS, each, strict=True) for each in parameters)
    return Counter((name, float(count * size)) for name, count in itertools.chain.from_iterable(pairs) if count)


def _expert_replicas(grid: DeviceMesh) -> tuple[Group, int]:
    """The ranks with the first part of the experts, and the number of such groups on the same nodes."""
    ranks, *_ = grid.expert_replicas(0)
    stage = grid.experts()[0]
    on_node = stage // grid.devices == ranks[0] // grid.devices
    return Group.of(ranks, grid.devices), int(on_node.sum()) // grid.on_first_node(ranks)
