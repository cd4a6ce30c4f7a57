"""Simulation from event to event, which makes a timeline."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.analysis.elastic.checkpointed_steps import CheckpointedSteps
from scaleproof.simulator.analysis.elastic.pauses import ChangeKind, Pause, RecoveryTimes, Regroup
from scaleproof.simulator.analysis.elastic.sizes import EventJob
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline, HostChange, TrainingStretch
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.scenario.reliability import (
    AnyHostEvent,
    HostFailure,
    HostJoin,
    LinkChange,
    ProcessCrash,
    SpotInterruption,
)

# relative to a step: times this close are the same
_CLOSE: Final = 1e-9


class _Requesting(NamedTuple):
    """A host that is available since `at_s` and requests to join at `requests_s`."""

    event: HostJoin
    at_s: float
    requests_s: float


class _Stop(NamedTuple):
    """The end of training on a group. gone: hosts that go. at_s: of the first event."""

    kind: ChangeKind
    now_s: float
    gone: frozenset[int] = frozenset()
    causes: tuple[str, ...] = ()
    at_s: float = math.inf


class EventSimulation:
    """Simulation of the events of a job. times: of its launcher."""

    def __init__(self, job: EventJob, times: RecoveryTimes) -> None:
        self._job, self._times = job, times
        self._pending = deque(job.events)
        self._requesting: list[_Requesting] = []
        self._stretches: list[TrainingStretch] = []
        self._changes: list[HostChange] = []
        self._every = self._steps_between_checkpoints()
        # bandwidths of links that have changed, by host, and changes in the current pause
        self._links_Bps: dict[int, float] = {}
        self._changed_links: list[str] = []
        # the furthest step so far, and the time of the last event
        self._reached, self._occurred_s = 0, 0.0
        self._now = self._stretch(0.0, 0, 0, frozenset(range(job.first_hosts)))

    def timeline(self) -> ElasticTimeline:
        """The timeline until the last step has ended. Raises InputError for an event that training does not reach."""
        scenario = self._job.scenario
        undisturbed_s = self._now.end_s(scenario.steps)
        while self._pending or self._requesting:
            event_s = self._occurs_s(self._pending[0], self._now) if self._pending else math.inf
            requests_s = min((host.requests_s for host in self._requesting), default=math.inf)
            join_s = max(requests_s, self._now.begin_s) + self._times.seen_s(len(self._now.hosts))
            if min(event_s, join_s) >= (end_s := self._now.end_s(scenario.steps)):
                event = self._requesting[0].event if self._requesting else self._pending[0]
                message = f"{scenario.name}: {event.words}, but training is predicted to end after {format_time_s(end_s)}"
                raise InputError(f"{message}; give an earlier event, or more steps")
            if event_s <= join_s:
                self._occur(self._pending.popleft(), event_s)
            else:
                # ranks save at the end of the step in which they notice that hosts want to join
                step, _ = self._now.next_end_s(join_s)
                stop_s, saved_s = self._now.handed_over(step)
                self._stop(_Stop("join", stop_s), step, step, saved_s)
        self._end(self._now.end_s(scenario.steps), scenario.steps, scenario.steps, 0.0)
        return ElasticTimeline(
            scenario=scenario.name,
            strategy=scenario.strategy.kind,
            steps=scenario.steps,
            stretches=tuple(self._stretches),
            changes=tuple(self._changes),
            undisturbed_s=undisturbed_s,
        )

    def _steps_between_checkpoints(self) -> int:
        checkpoint = self._job.reliability.checkpoint
        if checkpoint.steps:
            return checkpoint.steps
        if not isinstance(checkpoint.interval_s, float):
            message = "the optimum needs random failures; give checkpoint.steps, or a time such as 10 min"
            raise FieldError(("reliability", "checkpoint", "interval"), message)
        return max(1, round(checkpoint.interval_s / self._job.size(self._job.first_hosts).step_s))

    def _stretch(self, begin_s: float, first: int, kept: int, hosts: frozenset[int]) -> CheckpointedSteps:
        changed = ((place, self._links_Bps.get(host)) for place, host in enumerate(sorted(hosts)))
        links = tuple((place, bandwidth_Bps) for place, bandwidth_Bps in changed if bandwidth_Bps is not None)
        steps, size = self._job.scenario.steps, self._job.size(len(hosts), links)
        return CheckpointedSteps(begin_s, first, kept, steps, self._every, hosts, size, self._times.saving)

    def _occurs_s(self, event: AnyHostEvent, stretch: CheckpointedSteps | None) -> float:
        """When an event occurs, in a stretch, or in the pause after it if None."""
        if event.at_s is not None:
            return max(event.at_s, self._occurred_s)
        assert event.step is not None, "an event has a time or a step"
        if event.step <= self._reached:
            return self._occurred_s
        return math.inf if stretch is None else stretch.end_s(event.step)

    def _occur(self, event: AnyHostEvent, now_s: float) -> None:
        self._occurred_s = now_s
        now, saving = self._now, self._times.saving
        self._reached = max(self._reached, now.steps_at(now_s * (1 + _CLOSE)))
        match event:
            case HostJoin():
                self._announce(event, now_s)
            case HostFailure() | ProcessCrash():
                self._fail(event, now_s, now_s)
            case LinkChange():
                self._change_link(event, now_s)
            case SpotInterruption():
                step, ends_s = now.next_end_s(now_s * (1 - _CLOSE) + self._times.reacts_s)
                stop_s, saved_s = now.handed_over(step)
                if (stop_s if saving.by_all else ends_s) - now_s <= event.notice_s * (1 + _CLOSE):
                    gone = frozenset((event.host,))
                    self._stop(_Stop("leave", stop_s, gone, (event.words,), now_s), step, step, saved_s)
                else:
                    self._fail(event, now_s, now_s + event.notice_s)

    def _announce(self, event: HostJoin, at_s: float) -> None:
        """A host becomes available, and will request to join."""
        self._requesting.append(_Requesting(event, at_s, at_s + self._times.requests_s))

    def _change_link(self, event: LinkChange, now_s: float) -> None:
        """Training goes on with the next step, as fast as the changed link lets it."""
        before = self._now
        step, _ = before.next_end_s(now_s * (1 - _CLOSE))
        begin_s, kept = before.next_begin_s(step), max(before.kept, step // self._every * self._every)
        self._end(begin_s, step, step, 0.0)
        self._links_Bps[event.host] = event.bandwidth_Bps
        self._reached, self._occurred_s = max(self._reached, step), begin_s
        self._now = self._stretch(begin_s, step, kept, before.hosts)
        hosts = len(before.hosts)
        self._changes.append(HostChange.without_pause((event.words,), now_s, begin_s, hosts, step))

    def _fail(self, event: HostFailure | SpotInterruption | ProcessCrash, now_s: float, gone_s: float) -> None:
        """A host or its process is gone without a hand-over."""
        done, kept = self._now.steps_at(gone_s * (1 + _CLOSE)), self._now.saved_at(gone_s * (1 + _CLOSE))
        self._stop(_failed(event, gone_s, now_s), done, kept)

    def _stop(self, stop: _Stop, done: int, kept: int, saved_s: float = 0.0) -> None:
        """Ends the stretch with the step `done`, of which steps up to `kept` count, and simulates the pause, again where it is
        interrupted."""
        self._reached = max(self._reached, done)
        lost_s = self._end(stop.now_s, done, kept, saved_s)
        again: _Stop | None = stop
        while again is not None:
            stop, before = again, self._now.hosts
            pause, joined = self._pause(stop)
            hosts = before - stop.gone | {host.event.host for host in joined}
            again = self._interrupted(stop.now_s + pause.all_s, len(hosts))
            resumed_s = stop.now_s + pause.all_s if again is None else again.now_s
            pause_s = resumed_s - stop.now_s
            # parts follow one another as far as the pause lasts
            ends_s = np.cumsum([0.0, pause.detection_s, pause.group_s, pause.start_s, pause.restore_s])
            detection_s, group_s, start_s, restore_s = np.diff(np.minimum(ends_s, pause_s)).tolist()
            change = HostChange(
                causes=(*stop.causes, *(host.event.words for host in joined), *self._changed_links),
                at_s=min([stop.at_s, *(host.at_s for host in joined)]),
                stopped_s=stop.now_s,
                resumed_s=resumed_s,
                hosts_before=len(before),
                hosts_after=len(hosts),
                done_step=done,
                resumed_step=kept,
                lost_s=lost_s,
                detection_s=detection_s,
                group_s=group_s,
                start_s=start_s,
                restore_s=restore_s,
                low_s=pause.low_s if again is None else pause_s,
                high_s=pause.high_s if again is None else pause_s,
                handed_over=stop.kind in ("leave", "join"),
            )
            self._changes.append(change)
            self._changed_links.clear()
            self._now = self._stretch(resumed_s, kept, kept, hosts)
            done, lost_s = kept, 0.0

    def _pause(self, stop: _Stop) -> tuple[Pause, list[_Requesting]]:
        """The pause that begins now, and the hosts that join during it: those that request to before the group is formed."""
        stretch = self._now
        into_s = stop.now_s - stretch.end_s(stretch.steps_at(stop.now_s * (1 + _CLOSE)))
        compute_left_s = max(0.0, stretch.size.compute_s - max(0.0, into_s))
        joined: list[_Requesting] = []
        while True:
            requesting_s = tuple(max(0.0, one.requests_s - stop.now_s) for one in joined)
            left, number = len(stretch.hosts - stop.gone), sum(change.pause_s > 0 for change in self._changes)
            pause = self._times.pause(Regroup(stop.kind, left, requesting_s, number, compute_left_s))
            formed_s = stop.now_s + pause.formed_s
            while self._pending and isinstance(event := self._pending[0], HostJoin):
                occurs_s = self._occurs_s(event, None)
                if occurs_s + self._times.requests_s > formed_s:
                    break
                self._occurred_s = occurs_s
                self._announce(event, occurs_s)
                self._pending.popleft()
            further = [one for one in self._requesting if one.requests_s <= formed_s]
            if not further:
                return pause, joined
            joined.append(further[0])
            self._requesting.remove(further[0])

    def _interrupted(self, resumed_s: float, hosts: int) -> _Stop | None:
        """What begins a pause again before training resumes."""
        while True:
            join_s = min((one.requests_s for one in self._requesting), default=math.inf) + self._times.seen_s(hosts)
            if not self._pending or (event_s := self._occurs_s(self._pending[0], None)) >= min(resumed_s, join_s):
                return _Stop("join", join_s) if join_s < resumed_s else None
            event = self._pending.popleft()
            self._occurred_s = event_s
            match event:
                case HostJoin():
                    self._announce(event, event_s)
                case LinkChange():
                    self._links_Bps[event.host] = event.bandwidth_Bps
                    self._changed_links.append(event.words)
                case _:
                    return _failed(event, event_s, event_s)

    def _end(self, now_s: float, done: int, kept: int, saved_s: float) -> float:
        """Ends the current stretch, and returns the seconds of lost work."""
        stretch, size = self._now, self._now.size
        # no time is spent on a checkpoint after the last step, or on one that is lost
        checkpoints_s = stretch.checkpoints(min(kept, stretch.last - 1)) * stretch.saving.cost_s + saved_s
        # the last one is not over where a host goes as it begins, and another completes it
        checkpoints_s = min(checkpoints_s, now_s - stretch.begin_s - (kept - stretch.first) * size.step_s)
        ended = TrainingStretch(
            begin_s=stretch.begin_s,
            end_s=now_s,
            hosts=len(stretch.hosts),
            workers=size.workers,
            samples=size.samples,
            step_s=size.step_s,
            first_step=stretch.first,
            last_step=done,
            kept_step=kept,
            checkpoints_s=checkpoints_s,
        )
        self._stretches.append(ended)
        return ended.lost_s


def _failed(event: HostFailure | SpotInterruption | ProcessCrash, gone_s: float, at_s: float) -> _Stop:
    """The end of training by an event without a hand-over. gone_s: when the host or its process is gone."""
    if isinstance(event, ProcessCrash):
        return _Stop("crash", gone_s, frozenset(), (event.words,), at_s)
    return _Stop("failure", gone_s, frozenset((event.host,)), (event.words,), at_s)
