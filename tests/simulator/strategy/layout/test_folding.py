"""Workers whose messages take equal times are one class, and times stay the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaleproof.simulator.engine import replay
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

# two nodes a leaf, two leaves a pod, four pods that are joined by a quarter of the links
TREE = "{kind: fat_tree, per_leaf: 2, leaves_per_pod: 2, spines_per_pod: 2, cores: 2, pod_oversubscription: 4}"


def scenario(*overrides: str, strategy: str = "stages: 4, workers: 4, microbatches: 4") -> Scenario:
    parts = (f"strategy={{kind: hybrid, tensor: 8, {strategy}}}", "batch=64", f"cluster.network.topology={TREE}")
    return load("llama-3-8b-long-context-h100", ["model=llama-3-8b", "cluster.nodes=16", *parts, *overrides])


@pytest.mark.parametrize(
    ("strategy", "classes"),
    [
        ("stages: 4, workers: 4, microbatches: 4", 1),
        ("stages: 2, workers: 3, microbatches: 4", 2),
        ("stages: 4, chunks: 2, schedule: interleaved_1f1b, workers: 3, microbatches: 4", 3),
    ],
)
@pytest.mark.parametrize("zero", [0, 1])
def test_folded_workers_take_the_same_times(strategy: str, classes: int, zero: int) -> None:
    one = scenario(f"training.zero={zero}", "batch=96", strategy=strategy)
    assert not one.cluster.is_uniform
    separate, folded = (timed(one, simulate=replay.simulate, shares_links=shares) for shares in (True, False))
    assert folded.step_time_s == pytest.approx(separate.step_time_s, rel=1e-12)
    assert folded.breakdown_s == pytest.approx(separate.breakdown_s, rel=1e-9, abs=1e-12)
    assert folded.communication_s == pytest.approx(separate.communication_s, rel=1e-9)
    assert folded.compute_ranks == separate.compute_ranks
    stages = one.strategy.plan.stages
    assert len(separate.rank_names) == one.strategy.workers * stages
    assert len(folded.rank_names) == classes * stages


def test_distinguishable_workers_are_not_folded() -> None:
    one = scenario("unevenness={stragglers: [{ranks: [0], slowdown: 1.5}]}")
    job = one.job()
    classes = [len(one.strategy.compile(each).ranks.names) for each in (job, replace(job, shares_links=False))]
    assert classes[0] == classes[1]
