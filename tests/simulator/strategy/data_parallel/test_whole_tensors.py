"""ZeRO 1 by whole tensors, as in InternEvo: gradients are summed whole, and owners broadcast the tensors they updated."""

from __future__ import annotations

import pytest

from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.frameworks.scenarios import scenario, trained_by


def on(workers: int, *overrides: str) -> Scenario:
    return scenario(
        "framework=internevo", "cluster=internevo-a100", f"strategy.workers={workers}", f"batch={8 * workers}",
        "training.zero=1", *overrides,
    )  # fmt: skip


def calls(one: Scenario) -> dict[str, tuple[float, float]]:
    """Number of calls of each collective in a step, and the bytes of all of them."""
    return {part.collective: (part.calls, part.size_bytes) for part in timed(one).communication}


@pytest.mark.parametrize("workers", [8, 16, 256])
def test_each_rank_that_owns_a_tensor_broadcasts(workers: int) -> None:
    one = on(workers)
    tensors = sum(len(layer.tensors) for layer in job_of(one).layers)
    assert 16 < tensors < 256
    size_bytes = 2 * one.model.parameters()
    found = calls(one)
    assert set(found) == {"broadcast", "all-reduce"}
    assert found["broadcast"] == (min(workers, tensors), pytest.approx(size_bytes))
    assert found["all-reduce"][1] == pytest.approx(size_bytes)


def test_groups_of_owners_sum_gradients_over_all_replicas() -> None:
    """A group inside a node broadcasts at the rate of the node, but gradients cross the network."""
    everyone, groups = on(64), on(64, "strategy.shard_over=8")
    assert calls(groups)["broadcast"][0] == 8
    assert calls(groups)["all-reduce"] == calls(everyone)["all-reduce"]
    assert timed(groups).step_time_s < timed(everyone).step_time_s


def test_broadcasts_lose_more_than_gathers_on_many_ranks() -> None:
    """Each broadcast passes all ranks in turn, and there is one per tensor."""

    def lost_s(workers: int) -> float:
        one = on(workers)
        return timed(one).step_time_s - timed(trained_by(one, shipped("internevo").ablated("zero 1"))).step_time_s

    assert 0 < lost_s(16) < lost_s(64) < lost_s(256)
