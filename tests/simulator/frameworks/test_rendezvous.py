"""Rendezvous: receives of a collective inside a layer are announced once it starts, where the network's plugin needs that."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.strategy.job import Costs
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.frameworks.scenarios import scenario

ANNOUNCED = "framework=nanotron"
QUEUED = "framework={base: nanotron, rendezvous: false}"
EFA = "cluster=aws-p5"
TENSOR = "strategy={kind: hybrid, tensor: 16, sequence_parallel: true}"


def costs(*overrides: str) -> Costs:
    one = scenario(*overrides)
    plan = one.strategy.plan
    return with_collectives(plan, job_of(one)).costs(plan.microbatches)


def more_s(*overrides: str) -> np.ndarray:
    """Additional seconds of the collectives in each layer's forward pass."""
    announced, queued = (costs(framework, *overrides) for framework in (ANNOUNCED, QUEUED))
    result: np.ndarray = announced.forward_exchange_s - queued.forward_exchange_s
    return result


def test_two_more_messages_go_to_each_node_for_every_collective() -> None:
    """A block has four collectives in its forward pass with sequence parallelism; EFA's plugin states 75 us."""
    block_s = more_s(EFA, TENSOR)[1]
    assert block_s == pytest.approx(4 * 2 * 2 * 75e-6)
    assert more_s(EFA, TENSOR.replace("16", "32"), "model.heads=32")[1] == pytest.approx(2 * block_s)


def test_rendezvous_time_does_not_depend_on_the_size() -> None:
    assert more_s(EFA, TENSOR, "batch=128") == pytest.approx(more_s(EFA, TENSOR, "batch=2"))


@pytest.mark.parametrize(
    "overrides",
    [
        (EFA, TENSOR.replace("16", "8")),
        ("cluster=dgx-h100", TENSOR),
        (EFA, "strategy={kind: hybrid, workers: 16}"),
    ],
)
def test_no_rendezvous_inside_a_node_or_without_a_plugin(overrides: tuple[str, ...]) -> None:
    assert more_s(*overrides) == pytest.approx(0)


def test_collectives_that_follow_one_another_are_queued() -> None:
    """Gradient sums start with their receives queued: buckets follow one another."""
    strategy = "strategy={kind: hybrid, workers: 16}"
    announced, queued = (costs(framework, EFA, strategy) for framework in (ANNOUNCED, QUEUED))
    assert announced.last_backward_s == pytest.approx(queued.last_backward_s)
