"""Peak memory of a rank: the running sum of bytes that its passes allocate and free, and its maximum over a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.memory.inputs import Amount, MemoryInputs
from scaleproof.simulator.memory.layers import LayerBytes
from scaleproof.simulator.memory.step import Backward, Tensor, forward
from scaleproof.simulator.parallelism.stages import LOOPED, WHOLE, ScheduleName
from scaleproof.simulator.strategy.pipeline.schedules import EQUAL, SCHEDULES, Pass, PassTimes

Counts = NDArray[np.int64]
# Live bytes: those of all holders, weighted, by column of inputs; or a vector with one place for each holder.
Live = Any
# Schedules in which the passes of each round of as many microbatches as ranks repeat those of the third.
_PERIODIC: Final = ("interleaved_1f1b", "interleaved_zero_bubble", "zb_h1", "zb_h2", "zb_v", "dualpipe_v")
_ROUNDS: Final = 3
# By kind of pass: changes of the numbers of microbatches whose activations are live, and of those of which only the inputs of
# weights' gradients are live.
_KEPT: Final = np.array([1, -1, -1, 0])
_LEFT: Final = np.array([0, 0, 1, -1])


class RunningSum:
    """Live bytes after each allocation, relative to those at the beginning.

    share_of: factor on the bytes of a holder in the sum: a weight, or a vector that has one place for each holder.
    """

    def __init__(self, share_of: Mapping[str, Any]) -> None:
        self._share_of = share_of
        self.live: Live = 0.0 * next(iter(share_of.values()))
        self.timeline = [self.live]

    def allocate(self, holder: str, sizes_bytes: Iterable[Amount], stream: int = 0) -> list[Tensor]:
        """Adds the bytes of tensors."""
        tensors = []
        for size_bytes in sizes_bytes:
            self.live = self.live + self._share_of[holder] * size_bytes
            self.timeline.append(self.live)
            tensors.append(Tensor(holder, size_bytes))
        return tensors

    def free(self, tensors: Iterable[Tensor]) -> None:
        """Subtracts the bytes of tensors."""
        for holder, size_bytes, _ in tensors:
            self.live = self.live - self._share_of[holder] * size_bytes

    def visit(self, layer: LayerBytes, allocate: Callable[[], None]) -> None:
        """Visits the first and the second of equal layers, and the last, to which live bytes change by as much at each layer as
        at the second."""
        allocate()
        if layer.times > 1:
            begin, before = len(self.timeline), self.live
            allocate()
            shift = (layer.times - 2) * (self.live - before)
            self.live = self.live + shift
            self.timeline += [live + shift for live in self.timeline[begin:]]


def fullest(timeline: Iterable[Live], weights: Mapping[str, float] | None) -> Live:
    """The largest of some live bytes; with weights of holders, the vector whose weighted sum is the largest."""
    if weights is None:
        return reduce(np.maximum, timeline)
    live = np.array(timeline)
    return live[np.argmax(live @ np.array(list(weights.values())))]


def pass_bytes(
    inputs: MemoryInputs, layers: Sequence[LayerBytes], shares: Mapping[str, Any], weights: Mapping[str, float] | None
) -> list[Live]:
    """Live bytes of passes over a chunk, in the order of the numbers of `FullestPasses`: at the peak of each kind of pass,
    relative to those before it, and what a microbatch or the chunk adds until a later pass. shares: see `RunningSum`; weights:
    see `fullest`."""
    ahead = RunningSum(shares)
    kept = forward(ahead, layers)

    def backward(makes: bool = False, is_input: bool = False) -> RunningSum:
        back = RunningSum(shares)
        Backward(back, makes, is_input).run(layers, kept)
        return back

    adding = backward()
    first = backward(is_input=True) if inputs.splits else backward(makes=True) if inputs.makes else adding
    peaks = [fullest(sums.timeline, weights) for sums in (ahead, first, adding)]
    return [*peaks, ahead.live, ahead.live + first.live]


class FullestPasses(NamedTuple):
    """The passes in which a rank's memory may be the fullest, with the microbatches in flight before them.

    candidates: passes that no other exceeds, shape (candidates, chunks, 5). The first three numbers of a chunk are 1 if the
    pass is over it and forward, its first backward pass (where backward passes are split, one for the gradient of the input),
    or another whole backward pass. The fourth is the number of microbatches with live activations; the fifth 1 after a backward
    pass over the chunk (where they are split, the number of microbatches of which only the inputs of weights' gradients are
    live). most: largest numbers of microbatches with live activations, by chunk.
    """

    candidates: Counts
    most: Counts

    def live(self, chunk_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Live bytes of each candidate, from those of passes over each chunk, shape (chunks, 5, …)."""
        by_number = chunk_bytes.reshape(-1, *chunk_bytes.shape[2:])
        result: NDArray[np.float64] = self.candidates.reshape(len(self.candidates), -1) @ by_number
        return result


