"""Programs of captured scripts: events of each rank class with the times of its kernels on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scaleproof.simulator.captured.groups import Replicas
from scaleproof.simulator.captured.kernels import KernelTime, KernelTimes
from scaleproof.simulator.captured.script import (
    CapturedClass,
    CapturedScript,
    Event,
    IssuedCollective,
    IssuedMessage,
    Launch,
    Operation,
    RankTrace,
    RecordedEvent,
)
from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.program import Program
from scaleproof.simulator.strategy.captured.program import Assembly, HostCosts, assemble
from scaleproof.simulator.strategy.job import Job


def compile_captured(strategy: CapturedStrategy, job: Job) -> Program:
    """Compiles the recorded step."""
    return assembled_script(strategy.script, job, strategy.workers).program


def assembled_script(script: CapturedScript, job: Job, replicas: int) -> Assembly:
    """The program of a step on a job's cluster with a number of replicas, and the tasks of each rank class."""
    times = KernelTimes(job.cluster.device, job.framework)
    host = HostCosts(times.launch_host_s, times.collective_host_s, times.blocks_host)
    to = Replicas(replicas, script.replicas.inner)
    ranks = script.replicas.resized_classes([one.ranks for one in script.classes], to)
    traces = [_trace(script, one, own, times, to) for one, own in zip(script.classes, ranks, strict=True)]
    return assemble(traces, job, host)


def _trace(script: CapturedScript, of: CapturedClass, ranks: Sequence[int], times: KernelTimes, to: Replicas) -> RankTrace:
    """The events of a class of some ranks with the times of its kernels, among a number of replicas."""
    seconds = script.kernel_times(of, times)
    # a host that computes has one stream; otherwise the main one is number 0
    streams = {of.main_stream: 0}
    number = (lambda _: 0) if times.blocks_host else (lambda stream: streams.setdefault(stream, stream + 1))
    timed = list(_timed(script, of, seconds, to, number, is_here=times.device == script.timed_on))
    places, events = [place for place, _ in timed], [event for _, event in timed]
    return RankTrace(of.name, ranks, script.replicas.moved(of.played, to), events, places)


def _timed(
    script: CapturedScript,
    of: CapturedClass,
    seconds: Sequence[KernelTime],
    to: Replicas,
    number: Callable[[int], int],
    is_here: bool,
) -> Iterator[tuple[int, Event]]:  # fmt: skip
    """Places and events of a class, without operators that take no time. is_here: whether on the machine on which operators
    were timed and the script was captured."""
    resized: dict[int, Sequence[int]] = {}
    for place, event in enumerate(of.events):
        if isinstance(event, Operation):
            time = seconds[event.operator]
            if is_here:
                # the processor runs the script's own code, too
                time = time._replace(seconds=time.seconds + event.host_s)
            if time.seconds:
                yield place, Launch(number(event.stream), event.phase, time)
        elif isinstance(event, IssuedCollective):
            key = id(event.ranks)
            if key not in resized:
                resized[key] = script.replicas.resized(event.ranks, to)
            yield place, event._replace(stream=number(event.stream), ranks=resized[key])
        elif isinstance(event, IssuedMessage):
            yield place, event._replace(stream=number(event.stream), peer=script.replicas.moved(event.peer, to))
        elif isinstance(event, RecordedEvent):
            yield place, event._replace(stream=number(event.stream))
        else:
            on = number(event.number) if event.on == "stream" and event.number >= 0 else event.number
            yield place, event._replace(stream=None if event.stream is None else number(event.stream), number=on)
