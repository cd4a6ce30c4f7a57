"""ZeRO stages 1 and 2: ranks shard optimizer states, and with stage 2 the gradients (arXiv 1910.02054).

Gradients are reduce-scattered bucket by bucket, after the backward pass or overlapped with it. Each rank updates its part of
every bucket, and one all-gather returns the parameters, or one of each unit during the next forward pass.
With `shard_over` groups of workers shard, and gradients are summed within and then over the groups (arXiv 2304.11277).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, Final, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.futures import Future

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.parallelism import DataParallel
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.base import Context, Sharing
from scaleproof.validator.strategy.data_parallel.buckets import Bucket, BucketSum, Countdown, fill
from scaleproof.validator.strategy.data_parallel.compression import SumMethod
from scaleproof.validator.strategy.data_parallel.gradient_precision import Accumulator
from scaleproof.validator.strategy.data_parallel.microbatched import MicrobatchedReplica, weight_of
from scaleproof.validator.strategy.data_parallel.threaded_sum import ALGORITHMS, SumThread, ThreadedSum, sent
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.flat import pack, views
from scaleproof.validator.strategy.layout.mesh import divided
from scaleproof.validator.strategy.layout.parts_of_matrices import PartsOfMatrices, Piece
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.train.gradient_clipping import Part
from scaleproof.validator.train.models.fine_tuning import trained_parameters
from scaleproof.validator.train.muon import copy_mark, is_matrix

# Names of the teams that shard, and of those with the same shard.
SHARDING: Final = ("shard", "replica")
# When gradients are reduce-scattered: after a step's last backward pass, during it, or during that of each microbatch.
Scatter = Literal["after", "step", "microbatch"]


class ShardedWorker(MicrobatchedReplica):
    """Shards optimizer states over workers, and with ZeRO's stage 2 gradients."""

    updates_parameters = False

    def __init__(self, context: Context, strategy: DataParallel) -> None:
        super().__init__(context, strategy)
        plan = strategy.plan
        shard, groups = (
            Team.of(teams, name) for teams, name in zip(divided([range(plan.workers)], plan.sharing), SHARDING, strict=True)
        )
        sharding = Sharding(context, SumThread(context.device), self.accumulator, weight_of(context), plan.bucket_limits_bytes)
        self.states = sharding.states([trained_parameters(self.module)], shard, groups)
        self.optimizer = context.optimizer(self.states.pieces, sharing=self.states.sharing)

    def update(self) -> None:
        """Applies the gradients to this rank's shard, and gathers the parameters."""
        self.states.reduce()
        super().update()
        self.states.gather()

    def updated_parts(self) -> Iterable[Part]:
        """This rank's shards, by parameter of the model."""
        return self.states.parts(super().updated_parts())

    def complete(self) -> None:
        """Gives the parameters their final values, which all workers gather."""
        super().complete()
        self.states.gather()

    def close(self) -> None:
        """Ends the sums of buckets."""
        self.states.close()
        super().close()


class ReduceScatter(SumMethod):
    """Leaves the sum of this rank's part of a bucket in its place, and the rest as it is.

    groups: the ranks of all groups with the same part, where several groups shard; they sum it by an all-reduce.
    """

    def __init__(self, groups: Collectives | None) -> None:
        self._groups = groups

    def sum(self, bucket: Bucket, collectives: Collectives) -> None:
        """Sums the bucket's parts within the team, and this rank's over the groups."""
        own = own_part(bucket.flat, collectives.team)
        summed = torch.empty_like(own)
        with collectives.noted(bucket.flat):
            collectives.begin_scatter(summed, bucket.flat).wait()
        if self._groups is not None:
            self._groups.sum(summed)
        own.copy_(summed)


class ScatterTiming(NamedTuple):
    """When gradients are reduce-scattered, and the number of microbatches of a step."""

    when: Scatter
    microbatches: int

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """The timing of a scenario with ZeRO's stage 1 or 2."""
        plan = scenario.strategy.plan
        if scenario.training.zero == 1:
            return cls("step" if plan.overlap else "after", plan.microbatches)
        return cls(plan.scatter, plan.microbatches)

    @property
    def passes(self) -> int:
        """Number of backward passes whose gradients are scattered together."""
        return 1 if self.when == "microbatch" else self.microbatches


class Sharding(NamedTuple):
    """What the states of all parameters of a rank have in common. Parameters as in `ShardedStates`."""

    context: Context
    thread: SumThread
    accumulator: Accumulator
    weight: float
    limits_bytes: tuple[float, float]
    stage: int = -1

    def states(self, stages: Iterable[Sequence[nn.Parameter]], shard: Team, groups: Team) -> ShardedStates:
        """The states of some stages' parameters. shard: ranks that shard them; groups: ranks with the same shard."""
        recorder, plan = self.context.recorder, self.context.scenario.strategy.plan
        gathers = Collectives(recorder, shard, self.stage)
        over_groups = ALGORITHMS[plan.algorithm](recorder, groups, self.stage) if groups.size > 1 else None
        bucket_sum = sent(self.context, ThreadedSum(self.thread, ReduceScatter(over_groups), gathers), shard.size)
        timing = ScatterTiming.of(self.context.scenario)
        return ShardedStates(stages, gathers, bucket_sum, self.accumulator, self.weight, self.limits_bytes, timing)


