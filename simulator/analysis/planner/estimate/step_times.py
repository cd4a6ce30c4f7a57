"""Expected and least step times of many configurations.

The parts of a step time depend on few columns each: layer times on how layers and samples are divided, gradient synchronisation
on which ranks share gradients. Each part is computed once for all configurations that have these columns in common, by the same
code that compiles programs, and the results are combined in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations, Numbers
from scaleproof.simulator.analysis.planner.estimate.gradient_sync import SyncTimes
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerTimes, StageCut
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import (
    CLOSED,
    FOLLOWED,
    LayerGatherTimes,
    windows_without_simulation,
    with_gathers,
)
from scaleproof.simulator.analysis.planner.estimate.shape_times import PassTable, Shape, SyncTable, tables
from scaleproof.simulator.analysis.planner.estimate.transfers import StageTraffic, TransferTimes
from scaleproof.simulator.cluster.collectives.groups import LinkLevel
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.strategy.data_parallel.contention import delays_s, per_second, slowed_by

Times = NDArray[np.float64]

# Lower bounds are multiplied by this: groups may be a little nearer to one another than the one that is timed.
_MARGIN: Final = 0.999
# Share of the estimated contention in lower bounds: collectives are counted by bucket here, by layer in programs.
_LEAST_CONTENTION: Final = 0.8
_LEAST_UNHIDDEN: Final = 0.5


class StepTimes(NamedTuple):
    """Seconds of a step by configuration: expected, and a lower bound of its prediction."""

    expected_s: Times
    least_s: Times


def step_times(configurations: Configurations) -> StepTimes:
    """Step times of all configurations.

    Raises FieldError if a configuration turns out to be invalid, or if the order of its schedule is searched for.
    """
    for schedule in configurations.space.schedules:
        if schedule not in (*CLOSED, *FOLLOWED):
            known = ", ".join((*CLOSED, *FOLLOWED))
            message = f"{schedule} is not estimated, as its order is searched for; choose from {known}"
            raise FieldError(("strategy", "schedule"), message)
    expected_s, least_s = np.empty((2, len(configurations)))
    for rows, placed in configurations.by_used_devices():
        expected_s[rows], least_s[rows] = _step_times(placed)
    return StepTimes(expected_s, least_s)


def _step_times(c: Configurations) -> StepTimes:
    """Step times of some configurations, whose ranks use the same number of devices of each node."""
    expected_s, least_s = np.empty((2, len(c)))
    layers = LayerTimes(c)
    transfers = TransferTimes(layers.base.cluster)
    sync, traffic = SyncTimes(c.space, layers, transfers), StageTraffic(transfers)
    cuts: dict[int, StageCut] = {}
    shaped = c.distinct("stages", "chunks", "schedule")
    for values, rows in zip(c.values(shaped.first), _rows_of(shaped.code), strict=True):
        stages, chunks, schedule = (values[name] for name in ("stages", "chunks", "schedule"))
        if stages * chunks not in cuts:
            cuts[stages * chunks] = StageCut.of(layers.base.layers, stages * chunks, c.space.counted)
        shape = Shape(c.space, stages, chunks, c.space.schedules[schedule], cuts[stages * chunks])
        some, layer = c.take(rows), layers.code[rows]
        message_s, busy_s = _traffic(some, shape, layers, layer, traffic)
        passes, p, syncs, s = tables(shape, some, layers, layer, message_s, transfers, sync)
        for zero in np.unique(some.zero).tolist():
            at = np.flatnonzero(some.zero == zero)
            found = [StageSteps(shape, layers, passes, one, p[at], s[at], zero).times() for one in syncs]
            # bounds as if nothing were shared
            expected_s[rows[at]] = np.maximum(found[-1].expected_s, _MARGIN * busy_s[at])
            least_s[rows[at]] = _MARGIN * np.maximum(found[0].least_s, busy_s[at])
    return StepTimes(expected_s, least_s)


def _rows_of(code: Numbers) -> list[Numbers]:
    """The rows of each code."""
    # numpy sorts short integers much faster
    short = code.astype(np.min_scalar_type(code.max(initial=0)))
    return np.split(np.argsort(short, kind="stable"), np.cumsum(np.bincount(code))[:-1])


def _traffic(c: Configurations, shape: Shape, layers: LayerTimes, layer: Numbers, traffic: StageTraffic) -> tuple[Times, Times]:
    """Expected seconds per byte of a message between stages, and seconds for which the most used link between nodes is busy in
    a step, by configuration."""
    placed = c.distinct("tensor", "context", "workers", "order")
    loads = [traffic.loads(layers.grid(values), shape.stage_of) for values in c.values(placed.first)]
    one_s, all_s, both_s = np.array(loads).T[:, placed.code]
    # in a full pipeline all ranks send at the same time, in an empty one a single stage
    full = (c.microbatches - 1) / (c.microbatches + c.stages - 1)
    lasts = shape.cut.stops[:-1] - 1
    least_bytes = layers.sent_bytes[:, lasts].min(axis=1)[layer] if len(lasts) else 0.0
    return one_s + full * (all_s - one_s), both_s * c.microbatches * least_bytes


class _LinkDelays(NamedTuple):
    """Additional seconds of the passes over a stage, and of the collectives of replicas next to its forward and its backward
    pass, that share links."""

    passes_s: Times
    forward_s: Times
    backward_s: Times


class StageSteps:
    """Steps of configurations of a shape with one ZeRO stage. p, s: the columns of each in the tables of passes and of gradient
    synchronisation."""

    def __init__(
        self, shape: Shape, layers: LayerTimes, passes: PassTable, sync: SyncTable, p: Numbers, s: Numbers, zero: int
    ) -> None:
        self.shape, self.layers, self.zero, self._columns = shape, layers, zero, p
        self.passes, self.sync = passes.take(p), sync.take(s)
        self.framework, self.kinds = layers.base.framework, range(len(shape.cut.kinds))
        self.sums_whole = zero == 1 and self.framework.zero_1.sums_whole
        passed_s = self.passes.kinds_s.sum(axis=0)
        self.own_s = shape.by_rank(passed_s)
        # seconds of the backward pass over the unit whose gradients are complete first
        running_s, layer = layers.backward_s, self.passes.layer
        self.first_passed_s = running_s[layer, self.sync.stop] - running_s[layer, self.sync.begin]
        self.links = self._on_links()
        self.slowed_s = self._slowed_s() if self.sync.resources or self.links else None

    def times(self) -> StepTimes:
        """Expected and least step times."""
        shape, sync, passes = self.shape, self.sync, self.passes
        gathers_layers = self.zero == 3 and not shape.keeps
        windows_s, has_contention = self._windows_s()
        after_first_s = self._after_first_s()
        expected_s, least_s = np.zeros((2, len(self._columns)))
        for rank, window_s in enumerate(windows_s):
            exposure = self._exposed_of_layers(rank) if gathers_layers else self._exposed(rank, after_first_s)
            exposed_s, least_exposed_s, collectives_s = exposure
            if rank > 0 and not self.layers.base.cluster.is_uniform:
                # its group may be nearer to one another than rank 0's, whose sums are those in the table
                least_exposed_s, collectives_s = 0.0, 0.0
            rank_s, least_rank_s = sync.optimizer_s[rank] + window_s + exposed_s, passes.least_s[rank] + least_exposed_s
            if self.slowed_s is not None and not (gathers_layers and shape.stages == 1):
                contended_s, least_contended_s = self._contended_s(rank, window_s)
                rank_s += np.where(has_contention, 0.0, contended_s)
                least_rank_s = least_rank_s + _LEAST_CONTENTION * least_contended_s
            least_rank_s = np.maximum(least_rank_s, collectives_s) + sync.optimizer_s[rank]
            expected_s = np.maximum(expected_s, rank_s + sync.copied_s if rank == 0 else rank_s)
            least_s = np.maximum(least_s, least_rank_s)
        return StepTimes(np.maximum(expected_s, least_s), least_s)

    def _of_pass(self, moved_s: Times) -> Times:
        """Seconds of the collectives next to one pass."""
        return moved_s / self.passes.microbatches if self.zero < 2 and self.shape.chunks > 1 else moved_s

    def _slowed_s(self) -> Times:
        """Seconds by which passes over a stage of each kind take longer next to collectives: of each microbatch from ZeRO's
        stage 2 on and with several chunks, else of a step; shape (kinds, configurations)."""
        passes, sync = self.passes, self.sync
        slowed_s = np.zeros_like(sync.sums_s) if self.links is None else self.links.passes_s
        if sync.resources is None:
            return slowed_s
        moved_s = sync.next_to_s.sum(axis=0)
        share = sync.resources.taken(*per_second(sync.moved_bytes, sync.moved_J, moved_s), passes.bound)
        computing_s = passes.kinds_s.sum(axis=0) if self.zero == 3 else passes.kinds_s[1]
        return slowed_s + slowed_by(share, self._of_pass(moved_s), computing_s)

    def _on_links(self) -> _LinkDelays | None:
        """Delays of passes over a stage of each kind, and of the collectives next to them, that share links, each of shape
        (kinds, configurations); None where no pass contains collectives."""
        passes, sync = self.passes, self.sync
        if passes.within_s is None or not self.framework.link_contention or not sync.next_to_s.any():
            return None
        of_node_s, of_network_s = passes.within_s
        within_s, exposed_s = np.where(sync.level == LinkLevel.NETWORK, of_network_s, of_node_s)
        next_s = self._of_pass(sync.next_to_s) - [sync.opening_s, sync.last_s]
        passed_s = np.array([np.zeros_like(self.first_passed_s), self.first_passed_s])
        next_s = np.maximum(np.minimum(next_s, passes.kinds_s - passed_s), 0.0)
        longer_s, delayed_s = delays_s(next_s, within_s, exposed_s, passes.kinds_s)
        return _LinkDelays(longer_s.sum(axis=0), *delayed_s)

    def _longer(self, links: _LinkDelays) -> tuple[Times, Times, Times]:
        """Factors on gathers before a forward and before a backward pass over a stage, and on sums, which share links."""
        moved_s = self.sync.next_to_s
        forward, backward = 1 + np.divide(np.array(links[1:]), moved_s, out=np.zeros_like(moved_s), where=moved_s > 0)
        return forward, backward, backward

    def _contended_s(self, rank: int, window_s: Times) -> tuple[Times, Times]:
        """Seconds by which a rank ends its passes later because collectives slow them down, expected and at least. window_s:
        expected duration of the passes, waiting included."""
        assert self.slowed_s is not None
        own_s: Times = self.shape.stage_counts[rank] @ self.slowed_s
        if self.zero < 2 and self.shape.chunks == 1:
            # the last microbatch returns through all stages, one after another
            counts = np.bincount(self.shape.cut.kind_of, minlength=len(self.kinds))
            return counts @ self.slowed_s, own_s
        share = own_s / self.own_s[rank]
        # compute waits for gathers part of the time, which hides part of the contention
        waiting = _LEAST_UNHIDDEN if self.zero >= 2 else 1.0
        return window_s * share, waiting * self.passes.microbatches * self.own_s[rank] * share

    def _after_first_s(self) -> Times:
        """Seconds of a pass over a stage of each kind that remain once the gradients of its first unit are complete, with which
        sums overlap, shape (kinds, configurations). None remain where sums wait for the whole pass, as they do where gradients
        of weights are computed separately."""
        sums_after = self.sums_whole or not self.shape.kept.get("overlap", False)
        if self.shape.splits or (self.zero < 2 and sums_after):
            return np.zeros_like(self.first_passed_s)
        left_s: Times = self.passes.kinds_s[1] - self.first_passed_s
        return left_s if self.slowed_s is None else left_s + self.slowed_s

    def _exposed(self, rank: int, after_first_s: Times) -> tuple[Times | float, Times | float, Times | float]:
        """Seconds of gradient synchronisation after a rank's passes, expected and at least, and least seconds of the step given
        its sums."""
        shape, passes, sync, counts = self.shape, self.passes, self.sync, self.shape.stage_counts[rank]
        kinds = shape.cut.kind_of[shape.own_stages[rank]].tolist()
        final = kinds[0]
        least_exposed_s = exposed_s = np.maximum(sync.last_s[final], sync.sums_s[final] - after_first_s[final])
        if self.links is not None:
            exposed_s = np.maximum(exposed_s, sync.sums_s[final] + self.links.backward_s[final] - after_first_s[final])
        for chunk in range(1, len(kinds)):
            # of consecutive stages of one kind the first and the last, as the end times between them are linear if passes are
            if not passes.simulated and chunk < len(kinds) - 1 and kinds[chunk - 1] == kinds[chunk] == kinds[chunk + 1]:
                continue
            # sums of a rank run one after another: from ZeRO's stage 2 on, those of each microbatch of a round
            before_s, own_s = np.bincount(kinds[:chunk], minlength=len(self.kinds)) @ sync.sums_s, sync.sums_s[kinds[chunk]]
            ended_s = (before_s * passes.per_round if self.zero >= 2 else before_s) + own_s
            exposed_s = np.maximum(exposed_s, ended_s - after_first_s[kinds[chunk]] - passes.left_s[rank, chunk])
        if self.zero == 0:
            return exposed_s, least_exposed_s, 0.0
        after_s: Times | float = counts @ sync.after_s if self.zero < 3 else 0.0
        collectives_s: Times | float = 0.0
        if self.zero >= 2:
            # sums begin once a microbatch has returned to the rank
            collectives_s = passes.microbatches * (counts @ sync.sums_s) + passes.until_back_s[rank] + after_s
        if shape.overlaps_gather:
            hidden_s = counts @ passes.kinds_s[0]
            return exposed_s + np.maximum(0.0, after_s - hidden_s), least_exposed_s, collectives_s
        return exposed_s + after_s, least_exposed_s + after_s, collectives_s

    def _exposed_of_layers(self, rank: int) -> tuple[Times | float, Times | float, Times | float]:
        """The same for ranks that gather layers before each pass over them."""
        shape, sync = self.shape, self.sync
        last_s = sync.last_s[int(shape.cut.kind_of[shape.own_stages[rank, 0]])]
        moved_s = sync.sums_s + sync.gathers_s + sync.again_s
        collectives_s = self.passes.microbatches * (shape.stage_counts[rank] @ moved_s)
        # the time of a rank that is alone in its pipeline includes its last sum
        return last_s if shape.stages > 1 else 0.0, last_s, collectives_s

    def _windows_s(self) -> tuple[Sequence[Times], NDArray[np.bool_]]:
        """Expected seconds of the passes of each rank, gathers of parameters included, and which configurations' contention
        they include."""
        passes, shape = self.passes, self.shape
        none: NDArray[np.bool_] = np.zeros(len(self._columns), dtype=np.bool_)
        if self.zero < 3:
            return list(passes.window_s), none
        if shape.keeps:
            return list(passes.window_s + self._first_wait_s()), none
        if shape.stages == 1:
            return [self._alone_s()], none
        longer = np.flatnonzero(self._is_prolonged())
        if len(longer):
            passes.window_s[:, longer] = self._gathering_s(longer)
            none[longer] = True
        return list(passes.window_s), none

    def _is_prolonged(self) -> NDArray[np.bool_]:
        """Which configurations' passes are prolonged by gathers, which follow the sums of the pass before."""
        sync, layers = self.sync, self.shape.cut.stops - self.shape.cut.begins
        if self.shape.splits or (layers != layers[0]).any():
            return np.ones(len(self._columns), dtype=np.bool_)
        waits_s = np.array([sync.gathers_s, sync.sums_s + sync.again_s])
        return np.asarray((waits_s > self.passes.kinds_s).any(axis=(0, 1)), dtype=np.bool_)

    def _gathering_s(self, at: Numbers) -> Times:
        """Expected seconds of the passes of each rank of some configurations, where layers are gathered before each pass over
        them."""
        shape, sync, kind_of = self.shape, self.sync, self.shape.cut.kind_of
        by_kind_s = [sync.gathers_s, sync.again_s, sync.sums_s, sync.last_s]
        if self.links is not None:
            longer = self._longer(self.links)
            by_kind_s = [*(share * one for share, one in zip(longer, by_kind_s, strict=False)), sync.last_s]
        gathers_s, again_s, sums_s, last_s = (one[kind_of][:, at] for one in by_kind_s)
        layers, stages = (shape.cut.stops - shape.cut.begins)[:, None], self.passes.stages.take(self._columns[at])
        if self.slowed_s is not None:
            stages = stages.slower(1 + (self.slowed_s / self.passes.kinds_s.sum(axis=0))[kind_of][:, at])
        waits = self.framework.waits_for_scatters
        stages = with_gathers(stages, LayerGatherTimes(gathers_s, again_s, sums_s, last_s, layers, waits))
        window_s, _ = windows_without_simulation(shape.schedule, shape.timed_ranks, stages)
        return np.array([window_s[ranks].max(axis=0) for ranks in shape.equivalent_ranks])

    def _first_wait_s(self) -> Times:
        """Seconds by which the first pass of a step is longer for the gather of parameters that are kept afterwards: the gather
        of its first layer, or of all layers if the passes over those before the last do not hide it. Later stages gather while
        they wait for it."""
        kind, sync = int(self.shape.cut.kind_of[0]), self.sync
        passed_s = self.passes.kinds_s[0, kind] * (1 - 1 / len(self.shape.cut.ranges[0]))
        result: Times = np.maximum(sync.opening_s[kind], sync.gathers_s[kind] - passed_s)
        return result

    def _alone_s(self) -> Times:
        """Seconds of a step before the optimizer, for ranks with all layers. Collectives are divided among layers like
        the parameters that they move."""
        passes, sync = self.passes, self.sync
        running_s = self.layers.forward_s, self.layers.backward_s
        layers_s = np.array([np.diff(one[passes.layer], axis=1).T for one in running_s])
        if self.slowed_s is not None:
            layers_s *= 1 + self.slowed_s[0] / passes.kinds_s[:, 0].sum(axis=0)
        collectives_s = [sync.gathers_s[0], sync.again_s[0], sync.sums_s[0]]
        if self.links is not None:
            longer = self._longer(self.links)
            collectives_s = [share[0] * one_s for share, one_s in zip(longer, collectives_s, strict=True)]
        own = self.layers.base.layers
        gathered = np.array([layer.parameters for layer in own], dtype=np.float64)
        again = gathered * [layer.has_backward for layer in own]
        trained = np.array([layer.trained_parameters for layer in own], dtype=np.float64)
        parts = [one / one.sum() for one in (gathered, again, trained)]
        moved_s = [part[:, None] * one_s for part, one_s in zip(parts, collectives_s, strict=True)]
        return one_rank_s(layers_s, moved_s, passes.microbatches, self.framework.waits_for_scatters)


