"""Places of ranks: the ranks of a node that send together."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.planner.estimate.layer_times import Place
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy.scenario_job import job_of

SCENARIO = load("megatron-175b-3d-selene", ("batch=64", "cluster.nodes=8", "strategy={kind: hybrid, tensor: 8, workers: 8}"))


# a node has eight devices
@pytest.mark.parametrize(
    ("tensor", "workers", "stages", "senders"),
    [(8, 2, 4, 8), (4, 4, 4, 8), (1, 16, 4, 8), (1, 1, 64, 1), (2, 1, 32, 2), (4, 1, 2, 4)],
)
def test_ranks_of_one_stage_on_a_node_send_concurrently(tensor: int, workers: int, stages: int, senders: int) -> None:
    plan = Plan(workers=workers, stages=stages, tensor=tensor, microbatches=stages)
    assert Place.of(plan, job_of(SCENARIO)).senders == senders
