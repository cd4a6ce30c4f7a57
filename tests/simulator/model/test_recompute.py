"""Recomputation: what each form recomputes, keeps and rejects."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.activations import size_bytes
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Matmul
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute, again, kept_activations
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import hybrid

Make = Callable[..., Scenario]

TOKENS, HIDDEN, FEEDFORWARD, KEYS = 256, 512, 1024, 128
LLAMA = (
    "model={kind: llama, layers: 8, hidden: 512, heads: 8, key_heads: 2, feedforward: 1024, vocabulary: 8192, sequence: 256}"
)
MIXTURE = (
    "model={kind: llama, layers: 8, hidden: 512, heads: 8, vocabulary: 8192, sequence: 256, "
    "latent: {query_rank: 64, key_rank: 64, width: 32, rotary_width: 16, value_width: 32}, "
    "experts: {count: 8, active: 2, feedforward: 256, shared: 1, dense_layers: 1}}"
)
SCORES = LLAMA.replace("sequence: 256", "sequence: 256, flash: false")
ON = ("cluster=selene-a100", "batch=64", "training.precision=bf16", "training.optimizer=adam", "training.autocast=false")


def form(**fields: object) -> Recompute:
    return Recompute.model_validate(fields)


def blocks(scenario: Scenario) -> list[Layer]:
    return [layer for layer in job_of(scenario).layers if not layer.pinned_to_end]


def dropped_elements(layer: Layer, recompute: Recompute) -> int:
    return size_bytes(layer.kept, 1) - size_bytes(kept_activations(layer, recompute), 1)


@pytest.mark.parametrize(
    ("modules", "operators", "dropped"),
    [
        # a statistic of four bytes for each head and token; attention's output is kept for the projection
        (["core_attn"], ["attention"], 8 * TOKENS * 4),
        (["layernorm"], ["rms norm", "rms norm"], 2 * TOKENS * HIDDEN),
        (["mlp"], ["up", "swiglu", "down"], 3 * TOKENS * FEEDFORWARD),
        (["activation"], ["swiglu"], TOKENS * FEEDFORWARD),
        (["mlp", "activation"], ["up", "swiglu", "down"], 3 * TOKENS * FEEDFORWARD),
    ],
)
def test_modules_of_a_dense_block_are_listed(small: Make, modules: list[str], operators: list[str], dropped: int) -> None:
    block = blocks(small(LLAMA, *ON))[0]
    recompute = form(kind="selective", modules=modules)
    assert [one.name for one in again(block, recompute).operators] == operators
    assert dropped_elements(block, recompute) == dropped


@pytest.mark.parametrize(
    ("module", "operators"),
    [
        ("mla_up_proj", ["query up", "key up", "rotary"]),
        ("moe_act", ["swiglu"]),
        ("shared_experts", ["up", "swiglu", "down"]),
        ("moe", [
            "router", "router scores", "top-k", "route weights", "sort by expert", "permute", "expert up", "swiglu",
            "expert down", "unpermute", "up", "swiglu", "down",
        ]),
    ],
)  # fmt: skip
def test_modules_of_a_block_with_experts_and_latent_attention_are_listed(
    small: Make, module: str, operators: list[str]
) -> None:
    block = blocks(small(MIXTURE, *ON))[-1]
    recompute = form(modules=[module])
    assert [one.name for one in again(block, recompute).operators] == operators
    assert dropped_elements(block, recompute) > 0


def test_selective_recomputation_drops_attention_scores(small: Make) -> None:
    """arXiv 2205.05198, section 5: of scores the softmax's output, here without dropout, with flash attention a statistic."""
    flash, scores = (blocks(small(model, *ON))[0] for model in (LLAMA, SCORES))
    selective = form(kind="selective")
    assert dropped_elements(scores, selective) == 8 * TOKENS * TOKENS
    assert dropped_elements(flash, selective) == 4 * 8 * TOKENS
    for block in (flash, scores):
        assert [type(one) for one in again(block, selective).operators] == [Attention]


def test_every_second_product_and_all_but_flash_attention_are_recomputed(small: Make) -> None:
    """torchtitan: of queries, keys, values, projection, gating, up and down the second, fourth and sixth are computed again."""
    block = blocks(small(LLAMA, *ON))[0]
    found = again(block, form(products="every_second"))
    products = [(one.name, one.columns) for one in found.operators if isinstance(one, Matmul)]
    assert products == [("qkv", KEYS), ("projection", HIDDEN), ("up", FEEDFORWARD)]
    assert [one.name for one in found.operators[3:]] == ["rms norm", "rotary", "residual", "rms norm", "swiglu", "residual"]
    # a gating and a down projection, values as wide as two key heads, what attention reads of queries and keeps, the input
    expected_bytes = TOKENS * (HIDDEN + HIDDEN + KEYS + FEEDFORWARD + HIDDEN + HIDDEN) + 4 * 8 * TOKENS
    assert size_bytes(kept_activations(block, form(products="every_second")), 1) == expected_bytes


