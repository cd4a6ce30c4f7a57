"""Samples of different lengths: padding, packing and groups against theory, and what predictions make of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.common.errors import FieldError, InputError, ScenarioError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.model.operators import Attention
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.lengths import _SEED, Lengths, _random_lengths, statistics
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

LONGEST = 1000


def found(
    samples: int = 4, microbatches: int = 1, workers: int = 1, waits_each: bool = False,
    context: int = 1, context_by: Any = "ring", **fields: Any,
) -> Any:  # fmt: skip
    lengths = Lengths.model_validate({"distribution": "uniform", "mean": 500.5, **fields})
    return statistics(lengths, LONGEST, samples, microbatches, workers, waits_each, context, context_by)


@pytest.mark.parametrize("samples", [1, 2, 8])
def test_padding_is_to_the_longest_of_uniform_lengths(samples: int) -> None:
    """The expected largest of n uniform lengths is n / (n + 1) of the longest."""
    own = found(samples)
    assert own.mean == pytest.approx(500, rel=0.05)
    assert own.padded == pytest.approx(LONGEST * samples / (samples + 1), rel=0.05)


def test_the_longest_of_all_workers_is_waited_for() -> None:
    alone, eight = found(1), found(1, workers=8)
    assert alone.tokens_imbalance == 1
    assert eight.tokens_imbalance == pytest.approx(8 / 9 / 0.5, rel=0.05)
    assert eight.scores_imbalance == pytest.approx(8 / 10 / (1 / 3), rel=0.06)
    # sums over microbatches are less unequal than single ones
    assert found(1, 16, 8).tokens_imbalance < found(1, 16, 8, waits_each=True).tokens_imbalance == pytest.approx(1.78, rel=0.05)


def test_groups_of_similar_lengths_have_little_padding() -> None:
    grouped = found(8, workers=4, batches="grouped")
    assert grouped.padded == pytest.approx(grouped.mean, rel=0.05)
    assert found(8, workers=4).padded == pytest.approx(LONGEST * 8 / 9, rel=0.05)


def test_packed_samples_attend_to_their_own_tokens() -> None:
    packed = found(batches="packed")
    assert packed.mean == packed.padded == LONGEST
    # a token's sample reaches u tokens on with a probability of (1 - u / longest)^2, and is cut where its row ends
    assert packed.keys == pytest.approx(LONGEST / 2, rel=0.03)
    assert found(batches="packed", across=True).keys == LONGEST


@pytest.mark.parametrize("context", [2, 4])
def test_ranks_that_gather_keys_wait_for_the_parts_with_the_longest_samples(context: int) -> None:
    """Counted token by token: each rank has one of 2 · context parts from the front of each row, and one from the back."""
    drawn = found(2, batches="packed", context=context, context_by="all_gather")
    tokens = np.minimum(
        _random_lengths(Lengths(distribution="uniform", mean=500.5), LONGEST, 10_000, np.random.default_rng(_SEED)), LONGEST
    ).astype(int)
    keys = np.concatenate([np.arange(1, count + 1) for count in tokens])[: 2_000 * LONGEST]
    row = np.arange(len(keys)) // LONGEST
    # the samples that begin in the row before end with it
    first = np.searchsorted(np.cumsum(tokens), row * LONGEST, side="right")
    before = np.cumsum(tokens)[first] - tokens[first]
    keys -= np.where(np.repeat(np.arange(len(tokens)), tokens)[: len(keys)] == first, row * LONGEST - before, 0)
    scores = keys.reshape(-1, 2, 2 * context, LONGEST // (2 * context)).sum(axis=(1, 3))
    ranks = scores + scores[:, ::-1]
    assert drawn.scores_imbalance == pytest.approx((ranks.max(axis=1) / ranks.mean(axis=1)).mean(), rel=0.02)
    assert drawn.scores_imbalance > 1.03


@pytest.mark.parametrize(
    ("fields", "context_by"),
    [({"across": True}, "all_gather"), ({}, "ring"), ({}, "ulysses"), ({"mean": 1000, "distribution": "file"}, "all_gather")],
)
def test_context_ranks_with_equal_work_do_not_wait(fields: dict[str, Any], context_by: str, tmp_path: Path) -> None:
    """Whole sequences, samples that are divided one by one, and heads are equal work."""
    if fields.get("distribution") == "file":
        (tmp_path / "whole.txt").write_text(str(LONGEST))
        fields = {"distribution": "file", "file": str(tmp_path / "whole.txt"), "mean": None}
    assert found(2, batches="packed", context=4, context_by=context_by, **fields).scores_imbalance == pytest.approx(1)


def test_ring_attention_pads_each_packed_sample_to_its_parts() -> None:
    """On average half of 2 · 4 parts less a half, of samples of 500 tokens."""
    padded = found(batches="packed", context=4, context_by="ring")
    assert padded.mean == pytest.approx(LONGEST / (1 + 3.5 / 500), rel=2e-3)
    assert padded.keys == pytest.approx(found(batches="packed").keys, rel=0.02)


def test_packed_samples_of_unequal_context_ranks_are_waited_for() -> None:
    given = ["strategy={kind: hybrid, workers: 2, context: 4, micro_batch_size: 1}", UNIFORM.format("packed")]
    gathering, exchanging = (
        predict(scenario(*given, f"strategy.context_by={way}"), interval=False) for way in ("all_gather", "ulysses")
    )
    assert gathering.breakdown_s["slowest_rank"] > exchanging.breakdown_s["slowest_rank"]


def scenario(*changes: str) -> Scenario:
    given = ["cluster=dgx-h100", "batch.total=64", "model.sequence=1000", "strategy.workers=8", "strategy.micro_batch_size=4"]
    return load("llama-3-8b", [*given, *changes])


UNIFORM = "batch.lengths={{distribution: uniform, mean: 500.5, batches: {}}}"


def test_time_follows_the_mean_and_memory_the_longest() -> None:
    whole, padded, packed = scenario(), scenario(UNIFORM.format("padded")), scenario(UNIFORM.format("packed"))
    assert memory(padded).worst.total_bytes == memory(whole).worst.total_bytes
    assert padded.tokens_per_sample == pytest.approx(500, rel=0.05)
    assert packed.tokens_per_sample == 1000
    tokens_per_s = [predict(one).tokens_per_s or 0 for one in (padded, packed)]
    assert tokens_per_s[0] < tokens_per_s[1]
    assert predict(packed).step_time_s < predict(whole).step_time_s * 1.05


def test_attention_computes_squares_of_lengths() -> None:
    """Padded to the longest of four uniform lengths, whose mean square is 4 / 6 of the longest's."""
    own = scenario(UNIFORM.format("padded"))
    (attention,) = {one for one in own.layers(WHOLE)[1].operators if isinstance(one, Attention)}
    assert attention.scores / attention.heads == pytest.approx(LONGEST**2 * 4 / 6, rel=0.05)


