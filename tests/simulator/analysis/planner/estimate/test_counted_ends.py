"""Embedding and loss that count as layers when a model is cut into stages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate import Space, every
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model import Gpt, cut_into_stages
from scaleproof.simulator.model.layers import Counted
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.analysis.planner.estimate.predicted import check_against_predictions
from tests.simulator.programs import hybrid, rank_layers

Make = Callable[..., Scenario]
# a vocabulary so wide that the head takes as long as some layers
LLAMA = "model={kind: llama, layers: 14, hidden: 256, heads: 8, vocabulary: 32768, sequence: 256}"
ON = (LLAMA, "cluster=selene-a100", "batch=64", "training.precision=bf16", "training.optimizer=adam")
BOTH = {"account_for_embedding": "true", "account_for_loss": "true"}


def blocks(scenario: Scenario) -> list[int]:
    return [sum(not layer.pinned_to_end for layer in part) for part in rank_layers(scenario.strategy, job_of(scenario))]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [4, 4, 3, 3]),
        # Megatron-Core: 14 layers and both ends are 16, of which each stage has four
        (BOTH, [3, 4, 4, 3]),
        ({"account_for_embedding": "true"}, [3, 4, 4, 3]),
        ({"account_for_loss": "true"}, [4, 4, 4, 2]),
    ],
)
def test_embedding_and_head_count_as_layers_if_requested(small: Make, fields: dict[str, str], expected: list[int]) -> None:
    assert blocks(small(*ON, hybrid(stages=4, microbatches=8, **fields))) == expected


def test_embedding_and_head_can_have_their_own_stages(small: Make) -> None:
    scenario = small(*ON, hybrid(stages=16, microbatches=16, **BOTH))
    assert blocks(scenario) == [0, *[1] * 14, 0]
    parts = rank_layers(scenario.strategy, job_of(scenario))
    assert [layer.name for layer in (*parts[0], *parts[-1])] == ["embedding", "head"]
    reported = memory(scenario)
    assert len(reported.ranks) == 16
    assert predict(scenario).step_time_s > 0


def test_balance_accounts_for_a_wide_head(small: Make) -> None:
    """Here the head takes as long as some layers, and the last of four stages has four of sixteen layers, or three if the head
    counts; 1F1B is as fast as its slowest stage."""
    model = LLAMA.replace("layers: 14", "layers: 16").replace("32768", "131072")
    on = (*ON, model, "framework=ideal")
    plain, counted = (small(*on, hybrid(stages=4, microbatches=32, **fields)) for fields in ({}, {"account_for_loss": "true"}))
    assert timed(counted).step_time_s < timed(plain).step_time_s


@given(st.integers(2, 20), st.integers(1, 22), st.booleans(), st.booleans())
def test_every_layer_is_in_one_stage(layers: int, stages: int, embedding: bool, loss: bool) -> None:
    model = Gpt(layers=layers, hidden=8, heads=1, vocabulary=8, sequence=8).build_layers()
    stages = min(stages, layers + embedding + loss)
    ranges = cut_into_stages(model, stages, Counted(embedding, loss))
    assert [i for stage in ranges for i in stage] == list(range(len(model)))
    counts = [sum(not model[i].pinned_to_end for i in stage) for stage in ranges]
    counts[0] += embedding
    counts[-1] += loss
    assert max(counts) - min(counts) <= 1


@pytest.mark.full
def test_estimates_partition_models_like_the_simulator(small: Make) -> None:
    base = small(*ON, "framework=torchtitan", hybrid(stages=2, microbatches=2, overlap="true", **BOTH))
    space = Space(
        base, (8, 16), tensor=(1, 2), stages=(1, 2, 4, 8, 16), chunks=(1, 2), samples=(1, 2), zero=(0, 1, 3),
        schedules=("1f1b", "interleaved_1f1b"),
    )  # fmt: skip
    found = every(space)
    rows = np.concatenate(
        [np.random.default_rng(2).choice(len(found), 30, replace=False), np.flatnonzero(found.stages == 16)[:4]]
    )
    check_against_predictions(found, rows)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((hybrid(account_for_loss="true"),), "strategy.account_for_loss: there is one stage of the model; leave it out"),
        (
            (hybrid(stages=2, balance="time", account_for_embedding="true"),),
            "strategy.account_for_embedding: balance already determines the stages; leave it out",
        ),
        ((hybrid(stages=17, **BOTH),), "strategy.stages: 17 stages for 16 layers; give at most 16"),
        (
            ("model={kind: mlp, layers: 4, inputs: 8, hidden: 8, outputs: 8}", hybrid(stages=2, account_for_embedding="true")),
            "strategy.account_for_embedding: the model has no separate embedding layer; leave it out",
        ),
    ],
)
def test_impossible_counts_are_refused(small: Make, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(*ON, *overrides)
    assert message in str(caught.value)