class _PieceOfShard(NamedTuple):
    """A piece of a parameter in a shard. begin: its first element there."""

    parameter: nn.Parameter
    begin: int
    piece: Piece


class ShardedStates:
    """The states of some stages' parameters, of which each rank of a team has an equal part of every bucket.

    shards: this rank's parts. pieces: views of them, of which each belongs to one parameter, and which the optimizer updates.
    Buckets do not span stages.
    """

    def __init__(
        self, stages: Iterable[Sequence[nn.Parameter]], gathers: Collectives, bucket_sum: BucketSum,
        accumulator: Accumulator, weight: float, limits_bytes: tuple[float, float], timing: ScatterTiming,
    ) -> None:  # fmt: skip
        """gathers: of the team. weight: factor of this rank's gradients in the sum. limits_bytes: of the first bucket of a
        stage, and of its others. accumulator: of the gradients of a step's microbatches."""
        self._gathers, self._sum, self._accumulator, self._weight = gathers, bucket_sum, accumulator, weight
        precision = accumulator.precision
        limits = [limit * precision.computed.itemsize / precision.reduced.itemsize for limit in limits_bytes]
        filled = [fill(stage, *limits) for stage in stages]
        self._stages = [range(*pair) for pair in pairwise(accumulate(map(len, filled), initial=0))]
        self._buckets = list(chain(*filled))
        self.shards = [own_part(self._padded(bucket), gathers.team).clone() for bucket in self._buckets]
        self._numbers = {parameter: number for number, parameter in enumerate(chain(*self._buckets))}
        self._cuts = [self._cut(bucket, gathers.team.place) for bucket in self._buckets]
        self.pieces: list[nn.Parameter] = []
        for shard, cuts in zip(self.shards, self._cuts, strict=True):
            for parameter, begin, piece in cuts:
                own = nn.Parameter(shard[begin : begin + piece.end - piece.begin])
                copy_mark(parameter, own)
                self.pieces.append(own)
        self._begun: list[list[Future[Tensor]]] = [[] for _ in self._buckets]
        self._countdown = Countdown(self._buckets, timing.passes, self._begin) if timing.when != "after" else None

    @property
    def recorder(self) -> Recorder:
        """The recorder of this rank."""
        return self._gathers.recorder

    def reduce(self) -> None:
        """Gives each shard its gradient: waits for the sums under way, and begins those that have not begun."""
        with self.recorder.span(Phase.SYNCHRONISE, stage=self._gathers.stage):
            if self._countdown is None:
                for index in range(len(self._buckets)):
                    self._begin(index)
            pieces = iter(self.pieces)
            for shard, cuts, begun in zip(self.shards, self._cuts, self._begun, strict=True):
                total, *others = [own_part(flat.wait(), self._gathers.team) for flat in begun]
                total = total.to(self._accumulator.precision.accumulated)
                for other in others:
                    total += other
                total = total.to(shard.dtype)
                for (_, begin, piece), own in zip(cuts, pieces, strict=False):
                    own.grad = total[begin : begin + piece.end - piece.begin]
                begun.clear()

    def gather(self) -> None:
        """Gives all ranks the updated parameters of each stage, by one all-gather."""
        for stage in self._stages:
            with self.recorder.span(Phase.SYNCHRONISE, stage=self._gathers.stage):
                own, whole = self._own_and_whole(stage)
                with self._gathers.noted(whole):
                    self._gathers.begin_gather(whole, own).wait()
                self._adopt(stage, whole)

    @property
    def sharing(self) -> Sharing:
        """How the ranks of the team share the parameters."""
        matrices = [[cut for cut in chain(*own) if is_matrix(cut.parameter)] for own in self._everyones_cuts()]
        shapes = [parameter.shape for parameter in self._numbers]
        pieces = [[cut.piece for cut in own] for own in matrices]
        return Sharing(PartsOfMatrices(self._gathers, shapes, pieces), 1 / self._gathers.team.size)

    def parts(self, whole: Iterable[Part]) -> Iterator[Part]:
        """The pieces by parameter of the model. whole: the parameters."""
        names = {part.updated: part.name for part in whole}
        for cut, own in zip(chain(*self._cuts), self.pieces, strict=True):
            yield Part(names[cut.parameter], own, cut.piece.begin)

    def close(self) -> None:
        """Removes the hooks of parameters and ends the sums of buckets."""
        if self._countdown is not None:
            self._countdown.close()
        self._sum.close()

    def units(self, layers: Sequence[nn.Module]) -> Iterator[GatheredUnit]:
        """Buckets that one layer completes, with the layers up to those of earlier buckets, in forward order."""
        place_of = {parameter: place for place, layer in enumerate(layers) for parameter in layer.parameters()}
        places = [[place_of[parameter] for parameter in bucket] for bucket in self._buckets]
        units = [list(buckets) for stage in self._stages for _, buckets in groupby(stage, lambda number: min(places[number]))]
        for buckets in sorted(units, key=lambda numbers: min(places[numbers[0]])):
            used = sorted(set(chain(*(places[number] for number in buckets))))
            yield GatheredUnit(self, range(buckets[0], buckets[-1] + 1), [layers[place] for place in used])

    def begin_gather(self, buckets: range) -> Callable[[], None]:
        """Starts to gather the parameters of some buckets; the returned function waits for them."""
        own, whole = self._own_and_whole(buckets)
        begin, labels, ended = self.recorder.now(), self._gathers.labels(whole), list[Any]()
        work = self._gathers.begin_gather(whole, own)
        noted = work.get_future().then(lambda _: ended.append(self.recorder.now()))

        def finish() -> None:
            with self.recorder.waiting(self.recorder.now()):
                work.wait()
            noted.wait()
            self._gathers.note(begin, ended[0], labels)
            self._adopt(buckets, whole)

        return finish

    def _everyones_cuts(self) -> list[list[list[_PieceOfShard]]]:
        """By rank of the team, its cuts of all buckets."""
        return [[self._cut(bucket, place) for bucket in self._buckets] for place in range(self._gathers.team.size)]

    def _cut(self, bucket: Sequence[nn.Parameter], place: int) -> list[_PieceOfShard]:
        """The parameters of which a rank of the team has pieces in its part of a bucket."""
        sizes = [parameter.numel() for parameter in bucket]
        each = -(-sum(sizes) // self._gathers.team.size)
        begin, end = place * each, (place + 1) * each
        cuts, first = [], 0
        for parameter, size in zip(bucket, sizes, strict=True):
            piece = Piece(self._numbers[parameter], max(0, begin - first), min(size, end - first))
            if piece.begin < piece.end:
                cuts.append(_PieceOfShard(parameter, max(0, first - begin), piece))
            first += size
        return cuts

    def _begin(self, index: int) -> None:
        bucket = self._buckets[index]
        sums = self._accumulator.take(bucket)
        for parameter in bucket:
            parameter.grad = None
        flat = self._padded(sums, self._accumulator.precision.reduced).mul_(self._weight)
        self._begun[index].append(self._sum.begin(Bucket(flat, (), ())))

    def _padded(self, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
        """Tensors as one vector, padded with zeros so that the ranks of the team have equal parts of it."""
        rest = -sum(tensor.numel() for tensor in tensors) % self._gathers.team.size
        padding = [tensors[0].new_zeros(rest)] if rest else []
        return pack([*tensors, *padding]).to(dtype or tensors[0].dtype)

    def _own_and_whole(self, buckets: range) -> tuple[Tensor, Tensor]:
        own = pack(self.shards[buckets.start : buckets.stop])
        return own, own.new_empty(self._gathers.team.size * len(own))

    @torch.no_grad()
    def _adopt(self, buckets: range, whole: Tensor) -> None:
        """Takes the parameters of some buckets from the parts of all ranks, in rank order."""
        by_rank = whole.view(self._gathers.team.size, -1)
        shards, taken = self.shards[buckets.start : buckets.stop], self._buckets[buckets.start : buckets.stop]
        for bucket, parts in zip(taken, torch.split(by_rank, [len(shard) for shard in shards], 1), strict=True):
            flat = parts.reshape(-1)[: sum(parameter.numel() for parameter in bucket)]
            for parameter, value in zip(bucket, views(flat, bucket), strict=True):
                parameter.copy_(value)


class GatheredUnit:
    """Buckets whose parameters are gathered together during the forward pass, before the layers that use them."""

    def __init__(self, states: ShardedStates, buckets: range, layers: Sequence[nn.Module]) -> None:
        self._states, self._buckets = states, buckets
        self._finish: Callable[[], None] | None = None
        self._hooks = [layer.register_forward_pre_hook(lambda *_: self.wait()) for layer in layers]

    def begin(self) -> None:
        """Starts the all-gather."""
        self._finish = self._states.begin_gather(self._buckets)

    def wait(self) -> None:
        """Waits for the all-gather if it has begun."""
        if self._finish is not None:
            self._finish()
            self._finish = None

    def close(self) -> None:
        """Removes the hooks of layers."""
        for hook in self._hooks:
            hook.remove()


def own_part(flat: Tensor, team: Team) -> Tensor:
    """This rank's equal part of a vector, as a view."""
    return flat.chunk(team.size)[team.place]
