"""What is in flight on a pipeline rank before each of its passes, from the order of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.strategy.pipeline.schedules import SCHEDULES, WHOLE, Pass, PassTimes, ScheduleName

EQUAL: Final = PassTimes()
Counts = NDArray[np.int64]
# Rounds of microbatches after which interleaved 1F1B is periodic.
_ROUNDS: Final = 3
# By kind of pass: changes of the numbers of microbatches whose activations are live, and of those of which only the inputs of
# weights' gradients are live.
_KEPT: Final = np.array([1, -1, -1, 0])
_LEFT: Final = np.array([0, 0, 1, -1])


class FullestPasses:
    """What is in flight on a rank before each of its passes.

    candidates: passes in which memory may be the fullest, shape (candidates, columns · groups). For each of `columns` there is
    one number for each group of equal chunks: of a kind of pass, 1 if it is that of the candidate; "kept", microbatches with
    live activations; "left", those of which only the inputs of weights' gradients are live; "gradients", chunks that have made
    theirs. most: largest numbers of microbatches with live activations of each chunk, summed by group.
    """

    def __init__(self, kind: Counts, chunk: Counts, groups: Sequence[int], makes: bool, splits: bool) -> None:
        """kind, chunk: of the passes in order. groups: of the chunks. makes: whether the first backward pass over a chunk
        allocates its gradients. splits: whether gradients of weights are computed in separate passes."""
        is_in = np.eye(max(groups) + 1, dtype=np.int64)[list(groups)]
        own = (chunk[:, None] == np.arange(len(groups))).astype(np.int64)
        is_back = (kind == Pass.BACKWARD) & makes
        first = np.zeros(len(kind), dtype=np.bool_)
        if makes:
            first[np.argmax(own * is_back[:, None], axis=0)] = True
        kinds = {
            "forward": kind == Pass.FORWARD, "making": first, "adding": (kind == Pass.BACKWARD) & ~first,
            "input": kind == Pass.INPUT,
        }  # fmt: skip
        changes = {"kept": _KEPT[kind], "left": _LEFT[kind], "gradients": first.astype(np.int64)}
        self.columns = columns(makes, splits)
        at = [(kinds[name][:, None] * own) @ is_in for name in self.columns if name in kinds]
        after = {name: np.cumsum(change[:, None] * own, axis=0) for name, change in changes.items() if name in self.columns}
        before = [(total - changes[name][:, None] * own) @ is_in for name, total in after.items()]
        passes, counts = np.concatenate(at, axis=1), np.concatenate(before, axis=1)
        code = np.where(passes.any(axis=1), passes.argmax(axis=1), -1)
        self.candidates: Counts = np.concatenate(
            [_fullest(passes[code == one], counts[code == one]) for one in np.unique(code).tolist()]
        )
        self.most: Counts = after["kept"].max(axis=0) @ is_in

    def counts(self, column: str) -> Counts:
        """The numbers of a column, shape (candidates, groups)."""
        own: Counts = self.candidates.reshape(len(self.candidates), len(self.columns), -1)[:, self.columns.index(column)]
        return own


def columns(makes: bool, splits: bool) -> tuple[str, ...]:
    """The columns of candidates. Arguments: see `FullestPasses`."""
    if splits:
        return ("forward", "adding", "input", "kept", "left")
    return ("forward", "making", "adding", "kept", "gradients") if makes else ("forward", "adding", "kept")


def fullest_passes(
    schedule: ScheduleName,
    ranks: int,
    rank: int,
    microbatches: int,
    groups: tuple[int, ...] = (0,),
    makes: bool = False,
    times: PassTimes = EQUAL,
) -> FullestPasses:
    """What is in flight on a rank. times: of the passes, which the order of some schedules depends on. Cases with the same
    result share the smallest one, with few microbatches on the first rank."""
    if schedule == "gpipe":
        ranks, rank = 1, 0
    elif schedule == "1f1b":
        ranks, rank = ranks - rank, 0
        microbatches = min(microbatches, ranks + 2)
    elif schedule == "interleaved_1f1b" and microbatches % ranks == 0:
        microbatches = min(microbatches, _ROUNDS * ranks)
    return _fullest_passes(schedule, ranks, rank, microbatches, groups, makes, times)


@lru_cache(maxsize=10_000)
def _fullest_passes(
    schedule: ScheduleName, ranks: int, rank: int, microbatches: int, groups: tuple[int, ...], makes: bool, times: PassTimes
) -> FullestPasses:
    kind, chunk, _ = SCHEDULES[schedule](ranks, rank, microbatches, len(groups), times).T
    return FullestPasses(kind, chunk, groups, makes, schedule not in WHOLE)


def _fullest(passes: Counts, counts: Counts) -> Counts:
    """The rows of passes of one kind whose counts no other row exceeds in all columns."""
    found = []
    left = counts
    while len(left):
        fullest = left[left.sum(axis=1).argmax()]
        found.append(fullest)
        left = left[(left > fullest).any(axis=1)]
    return np.concatenate([passes[: len(found)], np.array(found)], axis=1)
