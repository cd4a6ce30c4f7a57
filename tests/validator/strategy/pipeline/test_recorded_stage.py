"""Recorded spans of a rank are sequential for any schedule."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.strategy.pipeline.recorded_stage import PassRecorder

# What schedules call: the kind, and of passes and receives the microbatch.
EVENTS = st.lists(st.tuples(st.sampled_from(["post", "pass", "send"]), st.integers(0, 3)), max_size=30)


class FakeRecorder:
    """A recorder whose clock ticks whenever it is read."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.now = count().__next__

    def enter(self, phase: Phase) -> None:
        """Nobody reads it."""

    def lengthen_compute(self) -> None:
        """The rank is as fast as others."""

    def add(self, phase: Phase, arrival_s: int, end_s: int, **labels: Any) -> None:
        self.spans.append({"phase": phase, "arrival_s": arrival_s, "end_s": end_s, "start_s": arrival_s} | labels)


def recorded_spans(events: list[tuple[str, int]], free: bool = True) -> list[dict[str, Any]]:
    notes: Any = FakeRecorder()
    passes = PassRecorder(notes, free)
    passes.begin_step()
    for kind, microbatch in events:
        if kind == "post":
            passes.post_receive((0, microbatch, True), {"match": microbatch})
        elif kind == "send":
            passes.begin_send({"match": 10 + microbatch})
        else:
            passes.end_pass(Phase.FORWARD, passes.begin_pass((0, microbatch, True)), 0, microbatch)
    passes.end_step()
    spans: list[dict[str, Any]] = notes.spans
    return spans


@given(EVENTS)
def test_spans_are_sequential(events: list[tuple[str, int]]) -> None:
    spans = recorded_spans(events)

    for before, after in pairwise(spans):
        assert before["end_s"] <= after["arrival_s"]
    for span in spans:
        assert span["arrival_s"] <= span["start_s"] <= span["end_s"]


@given(EVENTS)
def test_every_pass_and_send_is_recorded(events: list[tuple[str, int]]) -> None:
    spans = recorded_spans(events)

    reported = {phase: [span for span in spans if span["phase"] == phase] for phase in (Phase.FORWARD, Phase.SEND)}
    assert [span["microbatch"] for span in reported[Phase.FORWARD]] == [number for kind, number in events if kind == "pass"]
    assert [span["match"] - 10 for span in reported[Phase.SEND] if "match" in span] == [
        n for kind, n in events if kind == "send"
    ]


def test_a_receive_wait_starts_at_the_end_of_the_previous_task() -> None:
    spans = recorded_spans([("post", 0), ("post", 1), ("pass", 0), ("pass", 1)])

    assert [span["phase"] for span in spans] == [Phase.RECEIVE, Phase.FORWARD, Phase.RECEIVE, Phase.FORWARD]
    assert [span["arrival_s"] for span in spans[1:]] == [span["end_s"] for span in spans[:-1]]


def test_send_waits_are_at_the_end_of_the_step_if_scheduled_there() -> None:
    events = [("send", 0), ("pass", 0)]

    assert recorded_spans(events)[-1]["phase"] == Phase.SEND
    assert recorded_spans(events, free=False)[-1]["phase"] == Phase.FORWARD
    assert recorded_spans([("pass", 0)])[-1]["phase"] == Phase.FORWARD, "nothing was"
