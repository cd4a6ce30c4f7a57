"""Transformers: published sizes, published activation memory, and shares of ranks that divide a layer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model import T5, Bert, Gpt, Llama, ModelSpec
from scaleproof.simulator.model.layers import WHOLE, Layer, Shard
from scaleproof.simulator.model.operators import Attention, Matmul
from scaleproof.simulator.scenario.read import load_model


def kept_bytes(layer: Layer, recompute: str = "none", element_bytes: int = 2) -> float:
    """Bytes of one sample's activations in a layer."""
    left = {"none": ("input", "attention", "layer"), "selective": ("input", "layer"), "full": ("input",)}[recompute]
    return sum(kept.elements * (kept.element_bytes or element_bytes) for kept in layer.kept if kept.group in left)


def flops(layers: list[Layer]) -> float:
    return sum(layer.forward_flops for layer in layers)


# ---- sizes, as counted in the published weights (model cards and the counts that libraries print) or in the papers named

SIZES = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt-neox-20b": 20_554_567_680,  # model card of EleutherAI/gpt-neox-20b
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "bert-base": 109_482_240,  # with the pooler, as transformers' BertModel
    "bert-large": 335_141_888,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
}
# arXiv 2005.14165, table 2.1; 1910.10683, section 3.7; 2205.05198, table 3; 2412.19437, abstract
ROUNDED = {
    "gpt3-125m": (125e6, 5e-3),
    "gpt3-350m": (356e6, 1e-3),
    "gpt3-760m": (760e6, 1e-3),
    "gpt3-1.3b": (1.3e9, 2e-2),
    "gpt3-2.7b": (2.65e9, 1e-3),
    "gpt3-6.7b": (6.7e9, 1e-2),
    "gpt3-13b": (12.85e9, 1e-2),
    "t5-11b": (11.3e9, 1e-3),
    "megatron-22b": (22e9, 5e-3),
    "megatron-175b": (175e9, 5e-3),
    "megatron-530b": (530e9, 2e-3),
    "megatron-1t": (1.008e12, 1e-3),
    "deepseek-v3": (671.03e9, 1e-4),
}


