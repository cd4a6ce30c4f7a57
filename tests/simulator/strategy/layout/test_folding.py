"""Workers whose messages take equal times are one class, and times stay the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.engine import events, replay
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.scenario_job import job_of

# two nodes a leaf, two leaves a pod, four pods that are joined by a quarter of the links
TREE = "{kind: fat_tree, per_leaf: 2, leaves_per_pod: 2, spines_per_pod: 2, cores: 2, pod_oversubscription: 4}"


# a rank that is as fast as all others, but named, so that no workers are folded
NAMED = "unevenness={stragglers: [{ranks: [0], slowdown: 1.0}]}"


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
    separate = timed(scenario(f"training.zero={zero}", "batch=96", NAMED, strategy=strategy), simulate=replay.simulate)
    folded = timed(one, simulate=replay.simulate, shares_links=False)
    assert folded.step_time_s == pytest.approx(separate.step_time_s, rel=1e-12)
    assert folded.breakdown_s == pytest.approx(separate.breakdown_s, rel=1e-9, abs=1e-12)
    assert folded.communication_s == pytest.approx(separate.communication_s, rel=1e-9)
    assert folded.compute_ranks == separate.compute_ranks
    stages = one.strategy.plan.stages
    assert len(separate.rank_names) == one.strategy.workers * stages
    assert len(folded.rank_names) == classes * stages


TREES = st.builds(
    "{{kind: fat_tree, per_leaf: {}, leaves_per_pod: {}, spines_per_pod: 2, cores: 2, oversubscription: {}, "
    "pod_oversubscription: {}}}".format,
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([2, 8, 40]),
)
STRATEGIES = st.sampled_from(
    [
        "stages: 4, workers: 4, microbatches: 4",
        "stages: 2, workers: 8, microbatches: 2, order: [tensor, context, stages, workers]",
        "stages: 2, workers: 6, microbatches: 4, overlap_sends: true",
        "stages: 4, chunks: 2, schedule: interleaved_1f1b, workers: 4, microbatches: 4",
        "stages: 2, workers: 8, microbatches: 2, algorithm: tree",
    ]
)


@pytest.mark.full
@settings(max_examples=10)
@given(TREES, STRATEGIES, st.sampled_from([0, 1, 2]))
def test_folded_workers_share_links_as_separate_workers_do(tree: str, strategy: str, zero: int) -> None:
    """The events engine ends every step of a folded program when it ends that of the separate workers."""
    changes = f"training.zero={zero}", f"cluster.network.topology={tree}", "cluster.network.bandwidth=20 Gbit/s", "batch=96"
    programs = []
    for more in ((), (NAMED,)):
        one = scenario(*changes, *more, strategy=strategy)
        programs.append(compile_step(one.strategy, job_of(one)))
    folded, separate = programs
    assert len(folded.ranks.names) <= len(separate.ranks.names)
    assert sum(folded.ranks.multiplicity) == sum(separate.ranks.multiplicity)
    ends_s = [events.simulate(program, 2).step_ends_s() for program in programs]
    assert ends_s[0] == pytest.approx(ends_s[1], rel=1e-9)


def test_equivalent_workers_that_share_links_are_folded() -> None:
    one = scenario("cluster.network.bandwidth=20 Gbit/s")
    program = compile_step(one.strategy, job_of(one))
    assert len(program.ranks.names) == 4
    # four pods of one stage each: all workers' activations leave a pod by one uplink
    assert max(program.routes.per_unit) > 4
