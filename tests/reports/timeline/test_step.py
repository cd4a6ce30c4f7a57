"""The step of a run that is shown: weight-gradient spans, stages of a rank, and the duration."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.reports.timeline.step import WEIGHT, Step, kind_words, span_words, typical_step
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]


def step_of(run: Run) -> Step:
    step = typical_step(run)
    assert step is not None
    return step


@pytest.mark.parametrize(("schedule", "chunks"), [("zb_h1", 1), ("zb_2p", 1), ("interleaved_zero_bubble", 2), ("zb_v", 2)])
def test_each_microbatch_has_a_weight_gradient_pass(small: Make, schedule: str, chunks: int) -> None:
    fields = f"kind: pipeline, stages: 3, microbatches: 6, chunks: {chunks}, schedule: {schedule}"
    step = step_of(predict(small(f"strategy={{{fields}}}")))
    passes = {
        kind: sorted(zip(step.spans.stage[mine].tolist(), step.spans.microbatch[mine].tolist(), strict=True))
        for kind in (Phase.FORWARD, Phase.BACKWARD, WEIGHT)
        for mine in [step.kind == kind]
    }
    assert passes[Phase.FORWARD] == [(stage, microbatch) for stage in range(3 * chunks) for microbatch in range(6)]
    assert passes[Phase.FORWARD] == passes[Phase.BACKWARD] == passes[WEIGHT]
    # weight-gradient passes follow input-gradient passes
    ends = {kind: step.end_ms[step.kind == kind] for kind in passes}
    assert ends[WEIGHT].min() > ends[Phase.BACKWARD].min()


@pytest.mark.parametrize(
    "strategy",
    [
        "{kind: pipeline, stages: 3, microbatches: 6}",
        "{kind: data_parallel, workers: 4, bucket: 100 KiB, microbatches: 3}",
        "{kind: hybrid, workers: 2, stages: 3, microbatches: 6, bucket: 100 KiB, overlap: true}",
        "{kind: local_sgd, workers: 4, period: 3}",
        "{kind: model_parallel, stages: 3}",
    ],
)
def test_parts_of_a_split_pass_are_not_weight_gradient_passes(small: Make, strategy: str) -> None:
    for zero in (0, 3) if "data_parallel" in strategy else (0,):
        step = step_of(predict(small(f"strategy={strategy}", f"training.zero={zero}")))
        assert WEIGHT not in step.kind
        assert (step.kind == step.spans.phase).all()


def test_communication_is_named_with_its_layers_and_bytes(small: Make) -> None:
    step = step_of(predict(small("strategy={kind: data_parallel, workers: 4}", "training.zero=3")))
    gathers = np.flatnonzero((step.spans.calls > 0) & (step.spans.first_layer == 1))
    words = {span_words(step.spans, int(i), int(step.kind[i])) for i in gathers}
    assert all(re.fullmatch(r"FSDP (all-gather|reduce-scatter), layer 1, [\d.]+ KiB", text) for text in words)
    assert kind_words(int(Phase.SYNCHRONISE), [step]) == "FSDP all-gather, FSDP reduce-scatter"


def test_asynchronous_workers_are_shown_over_several_step_times(small: Make) -> None:
    servers = "strategy={kind: parameter_server, workers: 3, servers: 1, mode: asynchronous}"
    run = predict(small(servers, "unevenness={stragglers: [{ranks: [2], slowdown: 2}]}"))
    step = step_of(run)
    assert step.number is None
    assert step.length_ms == pytest.approx(4 * run.step_time_s * 1e3, rel=0.01)
    assert (step.start_ms >= step.arrival_ms).all()
    forward = [int(((step.kind == Phase.FORWARD) & (step.spans.rank == rank)).sum()) for rank in step.ranks[:3]]
    assert forward[0] > forward[2] > 0
