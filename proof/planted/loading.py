"""Training on ranks that wait for their batches, as for a slow disk; imported by the ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import train_here
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.base import Context
from scaleproof.validator.train.data import Batch


@dataclass(frozen=True)
class LateBatches(Sequence[Batch]):
    """Batches that are available some seconds after they are needed, which is recorded as waiting for input."""

    batches: Sequence[Batch]
    seconds: float
    recorder: Recorder

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        """The batch, or the batches, after waiting for them."""
        with self.recorder.span(Phase.INPUT):
            time.sleep(self.seconds)
        return self.batches[index]

    def __len__(self) -> int:
        return len(self.batches)


def train_with_late_batches(loading_s: Mapping[int, float], *arguments: Any) -> Mapping[str, Any]:
    """Trains on a rank, as `measure` does. loading_s: seconds for which a rank waits for each batch, by rank."""
    if (seconds := loading_s.get(here().rank)) is None:
        return train_here(*arguments)
    batches = Context.batches

    def late(context: Context, worker: int) -> Sequence[Batch]:
        return LateBatches(batches(context, worker), seconds, context.recorder)

    Context.batches = late  # type: ignore[method-assign,assignment]
    return train_here(*arguments)
