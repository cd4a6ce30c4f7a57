"""Models on several devices: concurrent branches, sequential parts of chains."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]
TOWERS = (
    "model={kind: siamese, tower: {kind: mlp, layers: 6, inputs: 512, hidden: 2048, outputs: 64}}",
    "cluster.node.link.latency=0",
    "batch=64",
)


def towers(small: Make, stages: int, *more: str) -> Scenario:
    return small(*TOWERS, f"strategy={{kind: model_parallel, stages: {stages}}}", *more)


def test_two_towers_run_on_two_devices_at_the_same_time(small: Make) -> None:
    one, two = (predict(towers(small, stages, "cluster.node.link.bandwidth=1 PB/s")) for stages in (1, 2))
    # forward and backward in half the time; each device updates weights of its own
    assert two.phase_s["forward"] + two.phase_s["backward"] == pytest.approx(
        (one.phase_s["forward"] + one.phase_s["backward"]) / 2, rel=0.02
    )
    assert two.phase_s["optimizer"] == pytest.approx(one.phase_s["optimizer"], rel=0.02)
    assert two.step_time_s < 0.75 * one.step_time_s


def test_weights_shared_by_both_towers_are_averaged(small: Make) -> None:
    run = predict(towers(small, 2, "cluster.node.link.bandwidth=100 MB/s"))
    scenario = towers(small, 2)
    shared_bytes = 4 * sum(layer.parameters for layer in scenario.model.build_layers() if layer.name.startswith("left."))
    # an allreduce between two moves the data once each way
    assert run.breakdown_s["exposed_communication"] >= shared_bytes / 100e6
    ranks = memory(scenario).ranks
    assert ranks[0].holders_bytes["parameters"] == pytest.approx(ranks[1].holders_bytes["parameters"], rel=1e-3)


def test_over_gloo_a_message_moves_once_its_receiver_is_done_with_its_own_branch(small: Make) -> None:
    """The second device is ready long before the first, whose tower is ten times slower: only over other libraries does its
    message arrive meanwhile."""
    fields = ("unevenness={stragglers: [{ranks: 0, slowdown: 10}]}", "cluster.node.link.bandwidth=1 MB/s", "batch=256")
    gloo, fastest = (
        predict(towers(small, 2, *fields, f"cluster.collectives={{library: {library}}}")) for library in ("gloo", "fastest")
    )
    message_s = 256 * 64 * 4 / 1e6
    assert gloo.step_time_s == pytest.approx(fastest.step_time_s + message_s, rel=1e-3)


def test_a_chain_on_two_devices_takes_the_time_of_one_plus_messages(small: Make) -> None:
    one = predict(small("strategy={kind: model_parallel, stages: 1}"))
    two = predict(small("strategy={kind: model_parallel, stages: 2}"))
    pipeline = predict(small("strategy={kind: pipeline, stages: 2, microbatches: 1, schedule: gpipe}"))
    assert two.step_time_s == pytest.approx(pipeline.step_time_s, rel=0.01)
    forward_and_backward = one.phase_s["forward"] + one.phase_s["backward"]
    assert two.step_time_s > forward_and_backward


def test_more_devices_than_branches_are_refused(small: Make) -> None:
    with pytest.raises(ScenarioError, match=r"strategy\.stages: 3 devices for a model with 2 branches; give at most 2"):
        towers(small, 3)
