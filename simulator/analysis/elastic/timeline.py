"""The predicted timeline of a job along events of hosts: training on each number of hosts, and the pauses between."""

from __future__ import annotations

from typing import ClassVar, Final

from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import counted, format_percent, format_time_s

PARTS: Final = ("useful", "checkpoints", "lost work", "detection", "new group", "start", "restore")


class TrainingStretch(Record):
    """Training on the same hosts from one change to the next. samples: per step. first_step, last_step: steps done at its begin
    and end. kept_step: the last one that is not lost. checkpoints_s: seconds of checkpoints, the hand-over's included."""

    derived: ClassVar = ("samples_per_s",)

    begin_s: float
    end_s: float
    hosts: int
    workers: int
    samples: int
    step_s: float
    first_step: int
    last_step: int
    kept_step: int
    checkpoints_s: float

    @property
    def useful_s(self) -> float:
        """Seconds of steps that are kept."""
        return (self.kept_step - self.first_step) * self.step_s

    @property
    def lost_s(self) -> float:
        """Seconds of work that is lost."""
        return self.end_s - self.begin_s - self.useful_s - self.checkpoints_s

    @property
    def samples_per_s(self) -> float:
        """Throughput while training runs, without checkpoints; 0 where no step was taken."""
        return self.samples / self.step_s if self.step_s else 0.0


class HostChange(Record):
    """A change of the hosts that train, of their processes or links.

    causes: the events in words. at_s: of the first event. stopped_s, resumed_s: between which nothing is trained. done_step:
    steps done when training stopped; resumed_step: from which it goes on. lost_s: work since the last checkpoint. detection_s,
    group_s, start_s, restore_s: parts of the pause; low_s, high_s: its 5th and 95th percentile. handed_over: whether the state
    was saved at the end of the step before hosts changed.
    """

    derived: ClassVar = ("pause_s", "lost_steps")

    causes: tuple[str, ...]
    at_s: float
    stopped_s: float
    resumed_s: float
    hosts_before: int
    hosts_after: int
    done_step: int
    resumed_step: int
    lost_s: float
    detection_s: float
    group_s: float
    start_s: float
    restore_s: float
    low_s: float
    high_s: float
    handed_over: bool

    @classmethod
    def without_pause(cls, causes: tuple[str, ...], at_s: float, now_s: float, hosts: int, step: int) -> HostChange:
        """A change with which the same hosts go on at once, such as that of a link."""
        same = {"stopped_s": now_s, "resumed_s": now_s, "hosts_before": hosts, "hosts_after": hosts}
        nothing_s = dict.fromkeys(("lost_s", "detection_s", "group_s", "start_s", "restore_s", "low_s", "high_s"), 0.0)
        fields = {**same, **nothing_s, "done_step": step, "resumed_step": step, "handed_over": False}
        return cls.model_validate({"causes": causes, "at_s": at_s, **fields})

    @property
    def lost_steps(self) -> int:
        """Steps that are taken again."""
        return self.done_step - self.resumed_step

    @property
    def pause_s(self) -> float:
        """Seconds without training."""
        return self.resumed_s - self.stopped_s


class ElasticTimeline(Record):
    """Training along events, predicted or measured. undisturbed_s: seconds of the same steps on the first hosts without events,
    if they are known."""

    derived: ClassVar = ("total_s", "ratio", "samples_per_s", "parts_s")

    scenario: str
    strategy: str
    steps: int
    stretches: tuple[TrainingStretch, ...]
    changes: tuple[HostChange, ...]
    undisturbed_s: float | None

    def __repr__(self) -> str:
        return (
            f"{self.scenario}: {counted(self.steps, 'step')} in {format_time_s(self.total_s)}\n"
            f"  {counted(len(self.changes), 'change')} of hosts; {format_percent(self.ratio)} of the time are useful"
        )

    @property
    def total_s(self) -> float:
        """Seconds from the begin of the first step to the end of the last."""
        return self.stretches[-1].end_s

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds by cause; they add up to the total."""
        changes = self.changes
        return {
            "useful": sum(stretch.useful_s for stretch in self.stretches),
            "checkpoints": sum(stretch.checkpoints_s for stretch in self.stretches),
            "lost work": sum(stretch.lost_s for stretch in self.stretches),
            "detection": sum(change.detection_s for change in changes),
            "new group": sum(change.group_s for change in changes),
            "start": sum(change.start_s for change in changes),
            "restore": sum(change.restore_s for change in changes),
        }

    @property
    def ratio(self) -> float:
        """Effective training time ratio: seconds of kept steps over all."""
        return self.parts_s["useful"] / self.total_s

    @property
    def samples(self) -> int:
        """Samples of all kept steps."""
        return sum((stretch.kept_step - stretch.first_step) * stretch.samples for stretch in self.stretches)

    @property
    def samples_per_s(self) -> float:
        """Goodput: samples of kept steps over all seconds."""
        return self.samples / self.total_s
