"""Expected and least step times of many configurations.

The parts of a step time depend on few columns each: layer times on how layers and samples are divided, gradient synchronisation
on which ranks share gradients. Each part is computed once for all configurations that have these columns in common, by the same
code that compiles programs, and the results are combined in arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.closed_forms import CLOSED, FOLLOWED, LayerGatherTimes, with_gathers
from scaleproof.simulator.analysis.planner.estimate.configurations import Configurations
from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers, distinct, taken
from scaleproof.simulator.analysis.planner.estimate.gradient_sync import SyncRequests
from scaleproof.simulator.analysis.planner.estimate.layer_times import LayerPassTimes, StageCut
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import windows_without_simulation
from scaleproof.simulator.analysis.planner.estimate.shape_tables import ConfigurationShape, PassTable, ShapeKey, SyncTable
from scaleproof.simulator.analysis.planner.estimate.stage_traffic import StageTraffic
from scaleproof.simulator.analysis.planner.estimate.transfer_times import RankPlacements, StageMessages, TransferTimes
from scaleproof.simulator.cluster.collectives.groups import LinkLevel
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.strategy.data_parallel.contention import delays_s, per_second, slowed_by

Times = NDArray[np.float64]

# Columns that layer times and messages depend on, and columns that gradient synchronisation depends on.
PASS_COLUMNS: Final = (
    "stages", "chunks", "schedule", "tensor", "context", "expert", "expert_tensor", "workers", "sequence_parallel", "order",
    "samples", "recompute",
)  # fmt: skip
SYNC_COLUMNS: Final = (
    "stages", "chunks", "schedule", "tensor", "context", "expert", "expert_tensor", "workers", "zero", "bucket", "order",
)  # fmt: skip
# Configurations that are combined at once, so that they fit a processor's cache.
_AT_ONCE: Final = 16_384
# Lower bounds are multiplied by this: groups may be a little nearer to one another than the one that is timed, and times of
# collectives a little off their line.
_MARGIN: Final = 0.999
_NOTHING: Final = np.zeros(1)
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
    _check(configurations.space.schedules)
    expected_s, least_s = np.empty((2, len(configurations)))
    for rows, placed in configurations.by_used_devices():
        expected_s[rows], least_s[rows] = _step_times(placed)
    return StepTimes(expected_s, least_s)


def _step_times(c: Configurations) -> StepTimes:
    """Step times of some configurations, whose ranks use the same number of devices of each node."""
    expected_s, least_s = np.empty((2, len(c)))
    # rows of the two tables, which many configurations have in common
    pass_columns = (*PASS_COLUMNS, "zero") if c.space.adds else PASS_COLUMNS
    pass_of, sync_of = c.distinct(*pass_columns), c.distinct(*SYNC_COLUMNS)
    pass_rows, sync_rows = c.take(pass_of.first), c.take(sync_of.first)
    passes = LayerPassTimes.of(pass_rows)
    transfers = TransferTimes(passes.jobs[0].cluster)
    counts = np.unique(pass_rows.stages * pass_rows.chunks).tolist()
    cuts = {count: StageCut.of(passes.jobs[0].layers, count, c.space.counted) for count in counts}
    sizes_bytes, size_of = np.unique(passes.sent_bytes, return_inverse=True)
    # requests of all messages and collectives, which are then timed together
    placements = RankPlacements.of(pass_rows, passes.jobs[0])
    messages = StageMessages(transfers, passes.jobs[0], sizes_bytes.tolist(), placements.all)
    traffic = StageTraffic.of(pass_rows, passes, placements, cuts, passes.jobs[0].cluster)
    message_s, traffic_code = np.unique(traffic.message_s, return_inverse=True)
    codes = np.array([passes.key.code, messages.place[placements.code], traffic_code])
    # rows with equal layer times and messages count once
    grouped = distinct(pass_rows.distinct("stages", "chunks", "schedule", "microbatches").code, *codes)
    representatives, representative_codes = pass_rows.take(grouped.first), codes[:, grouped.first]
    rows_by_shape, sync_rows_by_shape = _by_shape(representatives), _by_shape(sync_rows)
    shapes = {
        key: ConfigurationShape(
            key,
            representatives.take(rows),
            sync_rows.take(sync_rows_by_shape[key]),
            representative_codes[:, rows],
            cuts[key[0] * key[1]],
            messages,
        )
        for key, rows in rows_by_shape.items()
    }
    first = pass_of.code[sync_of.first]
    requests = SyncRequests(
        sync_rows, passes, np.array([passes.key.code[first], placements.code[first]]), placements.all, transfers, cuts
    )
    transfers_s = transfers.seconds()
    sent_s, sync_times = messages.seconds(transfers_s), requests.results(transfers_s)
    size_of = size_of.reshape(passes.sent_bytes.shape)
    tables = {}
    for key, shape in shapes.items():
        pass_table = PassTable(shape, passes, sent_s, size_of, message_s)
        own = sync_times.take(sync_rows_by_shape[key])
        tables[key] = [RankTimes(shape, pass_table, SyncTable(shape, passes, own))]
        if (own.sharing > 1).any():
            tables[key].append(RankTimes(shape, pass_table, SyncTable(shape, passes, own, shares_links=True)))
    # the rows of its shape's tables that each configuration combines
    p = taken(_index_in_shape(rows_by_shape)[grouped.code], pass_of.code)
    s = taken(_index_in_shape(sync_rows_by_shape), sync_of.code)
    for key, zero, rows in _by_shape_and_zero(sync_rows, sync_of.code):
        for some in np.split(rows, range(_AT_ONCE, len(rows), _AT_ONCE)):
            found = [table.times(taken(p, some), taken(s, some), zero) for table in tables[key]]
            # bounds as if nothing were shared
            expected_s[some], least_s[some] = found[-1][0], found[0][1]
    busy_s = _MARGIN * taken(traffic.busy_s, pass_of.code)
    return StepTimes(np.maximum(expected_s, busy_s), np.maximum(least_s, busy_s))


def _check(schedules: Sequence[ScheduleName]) -> None:
    for schedule in schedules:
        if schedule not in (*CLOSED, *FOLLOWED):
            message = (
                f"{schedule} is not estimated, as its order is searched for; choose from {', '.join((*CLOSED, *FOLLOWED))}"
            )
            raise FieldError(("strategy", "schedule"), message)


def _by_shape(c: Configurations) -> dict[ShapeKey, Numbers]:
    """Rows of each shape."""
    key = c.distinct("stages", "chunks", "schedule")
    names = np.array([c.stages, c.chunks, c.schedule])[:, key.first].T.tolist()
    return {(stages, chunks, schedule): rows for (stages, chunks, schedule), rows in zip(names, _split(key.code), strict=True)}


def _index_in_shape(by_shape: Mapping[ShapeKey, Numbers]) -> Numbers:
    """Index of each row among the rows of its shape."""
    result = np.empty(sum(map(len, by_shape.values())), dtype=np.int64)
    for rows in by_shape.values():
        result[rows] = np.arange(len(rows))
    return result


def _by_shape_and_zero(sync_rows: Configurations, code: Numbers) -> Iterator[tuple[ShapeKey, int, Numbers]]:
    """Rows of configurations of each shape and ZeRO stage. code: the row of `sync_rows` of each configuration."""
    key = sync_rows.distinct("stages", "chunks", "schedule", "zero")
    names = np.array([sync_rows.stages, sync_rows.chunks, sync_rows.schedule, sync_rows.zero])[:, key.first].T.tolist()
    for (stages, chunks, schedule, zero), rows in zip(names, _split(taken(key.code, code)), strict=True):
        yield (stages, chunks, schedule), zero, rows


def _split(code: Numbers) -> list[Numbers]:
    """The rows of each code."""
    # numpy sorts short integers much faster
    short = code.astype(np.min_scalar_type(code.max(initial=0)))
    return np.split(np.argsort(short, kind="stable"), np.cumsum(np.bincount(code))[:-1])


def _weighted(counts: Numbers, values: Sequence[Times]) -> Times:
    """Sum of values, each multiplied by its count."""
    result: Times = sum((count * value for count, value in zip(counts.tolist(), values, strict=True)), np.zeros(1))
    return result


class _LinkDelays(NamedTuple):
    """Additional seconds of the passes over a stage, and of the collectives of replicas next to its forward and its backward
    pass, that share links."""

    passes_s: Times
    forward_s: Times
    backward_s: Times


class RankTimes:
    """Step times of a shape, from its two tables."""

    def __init__(self, shape: ConfigurationShape, passes: PassTable, sync: SyncTable) -> None:
        self.shape, self.passes, self.sync = shape, passes, sync
        self._sums = [list(shape.sums(rank, passes.simulated)) for rank in range(len(shape.ranks))]

    def times(self, p: Numbers, s: Numbers, zero: int) -> tuple[Times, Times]:
        """Expected and least step times of configurations. p, s: their rows in the tables of passes and of gradient
        synchronisation; zero: the ZeRO stage of all of them."""
        shape, sync = self.shape, self.sync
        links = self._on_links(p, s, zero)
        slowed = self._slowed(p, s, zero, links) if sync.resources or links else None
        gathers_layers = zero == 3 and not shape.keeps
        windows_s, is_slowed = self._windows_s(p, s, zero, slowed, links)
        after_first_s = self._after_first_s(p, s, zero, slowed) if not gathers_layers else []
        expected_s, least_s = np.zeros((2, len(p)))
        for rank, window_s in enumerate(windows_s):
            if gathers_layers:
                exposed_s, least_exposed_s, collectives_s = self._exposed_of_layers(rank, p, s)
            else:
                exposed_s, least_exposed_s, collectives_s = self._exposed(rank, p, s, zero, after_first_s, links)
            if rank > 0 and not shape.is_uniform:
                # its group may be nearer to one another than rank 0's, whose sums are those in the table
                least_exposed_s, collectives_s = _NOTHING, _NOTHING
            optimizer_s = taken(sync.optimizer_s[rank], s)
            rank_s = optimizer_s + window_s
            rank_s += exposed_s
            least_rank_s = taken(self.passes.least_s[rank], p)
            least_rank_s += least_exposed_s
            if slowed is not None and not (gathers_layers and shape.stages == 1):
                contended_s, least_contended_s = self._contended_s(rank, p, zero, slowed, window_s)
                contended_s[is_slowed] = 0.0
                rank_s += contended_s
                least_rank_s += _LEAST_CONTENTION * least_contended_s
            np.maximum(least_rank_s, collectives_s, out=least_rank_s)
            least_rank_s += optimizer_s
            if rank == 0:
                rank_s += taken(sync.copied_s, s)
            np.maximum(expected_s, rank_s, out=expected_s)
            np.maximum(least_s, least_rank_s, out=least_s)
        return np.maximum(expected_s, least_s), _MARGIN * least_s

    def _slowed(self, p: Numbers, s: Numbers, zero: int, links: Sequence[_LinkDelays] | None) -> list[Times]:
        """Seconds by which passes over a stage of each kind take longer next to collectives: of each microbatch from ZeRO's
        stage 2 on and with several chunks, else of a step."""
        passes, sync, found = self.passes, self.sync, []
        for kind in range(len(self.shape.cut.kinds)):
            slowed_s = np.zeros(len(p)) if links is None else links[kind].passes_s
            if sync.resources is not None:
                moved_s = sync.next_to_s[:, kind].sum(axis=0)
                memory_Bps, moved_W = per_second(sync.moved_bytes[kind], sync.moved_J[kind], moved_s)
                share = sync.resources.taken(taken(memory_Bps, s), taken(moved_W, s), taken(passes.bound, p))
                computing_s = passes.kinds_s[:, kind].sum(axis=0) if zero == 3 else passes.kinds_s[1, kind]
                slowed_s = slowed_s + slowed_by(share, self._of_pass(moved_s, p, s, zero), taken(computing_s, p))
            found.append(slowed_s)
        return found

    def _of_pass(self, moved_s: Times, p: Numbers, s: Numbers, zero: int) -> Times:
        """Seconds of the collectives next to one pass."""
        result = taken(moved_s, s, axis=-1)
        return result / taken(self.passes.microbatches, p) if zero < 2 and self.shape.chunks > 1 else result

    def _on_links(self, p: Numbers, s: Numbers, zero: int) -> list[_LinkDelays] | None:
        """Delays of passes over a stage of each kind, and of the collectives next to them, that share links; None where no
        pass contains collectives."""
        passes, sync, found = self.passes, self.sync, []
        if passes.within_s is None or not self.shape.framework.link_contention or not sync.next_to_s.any():
            return None
        level = taken(sync.level, s)
        for kind in range(len(self.shape.cut.kinds)):
            of_node_s, of_network_s = taken(passes.within_s[..., kind, :], p, axis=3)
            within_s, exposed_s = np.where(level == LinkLevel.NETWORK, of_network_s, of_node_s)
            kind_s, passed_s = taken(passes.kinds_s[:, kind], p, axis=1), self._first_passed_s(kind, p, s)
            alone_s = taken(np.array([sync.opening_s[kind], sync.last_s[kind]]), s, axis=1)
            next_s = self._of_pass(sync.next_to_s[:, kind], p, s, zero) - alone_s
            next_s = np.maximum(np.minimum(next_s, kind_s - [np.zeros_like(passed_s), passed_s]), 0.0)
            longer_s, delayed_s = delays_s(next_s, within_s, exposed_s, kind_s)
            found.append(_LinkDelays(longer_s.sum(axis=0), *delayed_s))
        return found

    def _longer(self, kind: int, s: Numbers, delays: _LinkDelays) -> tuple[Times, Times, Times]:
        """Factors on gathers before a forward and before a backward pass over a stage, and on sums, which share links."""
        moved_s = taken(self.sync.next_to_s[:, kind], s, axis=1)
        delayed_s = np.array(delays[1:])
        forward, backward = 1 + np.divide(delayed_s, moved_s, out=np.zeros_like(moved_s), where=moved_s > 0)
        return forward, backward, backward

    def _first_passed_s(self, kind: int, p: Numbers, s: Numbers) -> Times:
        """Seconds of the backward pass over a stage's unit whose gradients are complete first."""
        passes, sync, begins = self.passes, self.sync, taken(self.passes.begins, p)
        passed_s = taken(passes.backward_s, begins + taken(sync.stop[kind], s))
        passed_s -= taken(passes.backward_s, begins + taken(sync.begin[kind], s))
        return passed_s

    def _contended_s(self, rank: int, p: Numbers, zero: int, slowed: Sequence[Times], window_s: Times) -> tuple[Times, Times]:
        """Seconds by which a rank ends its passes later because collectives slow them down, expected and at least. window_s:
        expected duration of the passes, waiting included."""
        passes, shape = self.passes, self.shape
        counts = shape.stage_counts[rank]
        own_s = _weighted(counts, slowed)
        if zero < 2 and shape.chunks == 1:
            # the last microbatch returns through all stages, one after another
            return _weighted(np.bincount(shape.cut.kind_of, minlength=len(slowed)), slowed), own_s
        own_s /= taken(counts @ passes.kinds_s.sum(axis=0), p)
        # compute waits for gathers part of the time, which hides part of the contention
        waiting = _LEAST_UNHIDDEN if zero >= 2 else 1.0
        return window_s * own_s, waiting * taken(passes.microbatches * (counts @ passes.kinds_s.sum(axis=0)), p) * own_s

    def _after_first_s(self, p: Numbers, s: Numbers, zero: int, slowed: Sequence[Times] | None) -> list[Times]:
        """Seconds of a pass over a stage of each kind that remain once the gradients of its first unit are complete, with which
        sums overlap. None remain where sums wait for the whole pass, as they do where gradients of weights are computed
        separately. slowed: seconds by which the pass takes longer."""
        passes, kinds = self.passes, range(len(self.shape.cut.kinds))
        sums_after = (zero == 1 and self.shape.sums_whole_in_zero_1) or not self.shape.kept.get("overlap", False)
        if self.shape.splits or (zero < 2 and sums_after):
            return [_NOTHING for _ in kinds]
        result = []
        for kind in kinds:
            left_s = taken(passes.kinds_s[1, kind], p) - self._first_passed_s(kind, p, s)
            if slowed is not None:
                left_s += slowed[kind]
            result.append(left_s)
        return result

    def _exposed(
        self, rank: int, p: Numbers, s: Numbers, zero: int, after_first_s: Sequence[Times], links: Sequence[_LinkDelays] | None
    ) -> tuple[Times, Times, Times]:
        """Seconds of gradient synchronisation after a rank's passes, expected and at least, and least seconds of the step given
        its sums."""
        shape, passes, sync = self.shape, self.passes, self.sync
        final = int(shape.cut.kind_of[shape.own_stages[rank, 0]])
        least_exposed_s = np.maximum(taken(sync.last_s[final], s), taken(sync.sums_s[final], s) - after_first_s[final])
        exposed_s = least_exposed_s
        if links is not None:
            delayed_s = taken(sync.sums_s[final], s) + links[final].backward_s - after_first_s[final]
            exposed_s = np.maximum(exposed_s, delayed_s)
        for one in self._sums[rank]:
            # sums of a rank run one after another: from ZeRO's stage 2 on, those of each microbatch of a round
            before_s, own_s = one.before @ sync.sums_s, sync.sums_s[one.kind]
            ended_s: Times = taken(before_s if zero >= 2 else before_s + own_s, s)
            if zero >= 2:
                ended_s *= taken(passes.per_round, p)
                ended_s += taken(own_s, s)
            ended_s -= after_first_s[one.kind]
            ended_s -= taken(passes.left_s[rank, one.chunk], p)
            exposed_s = np.maximum(exposed_s, ended_s)
        if zero == 0:
            return exposed_s, least_exposed_s, _NOTHING
        after_s = taken(shape.stage_counts[rank] @ sync.after_s, s) if zero < 3 else _NOTHING
        collectives_s = _NOTHING
        if zero >= 2:
            # sums begin once a microbatch has returned to the rank
            collectives_s = taken(passes.microbatches, p) * taken(shape.stage_counts[rank] @ sync.sums_s, s)
            collectives_s += taken(passes.until_back_s[rank], p) + after_s
        if shape.kept.get("overlap_gather", False):
            return (
                exposed_s + np.maximum(0.0, after_s - taken(shape.stage_counts[rank] @ passes.kinds_s[0], p)),
                least_exposed_s,
                collectives_s,
            )
        return exposed_s + after_s, least_exposed_s + after_s, collectives_s

    def _exposed_of_layers(self, rank: int, p: Numbers, s: Numbers) -> tuple[Times, Times, Times]:
        """The same for ranks that gather layers before each pass over them."""
        shape, sync = self.shape, self.sync
        last_s = taken(sync.last_s[int(shape.cut.kind_of[shape.own_stages[rank, 0]])], s)
        moved_s = sync.sums_s + sync.gathers_s + sync.again_s
        collectives_s = taken(self.passes.microbatches, p) * taken(shape.stage_counts[rank] @ moved_s, s)
        # the time of a rank that is alone in its pipeline includes its last sum
        return last_s if shape.stages > 1 else _NOTHING, last_s, collectives_s

    def _windows_s(
        self, p: Numbers, s: Numbers, zero: int, slowed: Sequence[Times] | None, links: Sequence[_LinkDelays] | None
    ) -> tuple[Sequence[Times], Numbers]:
        """Expected seconds of the passes of each rank, gathers of parameters included, and the indices of configurations whose
        contention they include."""
        passes, shape = self.passes, self.shape
        windows_s, none = [taken(window_s, p) for window_s in passes.window_s], p[:0]
        if zero < 3:
            return windows_s, none
        if shape.keeps:
            first_wait_s = self._first_wait_s(p, s)
            return [window_s + first_wait_s for window_s in windows_s], none
        if shape.stages == 1:
            return [self._alone_s(p, s, slowed, links)], none
        longer = self._prolonged(p, s)
        if len(longer):
            found_s = self._gathering_s(p[longer], s[longer])
            for window_s, longer_s in zip(windows_s, found_s, strict=True):
                window_s[longer] = longer_s
        return windows_s, longer

    def _prolonged(self, p: Numbers, s: Numbers) -> Numbers:
        """Indices of configurations whose passes are prolonged by gathers, which follow the sums of the pass before."""
        passes, sync, layers = self.passes, self.sync, self.shape.cut.stops - self.shape.cut.begins
        if self.shape.splits or (layers != layers[0]).any():
            return np.arange(len(p))
        waits_s = taken(np.array([sync.gathers_s, sync.sums_s + sync.again_s]), s, axis=2)
        return np.flatnonzero((waits_s > taken(passes.kinds_s, p, axis=2)).any(axis=(0, 1)))

    def _gathering_s(self, p: Numbers, s: Numbers) -> Times:
        """Expected seconds of the passes of each rank, where layers are gathered before each pass over them."""
        shape, passes, sync, kind_of = self.shape, self.passes, self.sync, self.shape.cut.kind_of
        links = self._on_links(p, s, 3)
        by_kind_s = [taken(one, s, axis=1) for one in (sync.gathers_s, sync.again_s, sync.sums_s, sync.last_s)]
        if links is not None:
            for kind, delays in enumerate(links):
                longer = self._longer(kind, s, delays)
                for one, share in zip(by_kind_s, longer, strict=False):
                    one[kind] *= share
        gathers_s, again_s, sums_s, last_s = (one[kind_of] for one in by_kind_s)
        layers, stages = (shape.cut.stops - shape.cut.begins)[:, None], passes.stages.take(p)
        if sync.resources or links:
            ratios = np.array(self._slowed(p, s, 3, links)) / taken(passes.kinds_s.sum(axis=0), p, axis=1)
            stages = stages.slower(1 + ratios[kind_of])
        stages = with_gathers(stages, LayerGatherTimes(gathers_s, again_s, sums_s, last_s, layers, shape.waits_for_scatters))
        window_s, _ = windows_without_simulation(shape.schedule, shape.timed_ranks, stages)
        return np.array([window_s[ranks].max(axis=0) for ranks in shape.equivalent_ranks])

    def _first_wait_s(self, p: Numbers, s: Numbers) -> Times:
        """Seconds by which the first pass of a step is longer for the gather of parameters that are kept afterwards: the gather
        of its first layer, or of all layers if the passes over those before the last do not hide it. Later stages gather while
        they wait for it."""
        kind, sync, layers = int(self.shape.cut.kind_of[0]), self.sync, len(self.shape.cut.ranges[0])
        passed_s = taken(self.passes.kinds_s[0, kind], p) * (1 - 1 / layers)
        result: Times = np.maximum(taken(sync.opening_s[kind], s), taken(sync.gathers_s[kind], s) - passed_s)
        return result

    def _alone_s(self, p: Numbers, s: Numbers, slowed: Sequence[Times] | None, links: Sequence[_LinkDelays] | None) -> Times:
        """Seconds of a step before the optimizer, for ranks with all layers. Collectives are divided among layers like
        the parameters that they move."""
        passes, sync = self.passes, self.sync
        layers_s = taken(passes.layers_s, p, axis=2)
        if slowed is not None:
            layers_s *= 1 + slowed[0] / taken(passes.kinds_s[:, 0].sum(axis=0), p)
        collectives_s = [taken(each[0], s) for each in (sync.gathers_s, sync.again_s, sync.sums_s)]
        if links is not None:
            longer = self._longer(0, s, links[0])
            collectives_s = [share * one_s for share, one_s in zip(longer, collectives_s, strict=True)]
        moved_s = [part[:, None] * each for part, each in zip(passes.parts, collectives_s, strict=True)]
        return one_rank_s(layers_s, moved_s, taken(passes.microbatches, p), self.shape.waits_for_scatters)


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