@pytest.mark.parametrize("name", SIZES)
def test_shipped_models_have_the_published_parameters_exactly(name: str) -> None:
    assert load_model(name).parameters() == SIZES[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_shipped_models_have_the_published_parameters(name: str) -> None:
    parameters, relative = ROUNDED[name]
    assert load_model(name).parameters() == pytest.approx(parameters, rel=relative)


def test_tied_head_weights_are_counted_once() -> None:
    # GPT-2 XL as released; GPT-3's 174,600 M (arXiv 2005.14165, table D.1)
    assert Gpt(layers=48, hidden=1600, heads=25, vocabulary=50257, sequence=1024, tied=True).parameters() == 1_557_611_200
    gpt3 = Gpt(layers=96, hidden=12288, heads=96, vocabulary=50257, sequence=2048, tied=True)
    assert gpt3.parameters() == pytest.approx(174.6e9, rel=1e-3)


# arXiv 2401.04088, section 1; DeepSeek-V3's README_WEIGHTS: 36.6 B without the embedding
@pytest.mark.parametrize(("name", "active"), [("mixtral-8x7b", 12.88e9), ("deepseek-v3", 36.6e9 + 129280 * 7168)])
def test_active_parameters_count_only_selected_experts(name: str, active: float) -> None:
    model = load_model(name)
    assert isinstance(model, Llama)
    assert model.active_parameters() == pytest.approx(active, rel=1.5e-3)


# ---- activation memory: arXiv 2205.05198, equations 1 to 6 and table 2


@st.composite
def gpts(draw: st.DrawFn) -> dict[str, int]:
    """GPT sizes that are divisible by eight ranks."""
    heads, width = 8 * draw(st.integers(1, 16)), draw(st.integers(1, 64))
    tokens, words = 8 * draw(st.integers(1, 128)), 8 * draw(st.integers(1, 4000))
    return {"hidden": heads * width, "heads": heads, "sequence": tokens, "vocabulary": words}


GPTS = gpts()
RANKS = st.sampled_from([1, 2, 4, 8])


def published(fields: dict[str, Any], shard: Shard = WHOLE) -> tuple[list[Layer], int, float]:
    """Layers of the paper's model, its sbh for one sample, and its 5as/h."""
    gpt = Gpt(layers=2, dropout=True, flash=False, **fields)
    return gpt.build_layers(shard), gpt.sequence * gpt.hidden, 5 * gpt.heads * gpt.sequence / gpt.hidden


@given(GPTS)
def test_activations_of_a_layer_equal_the_papers_formula(fields: dict[str, Any]) -> None:
    layers, sbh, scores = published(fields)
    assert kept_bytes(layers[1]) == pytest.approx(sbh * (34 + scores))


@given(GPTS, RANKS)
def test_tensor_parallel_activations_equal_the_papers_formula(fields: dict[str, Any], ranks: int) -> None:
    layers, sbh, scores = published(fields, Shard(tensor=ranks))
    assert kept_bytes(layers[1]) == pytest.approx(sbh * (10 + 24 / ranks + scores / ranks))


@given(GPTS, RANKS)
def test_sequence_parallelism_divides_all_activations(fields: dict[str, Any], ranks: int) -> None:
    layers, sbh, scores = published(fields, Shard(tensor=ranks, sequence=True))
    assert kept_bytes(layers[1]) == pytest.approx(sbh / ranks * (34 + scores))


@given(GPTS, RANKS, st.booleans())
def test_selective_recomputation_does_not_keep_scores(fields: dict[str, Any], ranks: int, sequence: bool) -> None:
    layers, sbh, _ = published(fields, Shard(tensor=ranks, sequence=sequence))
    left = 34 / ranks if sequence else 10 + 24 / ranks
    assert kept_bytes(layers[1], "selective") == pytest.approx(sbh * left)


@given(GPTS, RANKS)
def test_activations_of_embedding_and_head_equal_the_papers_formula(fields: dict[str, Any], ranks: int) -> None:
    layers, sbh, _ = published(fields, Shard(tensor=ranks, sequence=True))
    assert kept_bytes(layers[0]) == sbh / ranks
    assert kept_bytes(layers[-1]) == pytest.approx(4 * sbh / ranks * (1 + fields["vocabulary"] / fields["hidden"]))


def test_flash_attention_keeps_one_number_per_row_instead_of_scores() -> None:
    fields = {"layers": 1, "hidden": 64, "heads": 4, "vocabulary": 8, "sequence": 32}
    plain, flash = (Gpt(flash=on, **fields).build_layers()[1] for on in (False, True))
    assert kept_bytes(plain) - kept_bytes(flash) == 4 * 32 * 32 * 2 - 4 * 32 * 4
    assert kept_bytes(flash, "selective") == kept_bytes(flash)


# ---- FLOPs


def test_a_llama_has_the_flops_of_its_matrices_and_scores() -> None:
    llama = load_model("llama-2-70b")
    assert isinstance(llama, Llama)
    matrices = llama.parameters() - (2 * llama.layers + 1) * llama.hidden - llama.vocabulary * llama.hidden
    scores = 4 * llama.layers * llama.sequence**2 * llama.hidden
    assert flops(llama.build_layers()) == pytest.approx(2 * matrices * llama.sequence + scores)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2))
def test_flops_of_a_token_are_those_of_its_selected_experts(count: int, active: int, shared: int) -> None:
    experts = {"count": 4 * count, "active": active, "feedforward": 16, "shared": shared}
    fields = {"layers": 3, "hidden": 32, "heads": 4, "vocabulary": 8, "sequence": 64 * count}
    mixture = Llama.model_validate({"experts": experts, **fields})
    dense = Llama.model_validate({"feedforward": 16 * (active + shared), **fields})
    router = 2 * 3 * mixture.sequence * 32 * 4 * count
    assert flops(mixture.build_layers()) == pytest.approx(flops(dense.build_layers()) + router)
    assert mixture.active_parameters() == dense.parameters() + 3 * 32 * 4 * count


def test_a_sliding_window_limits_attention_flops() -> None:
    model = load_model("mistral-7b")
    attention = next(operator for operator in model.build_layers()[1].operators if isinstance(operator, Attention))
    assert (attention.queries, attention.keys) == (8192, 4096)


