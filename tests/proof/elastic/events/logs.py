"""Artificial logs of runs along events, as processes write them when they follow a timeline."""

from __future__ import annotations

from collections.abc import Iterator

from scaleproof.proof.elastic.events.injector import LOGGED
from scaleproof.proof.elastic.records import INJECTOR, LoggedEvent
from scaleproof.simulator.analysis.elastic.pauses import Saving
from scaleproof.simulator.analysis.elastic.sizes import EventJob
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline, HostChange, TrainingStretch
from scaleproof.simulator.scenario.reliability import AnyHostEvent, HostFailure, HostJoin, LinkChange, SpotInterruption

BEGAN_S = 100.0


def log_of(job: EventJob, timeline: ElasticTimeline, saving: Saving, every: int) -> list[LoggedEvent]:
    """The log of a run that follows a timeline in which all checkpoints are synchronous."""
    hosts = set(range(job.first_hosts))
    by_words = {event.words: event for event in job.events}
    log: list[LoggedEvent] = []
    for stretch, change in zip(timeline.stretches, [*timeline.changes, None], strict=True):
        log += _trained(stretch, hosts, saving, every, is_last=change is None, handed=change is not None and change.handed_over)
        if change is not None:
            events = [by_words[words] for words in change.causes]
            log += _injected(change, events)
            for event in events:
                if isinstance(event, HostJoin):
                    hosts = hosts | {event.host}
                elif isinstance(event, HostFailure | SpotInterruption):
                    hosts = hosts - {event.host}
            if change.pause_s:
                log += _regrouped(change, hosts)
    first = range(job.first_hosts)
    ready = [_note(0.0, host, "trainer", "ready", step=0, rank=rank, ranks=len(first)) for rank, host in _ranks(first)]
    return sorted([*ready, *log], key=lambda event: event.at_s)


def _trained(
    stretch: TrainingStretch, hosts: set[int], saving: Saving, every: int, is_last: bool, handed: bool
) -> Iterator[LoggedEvent]:
    now_s = stretch.begin_s
    for step in range(stretch.first_step + 1, stretch.last_step + 1):
        now_s += stretch.step_s
        for rank, host in _ranks(hosts):
            yield _note(now_s, host, "trainer", "step", step=step, rank=rank, loss=1.0 / step / len(hosts))
        is_handed = handed and step == stretch.last_step
        if (step % every == 0 or is_handed) and not (is_last and step == stretch.last_step):
            if step > stretch.kept_step:
                continue
            now_s += saving.stall_s
            yield _note(now_s, 0, "trainer", "saved", step=step, rank=0, took_s=saving.stall_s)
            if is_handed:
                yield _note(now_s, 0, "trainer", "handed over", step=step, rank=0)


def _injected(change: HostChange, events: list[AnyHostEvent]) -> Iterator[LoggedEvent]:
    for number, event in enumerate(events):
        fields = {"rank": event.host, "text": event.words, "step": change.done_step}
        yield _note(change.at_s + number * 1e-9, INJECTOR, "injector", LOGGED[type(event)], **fields)
        if not isinstance(event, HostJoin | LinkChange) and not change.handed_over:
            yield _note(change.stopped_s, INJECTOR, "injector", "gone", rank=event.host)


def _regrouped(change: HostChange, hosts: set[int]) -> Iterator[LoggedEvent]:
    noticed_s = change.stopped_s + change.detection_s
    if not change.handed_over:
        yield _note(noticed_s, 0, "agent", "noticed")
    for rank, host in _ranks(hosts):
        yield _note(noticed_s + change.group_s, host, "agent", "met")
        restored_s = change.resumed_s - 1e-9
        yield _note(restored_s, host, "trainer", "restored", step=change.resumed_step, rank=rank, took_s=change.restore_s)
        yield _note(change.resumed_s, host, "trainer", "ready", step=change.resumed_step, rank=rank, ranks=len(hosts))


def _ranks(hosts: set[int] | range) -> Iterator[tuple[int, int]]:
    yield from enumerate(sorted(hosts))


def _note(at_s: float, host: int, by: str, what: str, **fields: object) -> LoggedEvent:
    return LoggedEvent(BEGAN_S + at_s, host, by, what, 1, **fields)  # type: ignore[arg-type]
