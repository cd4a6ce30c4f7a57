"""Faults of one direction of a link, of some steps, and of a rank's input are named from spans alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from scaleproof.simulator.common.spans import COMPUTE_PHASES, Phase, Spans, Stream
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.compute_steps import varying_rank
from scaleproof.validator.reconciliation.explain import explain
from scaleproof.validator.reconciliation.faults import faults
from scaleproof.validator.reconciliation.links import Link, slow_links
from tests.validator.reconciliation.runs import as_measured

Make = Callable[..., Scenario]
RANKS = 4


def messages(seconds: Callable[[int, int], float]) -> Run:
    """A run of stages in a chain, each of which sends a megabyte to its neighbours in turn; `seconds` for a message."""
    rows: list[tuple[int, int, float, float]] = []
    time_s = 0.0
    for source, target in [(n, n + 1) for n in range(RANKS - 1)] + [(n + 1, n) for n in reversed(range(RANKS - 1))]:
        end_s = time_s + seconds(source, target)
        rows += [(source, Phase.SEND, time_s, end_s), (target, Phase.RECEIVE, time_s, end_s)]
        time_s = end_s + 1e-3
    rank, phase, start_s, end_s_ = (np.array(column) for column in zip(*rows, strict=True))
    columns = {"rank": rank, "phase": phase, "arrival_s": start_s, "start_s": start_s, "end_s": end_s_}
    spans = Spans.of(
        columns
        | {
            "step": np.ones_like(rank),
            **dict.fromkeys(("stream", "stage", "microbatch"), np.zeros_like(rank)),
            "size_bytes": np.full(len(rank), 1e6),
        }
    )
    names = tuple(f"stage {n}" for n in range(RANKS))
    return Run("measured", "chain", "pipeline", RANKS, RANKS, 1, time_s, (time_s,), {}, {}, rank_names=names, spans=spans)


@pytest.mark.parametrize("host", range(RANKS))
@pytest.mark.parametrize(("way", "end"), [("from", 0), ("to", 1), ("", None)])
def test_a_link_that_is_slow_in_one_direction_is_distinguished(host: int, way: str, end: int | None) -> None:
    def seconds(*ends: int) -> float:
        is_slow = host in ends if end is None else ends[end] == host
        return 0.2 if is_slow else 0.1

    assert slow_links(messages(seconds), np.ones(RANKS, dtype=bool)) == [Link((host,), pytest.approx(2.0), way)]


def with_changed_compute(run: Run, factors_of: Mapping[int, Sequence[float]]) -> Run:
    """Steps like the run's last one, in which compute of these ranks takes a factor as long; one factor for each step. Updates
    of servers are compute."""
    assert run.spans is not None
    last = run.spans.where(run.spans.step == run.spans.step.max())
    steps = max(map(len, factors_of.values()))
    blocks, added_s = [], 0.0
    for step in range(steps):
        end_s = last.end_s.copy()
        for rank, factors in factors_of.items():
            own = (last.rank == rank) & np.isin(last.phase, COMPUTE_PHASES)
            end_s[own] = last.start_s[own] + factors[step] * (last.end_s - last.start_s)[own]
        blocks.append(replace(last, step=np.full_like(last.step, step + 1), end_s=end_s))
        added_s += float((end_s - last.end_s).sum()) / RANKS / steps
    columns = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in last.columns()}
    step_s = run.step_time_s + added_s
    return replace(run, spans=Spans.of(columns), step_time_s=step_s, step_times_s=(step_s,) * steps)


def test_compute_that_varies_on_one_rank_is_not_slow_but_jitter(small: Make) -> None:
    scenario = small()
    run = with_changed_compute(as_measured(scenario), {2: [1.0, 3.0, 1.0, 2.5, 1.0, 1.0, 3.0, 1.0]})
    found = faults(predict(scenario), run)
    assert [(fault.kind, fault.who) for fault in found] == [("jitter", ("worker 2",))]
    assert found[0].words.startswith("compute of worker 2 varies from step to step by 5")


def test_compute_that_is_always_slow_or_varies_little_is_no_jitter(small: Make) -> None:
    run, training = as_measured(small()), np.ones(RANKS, dtype=bool)
    for factors in ([3.0] * 8, [1.0, 1.1] * 4, [1.0, 3.0, 1.0]):
        assert varying_rank(with_changed_compute(run, {1: factors}), training) is None


# some steps of each rank last longer, because ranks wait for a core that they share
_WAITS: Final = {0: [1.0, 1.0, 2.0, 1.0], 1: [1.0, 2.0, 1.0, 1.0], 3: [2.0, 1.0, 1.0, 1.0]}


def test_a_rank_that_waits_for_a_core_in_some_steps_is_not_slow(small: Make) -> None:
    scenario = small()
    run = with_changed_compute(as_measured(scenario), _WAITS | {2: [4.0, 1.0, 5.0, 1.0]})
    assert faults(predict(scenario), run) == ()


def test_a_rank_that_is_slow_in_each_step_is_slow_by_its_least_disturbed_steps(small: Make) -> None:
    scenario = small()
    (fault,) = faults(predict(scenario), with_changed_compute(as_measured(scenario), _WAITS | {2: [3.0, 2.0, 4.0, 2.0]}))
    assert (fault.kind, fault.who) == ("compute", ("worker 2",))
    assert fault.ratio == pytest.approx(2.0, rel=0.05)


def test_a_server_that_waits_for_a_core_in_some_steps_is_not_slow(small: Make) -> None:
    scenario = small("strategy={kind: parameter_server, workers: 2, servers: 2}")
    run = as_measured(scenario)
    predicted = predict(scenario)
    disturbed, slow = (
        with_changed_compute(run, {2: [1.0] * 4, 3: factors}) for factors in ([1.0, 20.0, 20.0, 1.0], [20.0] * 4)
    )
    assert faults(predicted, disturbed) == ()
    assert [(fault.kind, fault.who) for fault in faults(predicted, slow)] == [("updates", ("server 1",))]


def test_a_rank_that_waits_for_its_samples_is_named(small: Make) -> None:
    scenario = small()
    run = as_measured(scenario)
    assert run.spans is not None
    begin_s = float(run.spans.end_s.max())
    row = {"rank": [1], "step": [1], "stream": [Stream.MAIN], "phase": [Phase.INPUT], "stage": [-1], "microbatch": [-1]}
    late = Spans.of(
        row | {"size_bytes": [0.0]} | {"arrival_s": [begin_s], "start_s": [begin_s], "end_s": [begin_s + run.step_time_s]}
    )
    columns = {name: np.concatenate([getattr(run.spans, name), getattr(late, name)]) for name in late.columns()}
    found = explain(predict(scenario), replace(run, spans=Spans.of(columns)))
    assert [(fault.kind, fault.who) for fault in found.faults] == [("input", ("worker 1",))]
    assert any("worker 1 waits for its samples for" in sentence for sentence in found.sentences)


def test_a_stage_that_waits_for_its_samples_as_predicted_is_not_named(small: Make) -> None:
    scenario = small("strategy={kind: pipeline, stages: 4, microbatches: 4}", "input={decode: 1 s, prefetch: 0}")
    predicted = predict(scenario)
    assert predicted.phase_s["input"] > 0.1 * predicted.step_time_s
    assert explain(predicted, as_measured(scenario)).faults == ()