@pytest.mark.parametrize(
    ("recompute", "concerned"),
    [
        (form(kind="full"), [1, 1, 1, 1, 1]),
        (form(group=2), [1, 1, 1, 1, 1]),
        (form(every=2), [0, 1, 0, 1, 0]),
        (form(layers=2), [1, 1, 0, 0, 0]),
        (form(layers=9), [1, 1, 1, 1, 1]),
        (NO_RECOMPUTE, [0, 0, 0, 0, 0]),
    ],
)
def test_the_given_number_of_blocks_per_stage_is_recomputed(small: Make, recompute: Recompute, concerned: list[int]) -> None:
    layers = job_of(small(LLAMA, *ON)).layers
    assert recompute.concerned(layers[:6]) == [False, *map(bool, concerned)]


@pytest.mark.parametrize(
    ("recompute", "count"),
    [("none", 0), ("full", 8), ("{group: 4}", 8), ("{every: 2}", 4), ("{every: 3}", 0), ("{layers: 1}", 4), ("{layers: 2}", 8)],
)
def test_recomputed_blocks_take_their_forward_time_again(small: Make, recompute: str, count: int) -> None:
    """Eight blocks in four stages of the model, which are two chunks on each of two ranks."""
    strategy = hybrid(stages=2, chunks=2, microbatches=4, schedule="interleaved_1f1b")
    fields = (LLAMA, *ON, strategy, "framework=ideal")
    plain, again_ = (job_of(small(*fields, f"training.recompute={kind}")).costs(4) for kind in ("none", recompute))
    more_s = again_.backward_s - plain.backward_s
    assert more_s.sum() == pytest.approx(count * plain.forward_s[1])
    assert np.count_nonzero(more_s) == count
    assert again_.forward_s == pytest.approx(plain.forward_s)


def test_collectives_of_recomputed_modules_are_repeated(small: Make) -> None:
    """Around an MLP of tensor-parallel ranks a gather and a scatter; attention's core has none."""
    strategy = hybrid(tensor=4, sequence_parallel="true")

    def exchanged_s(recompute: str) -> float:
        scenario = small(LLAMA, *ON, strategy, f"training.recompute={recompute}")
        return float(with_collectives(scenario.strategy.plan, job_of(scenario)).costs().backward_exchange_s[1])

    none_s, full_s = exchanged_s("none"), exchanged_s("full")
    assert exchanged_s("{modules: [mlp]}") - none_s == pytest.approx((full_s - none_s) / 2)
    assert exchanged_s("selective") == none_s
    # torchtitan keeps what reduce-scatters give
    assert none_s < exchanged_s("{products: every_second}") < full_s


@pytest.mark.parametrize("model", [LLAMA, SCORES, MIXTURE])
@pytest.mark.parametrize("strategy", [hybrid(workers=4), hybrid(stages=4, microbatches=8), hybrid(tensor=4)])
def test_more_recomputation_takes_no_less_time_and_no_more_memory(small: Make, model: str, strategy: str) -> None:
    def measured(recompute: str) -> tuple[float, float]:
        scenario = small(model, *ON, strategy, f"training.recompute={recompute}", "framework=megatron-core-0.12")
        return timed(scenario).step_time_s, sum(rank.total_bytes for rank in memory(scenario).ranks)

    ladders = (
        ["none", "selective", "{modules: [core_attn, layernorm]}", "{modules: [core_attn, layernorm, mlp]}"],
        ["none", "{every: 2}", "full"],
        ["none", "{layers: 1}", "{layers: 2}", "full"],
        ["none", "{products: every_second}"],
    )
    for ladder in ladders:
        found = [measured(recompute) for recompute in ladder]
        for (less_s, more_bytes), (more_s, less_bytes) in itertools.pairwise(found):
            assert more_s >= less_s * (1 - 1e-9)
            # what is recomputed is there once while a block is passed backward
            assert less_bytes <= more_bytes * 1.01


def test_recomputed_flops_count_in_hfu_and_not_in_mfu(small: Make) -> None:
    runs = {kind: predict(small(LLAMA, *ON, f"training.recompute={kind}")) for kind in ("none", "full", "{every: 2}")}
    model_flops = {run.model_flops for run in runs.values()}
    assert len(model_flops) == 1
    more = {kind: run.hardware_flops - run.model_flops for kind, run in runs.items()}  # type: ignore[operator]
    assert more["none"] == 0
    assert more["{every: 2}"] == pytest.approx(more["full"] / 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("training.recompute={modules: [mla_up_proj]}",),
            "this llama has no mla_up_proj to recompute; give some of activation, ",
        ),
        (
            ("training.recompute={modules: [moe]}",),
            "has no moe to recompute; give some of activation, core_attn, layernorm, mlp",
        ),
        (("training.recompute={modules: [heads]}",), "'heads' is not known; give 'core_attn'"),
        (("training.recompute={modules: [mlp, mlp]}",), "modules: one is named twice"),
        (("training.recompute={every: 2, layers: 2}",), "layers: every is given as well; leave one of them out"),
        (("training.recompute={kind: selective, every: 2}",), "every: goes with kind full, not selective"),
        (("training.recompute={kind: full, modules: [mlp]}",), "modules: goes with kind selective, not full"),
        (("training.recompute={layers: 0}",), "must be greater than 0"),
        (("model=resnet50", "training.recompute={products: every_second}"), "has no products with weights; give full"),
        (("model=resnet50", "training.recompute=selective"), "has no attention to recompute; give full, or {group: n}"),
    ],
)
def test_invalid_recomputation_is_rejected(small: Make, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(LLAMA, *ON, *overrides)
    assert message in str(caught.value)