def one_rank_s(works_s: Times, collectives_s: Sequence[Times], microbatches: Numbers, waits_for_sums: bool = False) -> Times:
    """Seconds of a step of a rank that is alone in its pipeline. works_s: forward and backward passes; collectives_s: gathers
    before each of both, and sums after the backward pass; all of shape (layers, configurations). waits_for_sums: whether a pass
    waits for the sum of the layer before."""
    forward_s, backward_s = works_s
    gathers_s, again_s, sums_s = collectives_s
    none_s = np.zeros_like(sums_s)
    layers = [*zip(forward_s, gathers_s, none_s, strict=True), *zip(backward_s[::-1], again_s[::-1], sums_s[::-1], strict=True)]
    end_s, before_s, moved_s, last_s, whole_s = np.zeros((5, len(microbatches)))
    for _ in range(2):
        one_s = whole_s
        for work_s, gather_s, sum_s in layers:
            gathered_s = np.maximum(moved_s, before_s) + gather_s
            # gathers ahead of time precede the sum of the layer before
            moved_s = np.where(last_s > 0, np.maximum(gathered_s, end_s) + last_s, gathered_s)
            begin_s = np.maximum(end_s, moved_s if waits_for_sums else gathered_s)
            end_s, before_s, last_s = begin_s + work_s, end_s, sum_s
        whole_s = np.maximum(end_s, moved_s) + last_s
    result: Times = one_s + (microbatches - 1) * (whole_s - one_s)
    return result
