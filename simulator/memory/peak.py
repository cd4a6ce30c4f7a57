"""Peak memory of a rank: the running sum of bytes that passes allocate and free, and the passes that may be the fullest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.inputs import Amount
from scaleproof.simulator.memory.layers import LayerBytes
from scaleproof.simulator.memory.step import Backward, Tensor, forward
from scaleproof.simulator.parallelism.stages import WHOLE, ScheduleName
from scaleproof.simulator.strategy.pipeline.passes import Pass, PassTimes
from scaleproof.simulator.strategy.pipeline.schedules import SCHEDULES

EQUAL: Final = PassTimes()
Counts = NDArray[np.int64]
# Rounds of microbatches after which interleaved 1F1B is periodic.
_ROUNDS: Final = 3
# By kind of pass: changes of the numbers of microbatches whose activations are live, and of those of which only the inputs of
# weights' gradients are live.
_KEPT: Final = np.array([1, -1, -1, 0])
_LEFT: Final = np.array([0, 0, 1, -1])


class RunningSum:
    """Live bytes after each allocation, relative to those at the beginning.

    share_of: factor on the bytes of a holder in the sum: a weight, or a vector that has one place for each holder. Bytes may be
    arrays, which represent many chunks, if factors are weights.
    """

    def __init__(self, share_of: Mapping[str, Any]) -> None:
        self._share_of = share_of
        self.live: Any = 0.0 * next(iter(share_of.values()))
        self.timeline = [self.live]

    def allocate(self, holder: str, sizes_bytes: Iterable[Amount], stream: int = 0) -> list[Tensor]:
        """Adds the bytes of tensors."""
        tensors = [Tensor(holder, size_bytes) for size_bytes in sizes_bytes]
        for _, size_bytes, _ in tensors:
            self.live = self.live + self._share_of[holder] * size_bytes
            self.timeline.append(self.live)
        return tensors

    def free(self, tensors: Iterable[Tensor]) -> None:
        """Subtracts the bytes of tensors."""
        for holder, size_bytes, _ in tensors:
            self.live = self.live - self._share_of[holder] * size_bytes

    def visit(self, layer: LayerBytes, allocate: Callable[[], None]) -> None:
        """Visits the first and the second of equal layers, and the last, to which live bytes change by as much at each layer as
        at the second."""
        allocate()
        is_one = layer.count == 1
        if np.all(is_one):
            return
        begin, before = len(self.timeline), self.live
        allocate()
        shift, second = (layer.count - 2) * (self.live - before), self.timeline[begin:]
        self.live = self.live + shift
        self.timeline[begin:] = [*second, *(live + shift for live in second)]
        if np.ndim(layer.count):
            # where there is one layer, there is no second
            self.timeline[begin:] = [np.where(is_one, before, live) for live in self.timeline[begin:]]


class ChunkTimeline(NamedTuple):
    """Running sums of the passes over a chunk.

    passes: of each kind, by its name among the columns of `FullestPasses`: live bytes after each allocation, relative to those
    before the pass. changes: what a microbatch adds to the live bytes: "kept" by its forward pass, "left" after a backward pass
    without gradients of weights, "gradients" by the first backward pass.
    """

    passes: Mapping[str, Sequence[Any]]
    changes: Mapping[str, Any]

    @classmethod
    def of(cls, layers: Sequence[LayerBytes], share_of: Mapping[str, Any], makes: bool, splits: bool) -> Self:
        """The running sums of the passes over some layers. share_of: see `RunningSum`. makes: whether the first backward pass
        allocates gradients. splits: whether gradients of weights are computed in separate passes."""
        ahead = RunningSum(share_of)
        kept = forward(ahead, layers)

        def backward(makes: bool = False, is_input: bool = False) -> RunningSum:
            back = RunningSum(share_of)
            Backward(back, makes, is_input).run(layers, kept)
            return back

        adding = backward()
        passes, changes = {"forward": ahead.timeline, "adding": adding.timeline}, {"kept": ahead.live}
        if splits:
            other = backward(is_input=True)
            passes["input"], changes["left"] = other.timeline, other.live + ahead.live
        else:
            other = backward(makes=True) if makes else adding
            passes["making"], changes["gradients"] = other.timeline, other.live + ahead.live
        return cls(passes, changes)


class FullestPasses:
    """The passes of a rank in which its memory may be the fullest, and what is in flight before them.

    candidates: passes that no other exceeds, shape (candidates, columns · groups). For each of `columns` there is one number
    for each group of equal chunks: of a kind of pass, 1 if it is that of the candidate; "kept", microbatches with live
    activations; "left", those of which only the inputs of weights' gradients are live; "gradients", chunks that had a backward
    pass. most: largest numbers of microbatches with live activations of each chunk, summed by group.
    """

    def __init__(self, kind: Counts, chunk: Counts, groups: Sequence[int], splits: bool) -> None:
        """kind, chunk: of the passes in order. groups: of the chunks. splits: whether gradients of weights are computed in
        separate passes."""
        self.columns, is_in = columns(splits), np.eye(max(groups) + 1, dtype=np.int64)[list(groups)]
        is_back, own = kind == Pass.BACKWARD, chunk[:, None] == np.arange(len(groups))
        first = np.zeros(len(kind), dtype=np.bool_)
        if not splits:
            first[np.argmax(own & is_back[:, None], axis=0)] = True
        kinds = {
            "forward": kind == Pass.FORWARD, "making": first, "adding": is_back & ~first, "input": kind == Pass.INPUT,
        }  # fmt: skip
        passes = np.concatenate([(kinds[name][:, None] & own) @ is_in for name in self.columns if name in kinds], axis=1)
        kept, left = changes(kind, chunk, len(groups))
        own_changes = kept, left if splits else first[:, None] & own
        after = [np.cumsum(change, axis=0) for change in own_changes]
        before = [total - change for total, change in zip(after, own_changes, strict=True)]
        counts = np.concatenate([one @ is_in for one in before], axis=1)
        code = np.where(passes.any(axis=1), passes.argmax(axis=1), -1)
        self.candidates: Counts = np.concatenate(
            [_fullest(passes[code == one], counts[code == one]) for one in np.unique(code).tolist()]
        )
        self.most: Counts = after[0].max(axis=0) @ is_in

    def counts(self, column: str) -> Counts:
        """The numbers of a column, shape (candidates, groups)."""
        own: Counts = self.candidates.reshape(len(self.candidates), len(self.columns), -1)[:, self.columns.index(column)]
        return own


def columns(splits: bool) -> tuple[str, ...]:
    """The columns of candidates. splits: whether gradients of weights are computed in separate passes."""
    return ("forward", "adding", "input", "kept", "left") if splits else ("forward", "making", "adding", "kept", "gradients")


def changes(kind: Counts, chunk: Counts, chunks: int) -> Counts:
    """Changes by passes of the numbers of microbatches with live activations, and of those of which only the inputs of weights'
    gradients are live, by chunk; shape (2, passes, chunks)."""
    own = chunk[:, None] == np.arange(chunks)
    return np.array([_KEPT[kind][:, None] * own, _LEFT[kind][:, None] * own])


def fullest_passes(
    schedule: ScheduleName,
    ranks: int,
    rank: int,
    microbatches: int,
    groups: tuple[int, ...] = (0,),
    times: PassTimes = EQUAL,
) -> FullestPasses:
    """The passes in which a rank may be the fullest. times: of the passes, which the order of some schedules depends on.

    Cases with the same result share the smallest one, with few microbatches on the first rank.
    """
    if schedule == "gpipe":
        ranks, rank = 1, 0
    elif schedule == "1f1b":
        ranks, rank = ranks - rank, 0
        microbatches = min(microbatches, ranks + 2)
    elif schedule == "interleaved_1f1b" and microbatches % ranks == 0:
        microbatches = min(microbatches, _ROUNDS * ranks)
    return _fullest_passes(schedule, ranks, rank, microbatches, groups, times)


@lru_cache(maxsize=10_000)
def _fullest_passes(
    schedule: ScheduleName, ranks: int, rank: int, microbatches: int, groups: tuple[int, ...], times: PassTimes
) -> FullestPasses:
    kind, chunk, _ = SCHEDULES[schedule](ranks, rank, microbatches, len(groups), times).T
    return FullestPasses(kind, chunk, groups, schedule not in WHOLE)


def _fullest(passes: Counts, counts: Counts) -> Counts:
    """The rows of passes of one kind whose counts no other row exceeds in all columns."""
    found = []
    left = counts
    while len(left):
        fullest = left[left.sum(axis=1).argmax()]
        found.append(fullest)
        left = left[(left > fullest).any(axis=1)]
    return np.concatenate([passes[: len(found)], np.array(found)], axis=1)