@pytest.mark.parametrize("name", ["gpt3-13b", "llama-3-8b", "bert-base", "t5-base", "mixtral-8x7b", "deepseek-v3"])
def test_backward_flops_are_twice_forward_flops(name: str) -> None:
    layers = load_model(name).build_layers()
    assert sum(layer.backward_flops for layer in layers) == pytest.approx(2 * flops(layers))


# ---- ranks that share layers

SHARED = [
    Gpt(layers=2, hidden=64, heads=8, vocabulary=80, sequence=32, dropout=True, flash=False),
    Gpt(layers=2, hidden=64, heads=8, vocabulary=80, sequence=32, positions="rotary", parallel=True),
    Llama(layers=2, hidden=64, heads=8, key_heads=8, feedforward=96, vocabulary=80, sequence=32),
    Llama.model_validate(
        {
            **{"layers": 2, "hidden": 64, "heads": 8, "vocabulary": 80, "sequence": 32, "feedforward": 96},
            "experts": {"count": 8, "active": 2, "feedforward": 32, "shared": 1, "dense_layers": 1},
        }
    ),
    Bert(layers=2, hidden=64, heads=8, vocabulary=80, sequence=32, pretraining=True),
    T5(layers=2, hidden=64, heads=8, feedforward=96, vocabulary=80, sequence=32, target_sequence=16),
]


@pytest.mark.parametrize("model", SHARED, ids=lambda model: model.kind)
@pytest.mark.parametrize("sequence", [False, True])
def test_work_of_all_ranks_adds_up_to_that_of_one(model: ModelSpec, sequence: bool) -> None:
    """Matrices are divided, but for a router and a pooler, and so are what is written between them with `sequence`."""
    whole, share = model.build_layers(), model.build_layers(Shard(tensor=4, sequence=sequence))
    for one, part in zip(whole, share, strict=True):
        undivided = sum(o.forward_flops for o in part.operators if o.name in ("router", "pooler", "transform", "next sentence"))
        assert 4 * (part.forward_flops - undivided) == pytest.approx(one.forward_flops - undivided)
        assert one.parameters / 4 <= part.parameters <= one.parameters
        assert part.name == one.name
        assert part.signature != one.signature


