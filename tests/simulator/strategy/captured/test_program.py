"""Programs of captured steps: what streams, events, waits, the host and communication mean for the step time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scaleproof.simulator.captured.kernels import Certainty, KernelTime
from scaleproof.simulator.captured.record import EventKind, ProcessGroup
from scaleproof.simulator.captured.script import CapturedClass
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import simulate_steady
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.predict import predicted_run
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.strategy.captured.program import HostCosts, assemble, longest_s
from scaleproof.simulator.strategy.job import Job
from tests.simulator.captured.scripts import all_reduce, events_of, launch, work_wait

CLUSTER = load_cluster("dgx-h100")
JOB = Job((), CLUSTER, 1, "bf16", "adam")
NO_HOST = HostCosts(0.0, 0.0, blocks=False)

# The columns that apply to an event; `seconds` of a kernel.
Row = dict[str, Any]


def kernel(seconds: float, stream: int = 0, phase: Phase = Phase.FORWARD) -> Row:
    return launch(-1, phase, stream=stream, seconds=seconds)


def stream_wait(stream: int, other: int) -> Row:
    return {"kind": EventKind.STREAM_WAIT, "stream": stream, "other_stream": other}


def event_wait(stream: int, event: int) -> Row:
    return {"kind": EventKind.EVENT_WAIT, "stream": stream, "event": event}


def event_record(stream: int, event: int) -> Row:
    return {"kind": EventKind.EVENT_RECORD, "stream": stream, "event": event}


def message(kind: EventKind, peer: int, work: int = 0, tag: int = 0) -> Row:
    return {"kind": kind, "peer": peer, "work": work, "tag": tag}


READ = {"kind": EventKind.ITEM, "stream": 0}


def timed(
    *steps: Sequence[Row], host: HostCosts = NO_HOST, ranks: int = 1, job: Job = JOB, groups: Sequence[Sequence[int]] = ()
) -> Run:
    """The run of one class with each sequence of events; the classes have consecutive ranks. groups: their ranks; one of all
    if empty."""
    classes, kernels = [], []
    everybody = range(len(steps) * ranks)
    made = [ProcessGroup(str(number), members) for number, members in enumerate(groups or [everybody])]
    for number, step in enumerate(steps):
        # an operator for each event, of which only those of kernels are used
        events = events_of([row | {"operator": place} for place, row in enumerate(step)])
        own = range(number * ranks, (number + 1) * ranks)
        classes.append(CapturedClass(f"class {number}", own, own[0], 0, (), events, made))
        kernels.append([KernelTime(row.get("seconds", 0.0), Certainty.MEASURED, moves=False) for row in step])
    timeline = simulate_steady(assemble(classes, kernels, job, host).program, 4)
    return predicted_run(timeline, samples=1, scenario="", strategy="captured")


def test_two_streams_that_overlap_take_the_longer_of_both() -> None:
    assert timed([kernel(1.0), kernel(3.0, stream=5), stream_wait(0, 5)]).step_time_s == pytest.approx(3.0)


def test_a_wait_for_a_stream_orders_two_streams() -> None:
    events = [kernel(1.0), stream_wait(5, 0), kernel(3.0, stream=5), stream_wait(0, 5)]
    assert timed(events).step_time_s == pytest.approx(4.0)


def test_an_event_is_complete_when_the_work_before_it_is() -> None:
    # the other stream waits for the first kernel only, and then overlaps with the second
    events = [kernel(1.0), event_record(0, 7), kernel(4.0), event_wait(5, 7), kernel(3.0, stream=5), stream_wait(0, 5)]
    assert timed(events).step_time_s == pytest.approx(5.0)


def test_an_event_of_the_step_before_delays_this_step() -> None:
    # the side stream's kernel of a step, which takes longer than the step's other work, must end before the next step's first
    events = [event_wait(0, 7), kernel(1.0), stream_wait(5, 0), kernel(3.0, stream=5), event_record(5, 7)]
    assert timed(events).step_time_s == pytest.approx(4.0)


def test_a_step_of_short_kernels_takes_the_hosts_time() -> None:
    run = timed([kernel(1e-6)] * 100, host=HostCosts(1e-5, 0.0, blocks=False))
    assert run.step_time_s == pytest.approx(100 * 1e-5)
    # the device waits for launches of its own kernels, which counts as computing
    assert run.breakdown_s["compute"] == pytest.approx(run.step_time_s)


def test_the_host_runs_ahead_of_long_kernels() -> None:
    run = timed([kernel(1e-3)] * 100, host=HostCosts(1e-5, 0.0, blocks=False))
    assert run.step_time_s == pytest.approx(100 * 1e-3)


@pytest.mark.parametrize("wait", [READ, {"kind": EventKind.SYNCHRONIZE}, {"kind": EventKind.SYNCHRONIZE, "other_stream": 0}])
def test_a_host_that_waits_for_the_device_launches_nothing_meanwhile(wait: Row) -> None:
    # after `item()` the device is idle until the host has launched the next kernel
    events = [kernel(1e-3), wait, kernel(1e-3), wait]
    run = timed(events, host=HostCosts(1e-5, 0.0, blocks=False))
    assert run.step_time_s == pytest.approx(2 * (1e-3 + 1e-5))


def test_a_host_that_waits_for_each_kernel_adds_its_time() -> None:
    run = timed([kernel(1e-3)] * 10, host=HostCosts(1e-5, 0.0, blocks=True))
    assert run.step_time_s == pytest.approx(10 * (1e-3 + 1e-5))


def test_kernels_end_after_their_launches_and_one_another() -> None:
    assert longest_s([5.0, 1.0, 1.0], 1.0) == 8.0
    assert longest_s([0.5, 0.5, 5.0], 1.0) == 8.0


def test_a_collective_overlaps_until_a_stream_waits_for_it() -> None:
    seconds = collective_cost("all_reduce", 1e9, Group.of(16, 8), CLUSTER).seconds
    events = [kernel(1.0), all_reduce(1e9), kernel(seconds, phase=Phase.BACKWARD), work_wait(0)]
    hidden = timed([*events, kernel(1.0, phase=Phase.OPTIMIZER)], ranks=16)
    assert hidden.step_time_s == pytest.approx(2 + seconds)
    events = [kernel(1.0), all_reduce(1e9), work_wait(0), kernel(seconds, phase=Phase.BACKWARD)]
    exposed = timed([*events, kernel(1.0, phase=Phase.OPTIMIZER)], ranks=16)
    assert exposed.step_time_s == pytest.approx(2 + 2 * seconds)
    assert exposed.breakdown_s["exposed_communication"] == pytest.approx(seconds)
    (part,) = exposed.communication
    assert (part.dimension, part.collective, part.calls, part.size_bytes) == ("DP", "all-reduce", 1.0, 1e9)


def test_a_framework_whose_collectives_share_the_device_slows_kernels_next_to_them() -> None:
    seconds = collective_cost("all_reduce", 1e9, Group.of(16, 8), CLUSTER).seconds
    events = [all_reduce(1e9), kernel(2 * seconds, phase=Phase.BACKWARD), work_wait(0)]
    alone = timed(events, ranks=16)
    shared = timed(events, ranks=16, job=replace(JOB, framework=shipped("pytorch-ddp")))
    assert 0 < shared.step_time_s - alone.step_time_s < 0.5 * seconds


def test_collectives_of_one_group_run_one_after_another_and_groups_overlap() -> None:
    one_s = collective_cost("all_reduce", 1e9, Group.of(8, 8), CLUSTER).seconds
    first, second = all_reduce(1e9, 0), all_reduce(1e9, 1)
    waits = [work_wait(0), work_wait(1)]
    assert timed([first, second, *waits], ranks=8).step_time_s == pytest.approx(2 * one_s)
    assert timed([first, second | {"group": 1}, *waits], ranks=8, groups=[range(8)] * 2).step_time_s == pytest.approx(one_s)


def test_a_message_starts_when_both_sides_are_ready() -> None:
    sent, received = message(EventKind.SEND, 1), message(EventKind.RECEIVE, 0)
    run = timed([kernel(1.0), sent, work_wait(0)], [received, work_wait(0), kernel(2.0)])
    # one stage is a step ahead of the other, and the longer one determines the time
    assert run.step_time_s == pytest.approx(2.0, rel=1e-4)
    closed = [kernel(1.0), sent, message(EventKind.RECEIVE, 1, work=1, tag=1), work_wait(1), work_wait(0)]
    other = [received, work_wait(0), kernel(2.0), message(EventKind.SEND, 0, work=1, tag=1), work_wait(1)]
    assert timed(closed, other).step_time_s == pytest.approx(3.0, rel=1e-4)


def test_a_collective_of_two_classes_waits_for_both() -> None:
    def step(seconds: float) -> list[Row]:
        return [kernel(seconds), all_reduce(0.0), work_wait(0)]

    assert timed(step(1.0), step(2.0)).step_time_s == pytest.approx(2.0, rel=1e-3)


def test_a_message_without_a_receiver_is_an_error() -> None:
    with pytest.raises(InputError, match="nobody receives"):
        timed([message(EventKind.SEND, 1)], [kernel(1.0)])
