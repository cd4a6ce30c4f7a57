"""Training on ranks that are late, as for a slow disk or a host that does other work; imported by the ranks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from scaleproof.proof.planted.kinds import Lateness
from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.launch.rank import here
from scaleproof.validator.measure import train_here
from scaleproof.validator.record.recorder import Recorder


def train_late(late: Mapping[int, Lateness], *arguments: Any) -> Mapping[str, Any]:
    """Trains on a rank, as `measure` does. late: by rank."""
    if (own := late.get(here().rank)) is not None:
        make_late(Recorder, Lateness(*own))
    return train_here(*arguments)


def make_late(recorder: type[Recorder], own: Lateness) -> None:
    """Makes recorders wait in their steps, which is recorded if it is for input."""
    begin_step, enter, steps = recorder.begin_step, recorder.enter, [0]

    def is_late() -> bool:
        return steps[0] % own.every == 0

    def begin_late(self: Recorder, step: int) -> None:
        begin_step(self, step)
        steps[0] = step
        if own.before == Phase.INPUT and is_late():
            with self.span(Phase.INPUT):
                time.sleep(own.seconds)

    def enter_late(self: Recorder, phase: int) -> None:
        if phase == own.before != Phase.INPUT and is_late():
            time.sleep(own.seconds)
        enter(self, phase)

    recorder.begin_step, recorder.enter = begin_late, enter_late  # type: ignore[method-assign]
