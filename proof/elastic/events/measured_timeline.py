"""The timeline of a real run along events, from the log of its processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeVar

from scaleproof.proof.elastic.events.injector import LOGGED
from scaleproof.proof.elastic.records import LoggedEvent
from scaleproof.simulator.analysis.elastic.sizes import EventJob
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline, HostChange, TrainingStretch
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.scenario.reliability import HostFailure, HostJoin, LinkChange, ProcessCrash, SpotInterruption

# Events after which a host is gone, and those that end training.
_WENT: Final = (LOGGED[HostFailure], LOGGED[SpotInterruption])
_ENDING: Final = (*_WENT, LOGGED[ProcessCrash])
_CLOSE_S: Final = 1e-6
_Part = TypeVar("_Part", TrainingStretch, HostChange)


@dataclass(frozen=True)
class Group:
    """Ranks that trained together. ready_s: when all could take their first step; first: steps done by then. ends_s: when each
    step ended on all ranks. saves: step and duration of its checkpoints that delay steps: servers save while workers compute.
    handed_s: when the state was handed over, if it was. changed_by: the event with which the group went on, without a pause.
    """

    hosts: frozenset[int]
    ready_s: float
    first: int
    ends_s: dict[int, float]
    saves: dict[int, float]
    handed_s: float | None
    changed_by: LoggedEvent | None = None

    @property
    def last(self) -> int:
        """Steps done at the end."""
        return max(self.ends_s, default=self.first)

    @property
    def stopped_s(self) -> float:
        """When the group stopped training by itself: after the hand-over, or with its last step."""
        return max(self.ends_s.values(), default=self.ready_s) if self.handed_s is None else self.handed_s

    def changed(self, event: LoggedEvent) -> tuple[Group, Group]:
        """The group until the end of the step in which an event changed a link, and from then on."""
        step = min(event.step, self.last)
        begin_s = self.ends_s.get(step, self.ready_s) + self.saves.get(step, 0.0)
        before = {one: end_s for one, end_s in self.ends_s.items() if one <= step}
        after = {one: end_s for one, end_s in self.ends_s.items() if one > step}
        return (
            replace(self, ends_s=before, handed_s=None),
            replace(self, ends_s=after, ready_s=begin_s, first=step, changed_by=event),
        )

    def checkpoints_s(self, kept: int) -> float:
        """Seconds of checkpoints up to a step, which delayed further steps."""
        return sum(took_s for step, took_s in self.saves.items() if step <= kept)


def groups(events: Sequence[LoggedEvent]) -> list[Group]:
    """The groups that trained, in order. Raises RunError if no group did."""
    ready = list(_complete_groups(events))
    if not ready:
        raise RunError("no group of ranks was ready to train; is the machine too busy?")
    begins_s = [max(event.at_s for event in one) for one in ready]
    return [
        _group(one, [event for event in events if begin_s <= event.at_s < until_s and event.by == "trainer"])
        for one, begin_s, until_s in zip(ready, begins_s, [*begins_s[1:], float("inf")], strict=True)
    ]


def _complete_groups(events: Sequence[LoggedEvent]) -> Iterator[list[LoggedEvent]]:
    """The events with which each group became ready."""
    current: list[LoggedEvent] = []
    for event in events:
        if event.what != "ready":
            continue
        if current and (event.ranks != current[0].ranks or event.host in {one.host for one in current}):
            current = []
        current.append(event)
        if len(current) == event.ranks:
            yield current
            current = []


def _group(ready: Sequence[LoggedEvent], events: Sequence[LoggedEvent]) -> Group:
    hosts = frozenset(event.host for event in ready)
    first = ready[0].step
    by_step: dict[int, list[LoggedEvent]] = {}
    for event in events:
        if event.what == "step" and event.step > first:
            by_step.setdefault(event.step, []).append(event)
    ends_s = {step: max(event.at_s for event in ended) for step, ended in by_step.items()}
    saves = {event.step: event.took_s for event in events if event.what == "saved" and event.rank == 0}
    handed_s = [event.at_s for event in events if event.what == "handed over" and event.rank == 0]
    return Group(hosts, max(event.at_s for event in ready), first, ends_s, saves, max(handed_s, default=None))


def measured(job: EventJob, events: Sequence[LoggedEvent]) -> ElasticTimeline:
    """The timeline of a run. Step times are means over kept steps, without checkpoints. Raises RunError."""
    # a group that was formed as training ended takes no step
    formed = [group for group in groups(events) if group.first < job.scenario.steps]
    trained = list(itertools.chain.from_iterable(_divided(group, events) for group in formed))
    begin_s = trained[0].ready_s
    changes = [_change(before, after, events) for before, after in pairwise(trained)]
    stretches = [_stretch(job, group, change) for group, change in zip(trained, [*changes, None], strict=True)]
    scenario = job.scenario
    return ElasticTimeline(
        scenario=scenario.name,
        strategy=scenario.strategy.kind,
        steps=scenario.steps,
        stretches=tuple(_earlier(one, begin_s, "begin_s", "end_s") for one in stretches),
        changes=tuple(_earlier(one, begin_s, "at_s", "stopped_s", "resumed_s") for one in changes),
        undisturbed_s=None,
    )


def _earlier(one: _Part, by_s: float, *fields: str) -> _Part:
    """A part of a timeline of which some times are earlier."""
    return one.model_copy(update={field: getattr(one, field) - by_s for field in fields})


def _divided(group: Group, events: Sequence[LoggedEvent]) -> Iterator[Group]:
    """A group, divided where links change while it trains."""
    for event in events:
        if event.what == LOGGED[LinkChange] and group.ready_s <= event.at_s <= group.stopped_s:
            before, group = group.changed(event)
            yield before
    yield group


def _change(before: Group, after: Group, events: Sequence[LoggedEvent]) -> HostChange:
    if after.changed_by is not None:
        causes, hosts = (after.changed_by.text,), len(after.hosts)
        return HostChange.without_pause(causes, after.changed_by.at_s, after.ready_s, hosts, after.first)
    injected = _causes(before, after, events)
    if not injected:
        raise RunError("the group of ranks changed without an event; is the machine too busy?")
    gone_s = [event.at_s for event in events if event.what == "gone" and before.ready_s <= event.at_s <= after.ready_s]
    handed_over = before.handed_s is not None
    stopped_s = before.stopped_s if handed_over or not gone_s else min(gone_s)
    between = [event for event in events if stopped_s <= event.at_s <= after.ready_s]
    noticed_s = stopped_s
    if not handed_over:
        noticed_s = min(
            (event.at_s for event in between if event.what == "noticed" and event.by in ("agent", "supervisor")),
            default=stopped_s,
        )
    met_s = max((event.at_s for event in between if event.what == "met"), default=noticed_s)
    restore_s = max((event.took_s for event in between if event.what == "restored"), default=0.0)
    kept_s = _kept_s(before, after.first)
    return HostChange(
        causes=tuple(event.text for event in injected),
        at_s=min(event.at_s for event in injected),
        stopped_s=stopped_s,
        resumed_s=after.ready_s,
        hosts_before=len(before.hosts),
        hosts_after=len(after.hosts),
        done_step=before.last,
        resumed_step=after.first,
        lost_s=0.0 if before.last == after.first else stopped_s - kept_s,
        detection_s=noticed_s - stopped_s,
        group_s=met_s - noticed_s,
        start_s=after.ready_s - met_s - restore_s,
        restore_s=restore_s,
        low_s=after.ready_s - stopped_s,
        high_s=after.ready_s - stopped_s,
        handed_over=handed_over,
    )


def _causes(before: Group, after: Group, events: Sequence[LoggedEvent]) -> list[LoggedEvent]:
    """The injected events that led from one group to the next: hosts that went since, and the new ones of the next group."""
    since = [one for one in events if before.ready_s - _CLOSE_S <= one.at_s <= after.ready_s]
    ended = [one for one in since if one.what in _ENDING]
    new = after.hosts - (before.hosts - {one.rank for one in ended if one.what in _WENT})
    came = {one.rank: one for one in events if one.what == LOGGED[HostJoin] and one.at_s <= after.ready_s}
    changed = [one for one in since if one.what == LOGGED[LinkChange] and one.at_s > before.stopped_s]
    return [*ended, *(came[host] for host in sorted(new) if host in came), *changed]


def _kept_s(group: Group, step: int) -> float:
    """When the checkpoint of a step was complete, or the group began with it."""
    return group.ends_s[step] + group.saves.get(step, 0.0) if step in group.ends_s else group.ready_s


def _stretch(job: EventJob, group: Group, change: HostChange | None) -> TrainingStretch:
    last = group.last
    kept = last if change is None else change.resumed_step
    end_s = group.stopped_s if change is None else change.stopped_s
    # no time is spent on a checkpoint after the last step
    checkpoints_s = group.checkpoints_s(kept - 1 if change is None else kept)
    # where nothing is kept, the steps that are lost show the time of a step
    until = kept if kept > group.first else last
    until_s = group.ends_s.get(until, end_s)
    steps_s = until_s - group.ready_s - group.checkpoints_s(until - 1)
    hosts, size = len(group.hosts), job.size(len(group.hosts))
    step_s = steps_s / max(1, until - group.first)
    return TrainingStretch(
        begin_s=group.ready_s,
        end_s=end_s,
        hosts=hosts,
        workers=size.workers,
        samples=size.samples,
        step_s=step_s,
        first_step=group.first,
        last_step=last,
        kept_step=kept,
        checkpoints_s=checkpoints_s,
    )