def test_lengths_may_be_written_as_the_models_sequence(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("\n".join(str(number) for number in range(1, 1001)))
    written = {"distribution": "file", "file": str(file), "max": 1000}
    own = load("llama-3-8b", {"cluster": "dgx-h100", "batch": 64, "model.sequence": written, "strategy.workers": 8})
    assert own.length_statistics == pytest.approx(scenario(UNIFORM.format("padded")).length_statistics, rel=0.2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["batch.lengths={distribution: uniform}"], "mean: goes with the distributions lognormal and uniform"),
        (["batch.lengths={distribution: file}"], "file: goes with distribution file"),
        (["batch.lengths={distribution: uniform, mean: 5, across: true}"], "across: goes with batches packed"),
        (["model=resnet50", UNIFORM.format("padded")], "not modelled with a resnet"),
        (["model.sequence={distribution: uniform, mean: 5}"], "max: missing"),
    ],
)
def test_what_does_not_fit_is_refused(changes: list[str], message: str) -> None:
    kept = [] if any(one.startswith("model") for one in changes) else ["model.sequence=1000"]
    with pytest.raises(ScenarioError, match=re.escape(message)):
        load("llama-3-8b", ["cluster=dgx-h100", "batch.total=64", "strategy.workers=8", *kept, *changes])


def test_a_file_of_lengths_is_checked(tmp_path: Path) -> None:
    (tmp_path / "wrong.txt").write_text("12 none")
    for name in ("wrong.txt", "missing.txt"):
        with pytest.raises(InputError, match="give a text file with a number of tokens in each line"):
            statistics(Lengths(distribution="file", file=str(tmp_path / name)), LONGEST, 1, 1, 1, False)


def test_plans_are_refused_on_unequal_nodes_whose_jobs_are_predicted() -> None:
    unequal = ("strategy.workers=16", "cluster.nodes=[{count: 1}, {count: 1, device: a100-80gb-sxm}]")
    message = (
        "batch.lengths: plans for nodes of different kinds are made for samples of one length; leave it out, and predict what "
        "is planned with it"
    )
    times_s = []
    for batches in ("grouped", "padded"):
        own = scenario(UNIFORM.format(batches), *unequal)
        with pytest.raises(FieldError, match=re.escape(message)):
            plan(own, 16)
        times_s.append(predict(own, interval=False).step_time_s)
    assert times_s[0] < times_s[1], "groups are padded less"
