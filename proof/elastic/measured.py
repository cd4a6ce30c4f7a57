"""Cost of a fault from the events that processes logged: the parts of the lost time, and step times before and after."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.records import LoggedEvent
from scaleproof.simulator.common.errors import RunError


@dataclass(frozen=True)
class Loss:
    """Seconds between the end of the last checkpoint and the first repeated step, all of which are lost.

    work: since that checkpoint until the kill. detection: until an agent or the supervisor notices. meeting: the rendezvous, if
    there is one. start: until all ranks can take their next step.
    """

    work_s: float
    detection_s: float
    meeting_s: float
    start_s: float

    @property
    def restart_s(self) -> float:
        """Seconds of the restart: rendezvous and start of processes."""
        return self.meeting_s + self.start_s

    @property
    def all_s(self) -> float:
        """Seconds lost in all."""
        return self.work_s + self.detection_s + self.restart_s


@dataclass(frozen=True)
class Pieces:
    """Times of an undisturbed run. start_s: until all processes have imported what training needs. meet_s: from there to their
    first step. save_s: of a checkpoint. digests: of each rank's final parameters. restore_s: the part of
    meet_s in which ranks read a checkpoint."""

    start_s: float
    meet_s: float
    save_s: float
    digests: dict[int, str]
    restore_s: float = 0.0


def loss(events: Sequence[LoggedEvent]) -> Loss:
    """Lost time of the one fault of a run. Raises RunError if something else failed too."""
    killed = _kill(events)
    step = resumed_from(events)
    saved_s = max(event.at_s for event in events if event.what == "saved" and event.step == step and event.at_s < killed.at_s)
    after = [event for event in events if event.at_s >= killed.at_s]
    noticed_s = min(event.at_s for event in after if event.what == "noticed" and event.by in ("agent", "supervisor"))
    met_s = max((event.at_s for event in after if event.what == "met"), default=noticed_s)
    ready = [event for event in after if event.what == "ready"]
    if len({event.host for event in ready}) < len(ready):
        raise RunError("more ranks were restarted than killed; is the machine too busy?")
    ready_s = max(event.at_s for event in ready)
    return Loss(killed.at_s - saved_s, noticed_s - killed.at_s, met_s - noticed_s, ready_s - met_s)


def resumed_from(events: Sequence[LoggedEvent]) -> int:
    """Step of the checkpoint from which ranks continued. Raises RunError if they did not."""
    killed = _kill(events)
    ready = [event for event in events if event.what == "ready" and event.at_s >= killed.at_s]
    if not ready:
        raise RunError("no rank continued after the kill; give the run more steps")
    return ready[0].step


def pieces(events: Sequence[LoggedEvent]) -> Pieces:
    """Times of a run without a fault."""
    started_s = max((event.at_s for event in events if event.what == "started"), default=events[0].at_s)
    imported_s = max(event.at_s for event in events if event.what == "imported")
    ready_s = max(event.at_s for event in events if event.what == "ready")
    saved = [event for event in events if event.what == "saved"]
    # new runs save the initial state, restored ones do not
    first_s = max(event.took_s for event in saved if event.step == 0)
    rest_s = [event.took_s for event in saved if event.step > 0]
    meet_s = max(0.0, ready_s - imported_s - first_s)
    restore_s = max((event.took_s for event in events if event.what == "restored"), default=0.0)
    return Pieces(imported_s - started_s, meet_s, statistics.median(rest_s), digests(events), min(restore_s, meet_s))


def digests(events: Sequence[LoggedEvent]) -> dict[int, str]:
    """Digest of each rank's final parameters, by rank."""
    return {event.rank: event.digest for event in events if event.what == "ended"}


def elapsed_s(events: Sequence[LoggedEvent]) -> float:
    """Seconds from when all ranks were ready for their first step until they had ended the last."""
    ready_s = max(event.at_s for event in events if event.what == "ready" and event.step == 0)
    return max(event.at_s for event in events if event.what == "step") - ready_s


def step_s(events: Sequence[LoggedEvent], job: Job, after: bool = False) -> float:
    """Median seconds of steps without a checkpoint, before the kill, or after all ranks continued."""
    killed_s = min((event.at_s for event in events if event.what == "killed"), default=float("inf"))
    ends_s: dict[int, float] = {}
    for event in events:
        if event.what == "step" and (event.at_s > killed_s) == after:
            ends_s[event.step] = max(event.at_s, ends_s.get(event.step, event.at_s))
    first = min(ends_s, default=0) if after else job.warmup
    times_s = [
        end_s - ends_s[step - 1]
        for step, end_s in ends_s.items()
        if step - 1 in ends_s and step > first and (step - 1) % job.every
    ]
    if not times_s:
        raise RunError("too few steps to measure their time; give more steps, or more frequent checkpoints")
    return statistics.median(times_s)


def _kill(events: Sequence[LoggedEvent]) -> LoggedEvent:
    """The event at which the injector killed a process."""
    kills = [event for event in events if (event.by, event.what) == ("injector", "killed")]
    if len(kills) != 1:
        raise RunError("the run ended before anything was killed; give it more steps")
    return kills[0]
