"""Routers limit the nodes of a token, and tokens are sent once to each node.

Theory: tokens that are sent once to a node, and there once to each rank with some of their experts, have the outputs that one
process computes, and as many rows are sent as predicted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Stream
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.strategy.model_parallel.expert import copies
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.strategy.model_parallel.expert import NodeLimit
from tests.validator import conftest
from tests.validator.conftest import TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation_of, in_bulk

EXPERTS = {"count": 8, "active": 4, "feedforward": 24}
MIXED = TINY_GPT | {"experts": EXPERTS}
FEW = TINY_GPT | {"experts": {**EXPERTS, "active": 2, "shared": 1}}
WORKERS = {"kind": "hybrid", "workers": 4, "expert": 4}
ONCE = {**WORKERS, "dispatcher": "deepep"}
LIMITED = {**WORKERS, "node_limit": 1}
FOLDED = {"kind": "hybrid", "tensor": 2, "sequence_parallel": True, "expert_tensor": 1, "workers": 2, "expert": 4}
STAGED = {"stages": 2, "microbatches": 2, "schedule": "zb_h1", "overlap_sends": True, "overlap": False}


@pytest.fixture(autouse=True)
def nodes_of_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    node = conftest.CLUSTER["node"] | {"devices": 2}  # type: ignore[operator]
    network = {"bandwidth": "10 Gbit/s", "latency": "20 us"}
    monkeypatch.setattr(conftest, "CLUSTER", conftest.CLUSTER | {"node": node, "nodes": 4, "network": network})


def run_of(make_scenario: MakeScenario, strategy: dict[str, Any], model: dict[str, Any], **training: Any) -> Run:
    return measure(make_scenario(strategy, model, precision="fp64", **training), watch=MeasureOptions(verify=True))


@pytest.mark.parametrize(
    ("strategy", "model", "training"),
    [
        ({**ONCE, "node_limit": 1}, FEW, {}),
        *in_bulk(
            (LIMITED, MIXED, {"optimizer": "adam"}),
            ({**ONCE, "microbatches": 2}, MIXED, {"optimizer": "adam"}),
            ({**FOLDED, "dispatcher": "hybridep"}, FEW, {}),
            (ONCE, MIXED, {"zero": 3}),
            ({**ONCE, **STAGED, "node_limit": 1}, FEW, {}),
        ),
    ],
)
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation_of(run_of(make_scenario, strategy, model, **training)) < 1e-9


def test_a_token_goes_to_the_best_experts_of_the_best_nodes() -> None:
    # the best node has the two largest weights in all, but not the largest one
    weights = torch.tensor([[0.30, 0.02, 0.01, 0.25, 0.22, 0.20], [0.1, 0.5, 0.1, 0.1, 0.1, 0.1]])

    route = NodeLimit([range(3), range(3, 6)], limit=1, active=2)
    chosen = route(weights)

    assert chosen[1].tolist()[0] == [3, 4]
    assert 1 in chosen[1].tolist()[1]
    assert set(chosen[1].tolist()[1]) <= {0, 1, 2}
    assert torch.equal(chosen[0], weights.gather(-1, chosen[1]))
    assert set(replace(route, limit=2)(weights)[1][0].tolist()) == {0, 3}


@pytest.mark.full
def test_a_token_is_sent_once_to_each_node_and_rank(make_scenario: MakeScenario) -> None:
    run, each = (run_of(make_scenario, strategy, MIXED) for strategy in (ONCE, WORKERS))

    spans = run.spans
    assert spans is not None
    assert run.losses == pytest.approx(each.losses, rel=1e-9)
    first = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.rank == 0) & (spans.step == 2)).size_bytes
    # each hop of the first mixture sends numbers of rows to two places, then rows, weights and numbers of experts
    row_bytes, tokens = 8 * 16, 4 * 8
    assert first[0] == first[4] == 2 * 8
    assert first[2] == first[3] == first[1] / row_bytes * 8 * EXPERTS["active"]
    scenario = make_scenario(ONCE, MIXED)
    job = job_of(scenario)
    routed = next(one.routed for layer in job.layers for one in layer.exchanges if one.routed is not None)
    layout = cast(LayerCollectives, with_collectives(scenario.strategy.plan, job).exchange)
    expected = copies(layout.plan, routed, layout.mesh.passing("expert"))
    assert [float(first[place] / row_bytes / tokens) for place in (1, 5)] == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize(
    ("strategy", "model", "message"),
    [
        (
            {**ONCE, "workers": 6, "expert": 3},
            TINY_GPT | {"experts": {**EXPERTS, "count": 6}},
            "strategy.dispatcher: deepep is",
        ),
        ({**LIMITED, "workers": 6, "expert": 3}, TINY_GPT | {"experts": {**EXPERTS, "count": 6}}, "strategy.node_limit is"),
        (ONCE, TINY_GPT | {"experts": {**EXPERTS, "capacity": 1.0}}, "strategy.dispatcher: deepep with model.experts.capacity"),
        (LIMITED, TINY_GPT | {"experts": {**EXPERTS, "active": 6}}, "strategy.node_limit: 1: 4 experts"),
    ],
)
def test_nodes_that_routers_cannot_use_are_rejected(
    strategy: dict[str, Any], model: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=message):
        measure(make_scenario(strategy, model, batch=12))