def shortest(schedule: ScheduleName, ranks: int, rank: int, microbatches: int) -> tuple[int, int, int]:
    """The smallest numbers of ranks, rank and microbatches with which a rank is as full as with the given ones: the first rank,
    and few microbatches, where the passes of further ones repeat what is live."""
    if schedule == "gpipe":
        return 1, 0, microbatches
    if schedule == "1f1b":
        return ranks - rank, 0, min(microbatches, ranks - rank + 2)
    if schedule in _PERIODIC and (microbatches % ranks == 0 or schedule not in LOOPED):
        return ranks, rank, min(microbatches, _ROUNDS * ranks)
    return ranks, rank, microbatches


def fullest_passes(
    schedule: ScheduleName, ranks: int, rank: int, microbatches: int, chunks: int, times: PassTimes = EQUAL
) -> FullestPasses:
    """The passes in which a rank may be the fullest. times: of the passes, which the order of some schedules depends on."""
    return _fullest_passes(schedule, *shortest(schedule, ranks, rank, microbatches), chunks, times)


@lru_cache(maxsize=10_000)
def _fullest_passes(
    schedule: ScheduleName, ranks: int, rank: int, microbatches: int, chunks: int, times: PassTimes
) -> FullestPasses:
    kind, chunk, _ = SCHEDULES[schedule](ranks, rank, microbatches, chunks, times).T
    is_over, is_back, splits = chunk[:, None] == np.arange(chunks), kind == Pass.BACKWARD, schedule not in WHOLE
    is_first = kind == Pass.INPUT
    if not splits:
        is_first[np.argmax(is_over & is_back[:, None], axis=0)] = True
    kept, left = _KEPT[kind][:, None] * is_over, _LEFT[kind][:, None] * is_over
    later = left if splits else (is_first[:, None] & is_over).astype(np.int64)
    after, after_later = kept.cumsum(axis=0), later.cumsum(axis=0)
    kinds = (is_over & is_kind[:, None] for is_kind in (kind == Pass.FORWARD, is_first, is_back & ~is_first))
    rows = np.stack([*kinds, after - kept, after_later - later], axis=2)
    groups = [rows[rows[:, number, column] == 1] for column in range(3) for number in range(chunks)]
    candidates = [_unexceeded(passes) for passes in (*groups, rows[kind == Pass.WEIGHT])]
    return FullestPasses(np.concatenate(candidates), after.max(axis=0))


def _unexceeded(passes: Counts) -> Counts:
    """Those of some passes of one kind whose numbers of microbatches no other pass exceeds in all chunks."""
    result, left = [], passes
    while len(left):
        most = left[left[:, :, 3:].sum(axis=(1, 2)).argmax()]
        result.append(most)
        left = left[(left > most).any(axis=(1, 2))]
    return np.array(result, dtype=np.int64).reshape(-1, *passes.shape[1:])
