"""Explanations: parts add up, each kind of difference is in its part, and faulty ranks and links are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.explanation import GROUPS, ErrorPart, Explanation
from scaleproof.simulator.run.run import BREAKDOWN, Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.explain import explain, times
from scaleproof.validator.reconciliation.match import match
from scaleproof.validator.reconciliation.parts import volume_ratio
from tests.validator.reconciliation.runs import as_measured

Make = Callable[..., Scenario]
STRATEGIES = {
    "data_parallel": "{kind: data_parallel, workers: 4}",
    "ring": "{kind: data_parallel, workers: 4, algorithm: ring, overlap: false}",
    "pipeline": "{kind: pipeline, stages: 3, microbatches: 4}",
    "hybrid": "{kind: hybrid, workers: 2, stages: 2, microbatches: 2}",
    "servers": "{kind: parameter_server, workers: 4, servers: 2}",
}
# a node each, so that they talk over the network
SEPARATE_NODES = ("cluster.node.devices=1", "cluster.nodes=8", "cluster.node.link=null")


def part(reported: Explanation, name: str) -> ErrorPart:
    return next(one for one in reported.parts if one.name == name)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_runs_that_match_the_prediction_have_no_explanation(small: Make, strategy: str) -> None:
    scenario = small(f"strategy={strategy}", *SEPARATE_NODES)
    reported = explain(predict(scenario), as_measured(scenario))
    assert [one.difference_s for one in reported.parts] == pytest.approx([0.0] * len(reported.parts), abs=1e-9)
    assert (reported.faults, reported.partings) == ((), ())
    assert len(reported.sentences) == 1


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("cluster.network.bandwidth=4 Gbit/s", {"communication", "waiting"}),
        ("cluster.device.peak.fp32=0.4 TFLOP/s", {"compute", "waiting"}),
    ],
)
def test_parts_add_up_and_are_largest_at_the_cause(small: Make, strategy: str, change: str, where: set[str]) -> None:
    predicted, measured = (
        predict(small(f"strategy={strategy}", *SEPARATE_NODES)),
        as_measured(small(f"strategy={strategy}", *SEPARATE_NODES, change)),
    )
    reported = explain(predicted, measured)
    assert sum(one.difference_s for one in reported.parts) == pytest.approx(predicted.step_time_s - measured.step_time_s)
    by_group = {group: sum(part(reported, name).difference_s for name in names) for group, names in GROUPS.items()}
    assert min(by_group, key=lambda group: by_group[group]) in where
    assert all(pair.kind.rank >= 0 for pair in match(predicted, measured).pairs)  # type: ignore[union-attr]


def test_slow_transfers_are_explained_by_their_rate(small: Make) -> None:
    ring = (f"strategy={STRATEGIES['ring']}", *SEPARATE_NODES)
    reported = explain(predict(small(*ring)), as_measured(small(*ring, "cluster.network.bandwidth=5 Gbit/s")))
    assert max(reported.parts, key=lambda one: abs(one.difference_s)).name == "rate"
    assert any(
        "of the predicted rate: calibrate --cluster FILE --probe collective" in sentence for sentence in reported.sentences
    )


def test_different_bytes_are_explained_by_volume(small: Make) -> None:
    scenario = small(f"strategy={STRATEGIES['ring']}", *SEPARATE_NODES)
    predicted, measured = predict(scenario), as_measured(scenario)
    assert measured.spans is not None
    twice = replace(measured, spans=replace(measured.spans, size_bytes=measured.spans.size_bytes * 3.0))
    matched = match(predicted, twice)
    assert matched is not None
    assert volume_ratio(matched) == pytest.approx(3.0, rel=0.01)
    reported = explain(predicted, twice)
    assert part(reported, "volume").difference_s == pytest.approx(-2 * predicted.breakdown_s["exposed_communication"], rel=0.02)
    assert part(reported, "rate").difference_s == pytest.approx(-part(reported, "volume").difference_s)


@pytest.mark.parametrize("payload", [2 / 3, 4 / 3], ids=["sum", "gather"])
def test_payload_and_bytes_sent_per_rank_count_as_equal_volume(small: Make, payload: float) -> None:
    scenario = small(f"strategy={STRATEGIES['ring']}", *SEPARATE_NODES)
    measured = as_measured(scenario)
    assert measured.spans is not None
    reported = replace(measured, spans=replace(measured.spans, size_bytes=measured.spans.size_bytes * payload))
    assert part(explain(predict(scenario), reported), "volume").difference_s == 0.0


def test_spans_without_counterpart_are_unmodelled(small: Make) -> None:
    scenario = small("strategy.workers=2")
    predicted, measured = predict(scenario), as_measured(scenario)
    assert predicted.spans is not None
    without = replace(predicted, spans=predicted.spans.where(predicted.spans.phase != Phase.OPTIMIZER))
    reported = explain(without, measured)
    optimizer_s = measured.phase_s["optimizer"]
    assert part(reported, "unmodelled").difference_s == pytest.approx(-optimizer_s, rel=1e-6)
    assert part(reported, "optimizer").difference_s == pytest.approx(optimizer_s, rel=1e-6)


def test_runs_without_spans_are_explained_by_breakdowns(small: Make) -> None:
    scenario, slow = small(), small("cluster.device.peak.fp32=0.4 TFLOP/s")
    reported = explain(predict(scenario), replace(predict(slow), spans=None))
    assert part(reported, "backward").difference_s < 0
    assert (reported.faults, reported.partings) == ((), ())
    assert any(sentence.startswith("backward takes ") for sentence in reported.sentences)


def test_servers_without_barrier_are_explained_by_breakdowns(small: Make) -> None:
    servers = "strategy={kind: parameter_server, workers: 4, servers: 2, mode: asynchronous}"
    scenario, slow = (
        small(servers, *SEPARATE_NODES, *more, "steps=8") for more in ((), ("cluster.network.bandwidth=2 Gbit/s",))
    )
    assert match(predict(scenario), predict(slow)) is None
    reported = explain(predict(scenario), predict(slow))
    assert sum(one.difference_s for one in reported.parts) == pytest.approx(reported.difference_s)
    assert part(reported, "rate").difference_s < 0


def test_a_slow_rank_is_named(small: Make) -> None:
    even, uneven = small(), small("unevenness={stragglers: [{ranks: 2, slowdown: 1.8}]}")
    (fault,) = explain(predict(even), as_measured(uneven)).faults
    assert (fault.kind, fault.who) == ("compute", ("worker 2",))
    assert fault.ratio == pytest.approx(1.8, rel=0.05)
    assert fault.words == "compute of worker 2 takes 1.8 times as long as of its peers"


def test_a_slow_stage_is_named_relative_to_its_prediction(small: Make) -> None:
    pipeline = f"strategy={STRATEGIES['pipeline']}"
    reported = explain(
        predict(small(pipeline)), as_measured(small(pipeline, "unevenness={stragglers: [{ranks: 1, slowdown: 2}]}"))
    )
    assert [(fault.kind, fault.who) for fault in reported.faults] == [("compute", ("stage 1",))]
    assert explain(predict(small(pipeline)), as_measured(small(pipeline))).faults == ()


def test_a_rank_predicted_to_be_slow_is_not_a_fault(small: Make) -> None:
    uneven = small("unevenness={stragglers: [{ranks: 2, slowdown: 1.8}]}")
    assert explain(predict(uneven), as_measured(uneven)).faults == ()


def test_a_slow_link_is_named(small: Make) -> None:
    pipeline = (
        "strategy={kind: pipeline, stages: 4, microbatches: 8}", *SEPARATE_NODES, "cluster.network.bandwidth=1 Gbit/s",
        "framework=ideal",
    )  # fmt: skip
    slow = small(*pipeline, "cluster.network.exceptions=[{at: [3], bandwidth: 0.5 Gbit/s}]")
    (fault,) = explain(predict(small(*pipeline)), as_measured(slow)).faults
    assert (fault.kind, fault.who) == ("messages", ("stage 3",))
    assert fault.ratio == pytest.approx(2, rel=0.1)


def test_a_slow_server_is_named(small: Make) -> None:
    servers = (f"strategy={STRATEGIES['servers']}", *SEPARATE_NODES, "cluster.network.bandwidth=100 Gbit/s")
    slow = small(*servers, "unevenness={stragglers: [{ranks: 4, slowdown: 8}]}")
    found = explain(predict(small(*servers)), as_measured(slow)).faults
    assert [(fault.kind, fault.who) for fault in found] == [("updates", ("server 0",))]
    assert "on other servers" in found[0].words


def test_marks_are_at_the_largest_differences(small: Make) -> None:
    pipeline = f"strategy={STRATEGIES['pipeline']}"
    reported = explain(
        predict(small(pipeline)), as_measured(small(pipeline, "unevenness={stragglers: [{ranks: 1, slowdown: 2}]}"))
    )
    assert 1 <= len(reported.partings) <= 3
    sizes = [abs(one.predicted_s - one.measured_s) for one in reported.partings]
    assert sizes == sorted(sizes, reverse=True)
    assert all(rank in range(3) for one in reported.partings for rank in one.measured_ranks)


def made(seconds: list[float], hidden_s: float, phases: list[float]) -> Run:
    """A run without spans of these parts."""
    breakdown_s = dict(zip(BREAKDOWN, [sum(phases), *seconds], strict=True))
    phase_s = dict(zip(("forward", "backward", "optimizer"), phases, strict=True))
    total_s = sum(breakdown_s.values())
    exposed_s = breakdown_s["exposed_communication"]
    return Run(
        "measured", "made", "data_parallel", 2, 2, 8, total_s, (total_s,), phase_s, breakdown_s,
        {"exposed": exposed_s, "hidden": hidden_s},
    )  # fmt: skip


_PARTS = st.lists(st.floats(0, 10), min_size=len(BREAKDOWN) - 1, max_size=len(BREAKDOWN) - 1)
_PHASES = st.lists(st.floats(1e-6, 10), min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(ours=st.tuples(_PARTS, st.floats(0, 5), _PHASES), theirs=st.tuples(_PARTS, st.floats(0, 5), _PHASES))
def test_parts_of_any_two_runs_add_up_and_are_printed(
    ours: tuple[list[float], float, list[float]], theirs: tuple[list[float], float, list[float]]
) -> None:
    predicted, measured = made(*ours), made(*theirs)
    reported = explain(predicted, measured)
    assert sum(one.difference_s for one in reported.parts) == pytest.approx(reported.difference_s, abs=1e-9)
    assert [one.name for one in reported.parts] == [name for names in GROUPS.values() for name in names]
    assert 1 <= len(reported.sentences) <= 2
    assert reported.to_dict()["difference_s"] == reported.difference_s


def test_waiting_for_the_slowest_device_counts_as_waiting_for_ranks() -> None:
    """Predicted phases are those of the slowest device; measured ranks compute at their own speed, then wait for it."""
    predicted = made([0.3, 1.0, 0.0, 0.0, 0.2, 0.0, 0.0], 0.0, [1.1, 2.2, 0.0])
    predicted = replace(predicted, breakdown_s={**predicted.breakdown_s, "compute": 3.0})
    predicted = replace(predicted, step_time_s=sum(predicted.breakdown_s.values()))
    measured = made([0.0, 1.0, 0.0, 0.0, 0.5, 0.0, 0.0], 0.0, [1.0, 2.0, 0.0])
    reported = explain(predicted, measured)
    assert [one.difference_s for one in reported.parts] == pytest.approx([0.0] * len(reported.parts), abs=1e-9)
    assert part(reported, "waiting_for_ranks").predicted_s == pytest.approx(0.5)
    assert part(reported, "forward").predicted_s == pytest.approx(1.0)


def test_times_are_formatted_as_text() -> None:
    assert times(1.0, 1.8) == "1.8 times as long as predicted"
    assert times(1.0, 1.04) == "1.04 times as long as predicted"
    assert times(1.0, 0.57) == "57 % of the predicted time"
    assert times(0.0, 0.5) == "time, though none is predicted"
