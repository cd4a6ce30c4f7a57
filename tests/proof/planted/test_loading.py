"""Late batches are the same batches, and their lateness is recorded as waiting for input."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch

from scaleproof.proof.planted.loading import LateBatches
from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.train.data import Batch

LATE_S = 0.01


class _Recorder:
    """Records the phases of spans and their seconds."""

    def __init__(self) -> None:
        self.spans: list[tuple[Phase, float]] = []

    @contextmanager
    def span(self, phase: Phase) -> Iterator[None]:
        begin_s = time.perf_counter()
        yield
        self.spans.append((phase, time.perf_counter() - begin_s))


def test_late_batches_are_recorded_as_waiting_for_input() -> None:
    batches = [Batch(torch.full((1,), float(n)), torch.zeros(1)) for n in range(3)]
    recorder = _Recorder()
    late = LateBatches(batches, LATE_S, cast(Recorder, recorder))
    assert len(late) == 3
    assert late[1] is batches[1]
    assert late[0:2] == batches[0:2]
    assert [phase for phase, _ in recorder.spans] == [Phase.INPUT] * 2
    assert min(seconds for _, seconds in recorder.spans) >= LATE_S
