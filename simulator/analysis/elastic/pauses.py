"""Durations of a change of hosts: of noticing it, forming a new group, starting processes, and restoring the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from scaleproof.simulator.analysis.elastic.sizes import EventJob
from scaleproof.simulator.analysis.goodput.rates import checkpoint_cost

ChangeKind = Literal["failure", "crash", "leave", "join"]


@dataclass(frozen=True)
class Regroup:
    """A change of the group. kind: `failure`, hosts are gone without a hand-over; `crash`, a host starts its process again;
    `leave`, a host goes after a hand-over; `join`, hosts join. left: hosts that go on; joining_s: when each new host requests
    to join, in seconds after training stopped. number: of earlier pauses. compute_left_s: of the interrupted step until ranks
    communicate."""

    kind: ChangeKind
    left: int
    joining_s: tuple[float, ...] = ()
    number: int = 0
    compute_left_s: float = 0.0

    @property
    def is_failure(self) -> bool:
        """Whether work is lost, and has to be noticed to be."""
        return self.kind in ("failure", "crash")

    @property
    def hosts(self) -> int:
        """Number of hosts of the new group."""
        return self.left + len(self.joining_s)


@dataclass(frozen=True)
class Pause:
    """Mean seconds from when training stops until it goes on, by cause. detection: until the failure is noticed. group: until
    hosts have formed a new group. start: until its processes run. restore: until they have the state of the checkpoint.
    low_s, high_s: 5th and 95th percentile of the sum."""

    detection_s: float
    group_s: float
    start_s: float
    restore_s: float
    low_s: float
    high_s: float

    @property
    def formed_s(self) -> float:
        """Seconds until the new group is formed."""
        return self.detection_s + self.group_s

    @property
    def all_s(self) -> float:
        """Seconds of the whole pause."""
        return self.formed_s + self.start_s + self.restore_s


@dataclass(frozen=True)
class Saving:
    """Checkpoints. stall_s: for which training stops. writing_s: after that, until it counts. slowdown: share of its speed
    that training loses while it is written. by_all: whether all hosts write a part, so that one cannot go before it is written.
    """

    stall_s: float
    writing_s: float = 0.0
    slowdown: float = 0.0
    by_all: bool = True

    @property
    def cost_s(self) -> float:
        """Seconds that a checkpoint adds to training."""
        return self.stall_s + self.slowdown * self.writing_s

    @property
    def all_s(self) -> float:
        """Seconds until a checkpoint counts."""
        return self.stall_s + self.writing_s


class RecoveryTimes(ABC):
    """Times of a launcher, by default one that knows of all events at once, and of a training program."""

    @property
    @abstractmethod
    def saving(self) -> Saving:
        """Times of a checkpoint."""

    @property
    def requests_s(self) -> float:
        """Seconds from when a host is available until it requests to join."""
        return 0.0

    @property
    def reacts_s(self) -> float:
        """Seconds from the notice of an interruption until a rank is signalled to stop."""
        return 0.0

    def seen_s(self, hosts: int) -> float:
        """Mean seconds from when a host requests to join until one of `hosts` hosts that train stops its ranks."""
        return 0.0

    @abstractmethod
    def pause(self, change: Regroup) -> Pause:
        """Duration of a change."""


class StatedTimes(RecoveryTimes):
    """The times that a scenario's `reliability` states: detection (of failures), reschedule (a new group), initialise (start of
    processes), and reading a checkpoint at the storage's bandwidth."""

    def __init__(self, job: EventJob) -> None:
        self._reliability = job.reliability
        self._cost = checkpoint_cost(job.scenario, job.reliability, job.first_hosts)

    @property
    def saving(self) -> Saving:
        """Times of a checkpoint."""
        return Saving(float(self._cost.stall_s), float(self._cost.writing_s), self._reliability.checkpoint.slowdown)

    def pause(self, change: Regroup) -> Pause:
        """Duration of a change, the same for any number of hosts."""
        stated = self._reliability
        detection_s = stated.detection_s if change.is_failure else 0.0
        parts_s = (detection_s, stated.reschedule_s, stated.initialise_s, float(self._cost.load_s))
        return Pause(*parts_s, sum(parts_s), sum(parts_s))