def test_key_heads_fewer_than_ranks_are_replicated() -> None:
    llama = Llama(layers=1, hidden=64, heads=8, key_heads=2, feedforward=96, vocabulary=80, sequence=32)
    for ranks, columns in ((2, (4 + 2) * 8), (4, (2 + 2) * 8), (8, (1 + 2) * 8)):
        qkv = llama.build_layers(Shard(tensor=ranks))[1].operators[1]
        assert isinstance(qkv, Matmul)
        assert qkv.columns == columns


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("sequence", [False, True])
def test_context_parallel_ranks_send_their_own_tokens(tensor: int, sequence: bool) -> None:
    """With sequence parallelism each has a part of the tokens, else all of them: arXiv 2205.05198, section 4.2.2."""
    part = SHARED[3].build_layers(Shard(tensor=tensor, sequence=sequence and tensor > 1, expert=4))[2]
    sent = [e.elements for e in part.exchanges if e.op == "alltoall"]
    assert sent == [32 * 2 * 64 // (tensor if sequence else 1)] * 4
    gathered = {e.elements for e in part.exchanges if e.axis == "tensor"}
    assert gathered == ({32 * 64} if tensor > 1 else set())


@pytest.mark.parametrize(
    ("model", "shard", "message"),
    [
        (SHARED[0], Shard(tensor=16), "strategy.tensor: 16 ranks do not divide heads 8; give a divisor of it, such as 8"),
        (SHARED[0], Shard(tensor=5), "5 ranks do not divide heads 8; give a divisor of it, such as 4"),
        (SHARED[4], Shard(tensor=16), "16 ranks do not divide heads 8"),
        (SHARED[5], Shard(tensor=16), "16 ranks do not divide heads 8"),
        (SHARED[0], Shard(expert=2), "strategy.expert: there are no experts to divide"),
        (SHARED[3], Shard(expert=3), "strategy.expert: 3 ranks do not divide experts.count 8"),
        (
            Llama(layers=1, hidden=64, heads=8, feedforward=90, vocabulary=8, sequence=8),
            Shard(tensor=4),
            "4 ranks do not divide feedforward 90; give a divisor of it, such as 3",
        ),
        (
            Llama(layers=1, hidden=64, heads=8, feedforward=96, vocabulary=8, sequence=6),
            Shard(tensor=4, sequence=True),
            "4 ranks do not divide sequence 6",
        ),
        (
            Llama(layers=1, hidden=96, heads=12, key_heads=6, feedforward=96, vocabulary=8, sequence=8),
            Shard(tensor=4),
            "4 ranks do not divide key_heads 6; give a divisor of it, such as 3",
        ),
    ],
)
def test_divisions_with_a_remainder_are_rejected(model: ModelSpec, shard: Shard, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        model.build_layers(shard)
    assert message in str(caught.value)


# ---- what models are made of


@pytest.mark.parametrize("model", SHARED, ids=lambda model: model.kind)
def test_layers_of_equal_signature_cost_the_same(model: ModelSpec) -> None:
    shards = (WHOLE, Shard(2), Shard(2, sequence=True))
    for layers in [other.build_layers(shard) for other in SHARED for shard in shards]:
        for mine in model.build_layers():
            for layer in layers:
                if layer.signature == mine.signature:
                    assert (layer.operators, layer.kept, layer.exchanges) == (mine.operators, mine.kept, mine.exchanges)


def test_names_and_signatures_match_calibrated_clusters() -> None:
    layers = Gpt(layers=2, hidden=256, heads=4, vocabulary=100, sequence=64).build_layers()
    assert [(layer.name, layer.signature) for layer in layers] == [
        ("embedding", "gpt.embedding(h=256,v=100,s=64)"),
        ("block0", "gpt.block(h=256,heads=4,s=64)"),
        ("block1", "gpt.block(h=256,heads=4,s=64)"),
        ("head", "gpt.head(h=256,v=100,s=64)"),
    ]


def test_pretraining_adds_its_heads_to_bert() -> None:
    # transformers' BertForPreTraining of bert-base-uncased, whose decoder shares the embedding's weights
    bert = Bert(layers=12, hidden=768, heads=12, pretraining=True)
    assert bert.parameters() == 110_106_428


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key_heads": 3}, "key_heads: 3 does not divide heads 4; give a divisor of it"),
        ({"heads": 5}, "heads: 5 does not divide hidden 64; give a divisor of it"),
        ({"positions": "learned", "position_rows": 16}, "sequence: 32 is more than position_rows 16; give at most that many"),
        ({"experts": {"count": 2, "active": 3, "feedforward": 8}}, "active: 3 is more than count 2"),
        ({"experts": {"count": 4, "active": 3, "feedforward": 8, "dense_layers": 9}}, "dense_layers: 9 is more than layers 2"),
        ({"experts": {"count": 130_000, "active": 3, "feedforward": 8}}, "count: 130000 in each of 2 blocks; give at most 2"),
        ({"latent": {"key_rank": 8, "width": 8, "rotary_width": 4, "value_width": 8}, "key_heads": 2}, "key_heads: 2 differs"),
        ({"latent": {"key_rank": 8, "width": 8, "rotary_width": 4, "value_width": 8}, "head_width": 2}, "leave it out"),
    ],
)
def test_contradictory_fields_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Llama.model_validate({"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 8, "sequence": 32, **fields})


def test_a_window_as_wide_as_the_sequence_equals_the_causal_mask() -> None:
    def seen(window: int) -> float:
        model = Llama.model_validate(
            {"layers": 1, "hidden": 64, "heads": 4, "feedforward": 128, "vocabulary": 64, "sequence": 128, "window": window}
        )
        attention = next(one for one in model.build_layers()[1].operators if isinstance(one, Attention))
        return attention.scores * attention.seen

    assert seen(128) == pytest.approx(seen(127), rel=0.01)
    # of a window of w on s keys a query sees w, but for the first w queries: w · s − w² / 2
    assert seen(32) == pytest.approx(4 * (32 * 128 - 32**2 / 2))
