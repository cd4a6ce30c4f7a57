"""Steps of training on the same hosts: when its steps end, and which checkpoints count by then."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from scaleproof.simulator.analysis.elastic.pauses import Saving
from scaleproof.simulator.analysis.elastic.sizes import JobSize


@dataclass(frozen=True)
class CheckpointedSteps:
    """Steps on the same hosts. begin_s: when the first step begins; first: steps done by then; kept: those whose state is
    saved. every: steps from one checkpoint to the next. last: step at which training ends."""

    begin_s: float
    first: int
    kept: int
    last: int
    every: int
    hosts: frozenset[int]
    size: JobSize
    saving: Saving

    def end_s(self, step: int) -> float:
        """When a step ends."""
        return self.begin_s + (step - self.first) * self.size.step_s + self.checkpoints(step - 1) * self.saving.cost_s

    def checkpoints(self, step: int) -> int:
        """Number of checkpoints in this stretch up to a step."""
        return max(0, step // self.every - self.first // self.every)

    def steps_at(self, now_s: float) -> int:
        """Number of steps that have ended by a time."""
        return self.first - 1 + bisect_right(self._steps, now_s, key=self.end_s)

    def next_end_s(self, now_s: float) -> tuple[int, float]:
        """The step in which a time is, or that ends at it, and when it ends; the last step of training at the latest."""
        step = self.first + bisect_left(self._steps[:-1], now_s, key=self.end_s)
        return step, self.end_s(step)

    def next_begin_s(self, step: int) -> float:
        """When the step after `step` begins: after the checkpoint, if one is taken."""
        saved_s = self.saving.cost_s if step > self.first and step % self.every == 0 else 0.0
        return self.end_s(step) + saved_s

    def handed_over(self, step: int) -> tuple[float, float]:
        """When the state is saved that is handed over after a step, and the seconds of this in addition to checkpoints that are
        taken anyway."""
        if step == self.first == self.kept:
            return self.begin_s, 0.0
        taken_s = self.saving.cost_s if step % self.every == 0 else 0.0
        return self.end_s(step) + self.saving.all_s, self.saving.all_s - taken_s

    def saved_at(self, now_s: float) -> int:
        """The last step whose checkpoint counts at a time: host 0, which stays, completes one that only it writes."""
        step = self.steps_at(now_s) // self.every * self.every
        written_s = self.saving.all_s if self.saving.by_all else 0.0
        while step > self.first and self.end_s(step) + written_s > now_s:
            step -= self.every
        return step if step > self.first else self.kept

    @property
    def _steps(self) -> range:
        return range(self.first, self.last + 1)
