"""Placements: configurations with equally placed ranks share one, which counts the ranks of a node that send together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaleproof.simulator.analysis.planner.estimate import every
from scaleproof.simulator.analysis.planner.estimate.transfer_times import RankPlacement, RankPlacements
from scaleproof.simulator.analysis.planner.space import space
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.strategy.scenario_job import job_of

SCENARIO = load("megatron-175b-3d-selene", ("batch=64", "cluster.nodes=8", "strategy={kind: hybrid, tensor: 8, workers: 8}"))


def test_placement_is_computed_for_each_configuration() -> None:
    some = every(replace(space(SCENARIO, 64), chunks=(1, 2), samples=(1, 2)))
    found = RankPlacements.of(some, job_of(SCENARIO))
    for row in range(0, len(some), 97):
        plan = some.scenario(row).strategy.plan
        assert found.all[found.code[row]] == RankPlacement.of(plan, job_of(SCENARIO))


# a node has eight devices
@pytest.mark.parametrize(
    ("tensor", "workers", "stages", "senders"),
    [(8, 2, 4, 8), (4, 4, 4, 8), (1, 16, 4, 8), (1, 1, 64, 1), (2, 1, 32, 2), (4, 1, 2, 4)],
)
def test_ranks_of_one_stage_on_a_node_send_concurrently(tensor: int, workers: int, stages: int, senders: int) -> None:
    plan = Plan(workers=workers, stages=stages, tensor=tensor, microbatches=stages)
    place = RankPlacement.of(plan, job_of(SCENARIO))
    assert place.senders == senders
    assert (place.grid.tensor, place.grid.stages, place.grid.workers) == (tensor, stages, workers)
