"""Adapters, frozen layers and frozen weights in few bits, against counts by hand and against PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from scaleproof.simulator.analysis.planner.estimate import Space, every
from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.layers import WHOLE, Layer, Shard
from scaleproof.simulator.model.operators import WeightPass
from scaleproof.simulator.predict import predict
from scaleproof.simulator.prediction.accounting import flops_per_sample
from scaleproof.simulator.scenario.load import build
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator import torch_models
from tests.simulator.analysis.planner.estimate.predicted import check_against_predictions
from tests.simulator.programs import FREES_ENDS, compiled, moved_bytes, work_s

LORA = "training.adapters={{kind: lora, rank: {rank}, targets: {targets}}}"
ALL = LORA.format(rank=16, targets="all-linear")
# elements of the products of a Llama 2 7B in its 32 blocks, of its embedding and head, and of its norms
PRODUCTS_7B = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
ENDS_7B, NORMS_7B = 2 * 32000 * 4096, 65 * 4096
# PyTorch's adapters of rank 2 next to both products of the MLP and the attention's, and the tests' small GPT
RANK = 2


def scenario(model: str, *overrides: str) -> Scenario:
    text = f"model: {model}\ncluster: dgx-h100\nstrategy: {{kind: data_parallel, workers: 8}}\nbatch: 8\n"
    text += "training: {precision: bf16, optimizer: adam}\n"
    return build(yaml_file.parse(text, "text.yaml"), Path("text.yaml"), overrides)


def layers(model: str, *overrides: str, shard: Shard = WHOLE) -> list[Layer]:
    return list(scenario(model, *overrides).layers(shard))


def trained(found: list[Layer]) -> int:
    return sum(layer.trained_parameters for layer in found)


@pytest.mark.parametrize(
    ("model", "rank", "targets", "parameters"),
    [
        # as PEFT prints them
        ("llama-3-8b", 16, "all-linear", 41_943_040),
        ("llama-3-8b", 16, "[q_proj, v_proj]", 6_815_744),
        ("llama-2-7b", 8, "[q_proj, v_proj]", 4_194_304),
        ("gpt2-small", 8, "c_attn", 294_912),
        ("bert-base", 8, "[query, value]", 294_912),
        # the names of litgpt, torchtitan and Megatron
        ("llama-3-8b", 16, "[q, v]", 6_815_744),
        ("llama-3-8b", 16, "[self_attn.wq, self_attn.wv]", 6_815_744),
        ("llama-3-8b", 16, "linear_qkv", 32 * 16 * (4096 + 6144)),
        ("llama-3-8b", 16, "lm_head", 16 * (4096 + 128256)),
        ("gpt2-small", 8, "attn.c_proj", 12 * 8 * 2 * 768),
        ("gpt2-small", 8, "c_proj", 12 * 8 * (2 * 768 + 5 * 768)),
        # three matrices in each of eight experts
        ("mixtral-8x7b", 8, "[w1, w2, w3]", 32 * 8 * 3 * 8 * (4096 + 14336)),
        ("deepseek-v3", 8, "q_a_proj", 61 * 8 * (7168 + 1536)),
    ],
)
def test_adapters_have_the_parameters_that_software_counts(model: str, rank: int, targets: str, parameters: int) -> None:
    adapted = layers(model, LORA.format(rank=rank, targets=targets))
    assert trained(adapted) == parameters
    assert sum(layer.frozen_parameters for layer in adapted) == sum(layer.parameters for layer in layers(model))


def test_dora_also_trains_the_norm_of_each_column() -> None:
    dora = layers("llama-3-8b", "training.adapters={kind: dora, rank: 16}")
    assert trained(dora) == 41_943_040 + 32 * (3 * 4096 + 2 * 1024 + 2 * 14336)


def test_ranks_share_adapters_with_the_products_next_to_them() -> None:
    whole, part = (layers("llama-3-8b", ALL, shard=Shard(tensor=tensor)) for tensor in (1, 2))
    # of products that are divided by columns the first half is replicated, of the others the second
    replicated = 32 * 16 * (3 * 4096 + 2 * 4096 + 2 * 4096)
    assert 2 * trained(part) == trained(whole) + replicated


def test_the_backward_pass_of_frozen_products_is_as_long_as_the_forward_pass() -> None:
    whole, adapted = layers("llama-2-7b"), layers("llama-2-7b", LORA.format(rank=8, targets="[q_proj]"))
    (*_, head), (*_, frozen_head), block, frozen = whole, adapted, whole[2], adapted[2]
    assert head.backward_flops == 2 * head.forward_flops
    assert frozen_head.backward_flops == frozen_head.forward_flops == head.forward_flops
    attention = 4 * 4096 * 4096 * 4096
    adapter = 2 * 4096 * 8 * (4096 + 4096)
    assert frozen.forward_flops == block.forward_flops + adapter
    assert frozen.backward_flops == block.forward_flops - attention + 2 * attention + 2 * adapter


def test_nothing_has_a_backward_pass_below_the_first_adapter() -> None:
    embedding, first, second, *_ = layers("llama-2-7b", ALL)
    assert not embedding.has_backward
    (qkv,) = (one for one in first.operators if one.name == "qkv")
    assert not qkv.has_backward
    # gradients of the inputs of the frozen product and of three adapters
    assert second.backward_flops - first.backward_flops == 2 * 4096 * (4096 * 3 * 4096 + 3 * 4096 * 16)


def kept(found: list[Layer]) -> dict[str, int]:
    """Elements of the kept activations of the second block, per token and hidden element."""
    return {one.name: one.elements / (4096 * 4096) for one in found[2].kept if not one.name.startswith("adapter")}


def test_inputs_of_frozen_products_are_kept_for_adapters_alone() -> None:
    whole = kept(layers("llama-2-7b"))
    attention = kept(layers("llama-2-7b", LORA.format(rank=8, targets="[q, v]"), "training.autocast=false"))
    assert whole == attention | {"norms": 2.0, "activation": 2.6875}
    assert attention["norms"] == 1.0
    everywhere = layers("llama-2-7b", ALL, "training.autocast=false")
    assert kept(everywhere) == whole
    # dropout, and casts to 32 bits and back, give each adapter a copy of its own
    for copied in ("training.adapters.dropout=0.1", "training.autocast=true"):
        own = layers("llama-2-7b", ALL, copied)[2]
        assert "norms" not in {one.name for one in own.kept}
        copies = sum(one.elements for one in own.kept if one.name == "adapter input")
        assert copies == 4096 * (6 * 4096 + 11008)


def test_quantised_products_of_bitsandbytes_keep_what_they_read() -> None:
    attention = LORA.format(rank=8, targets="[q, v]")
    for base in ("nf4", "int8"):
        own = layers("llama-2-7b", attention, "training.autocast=false", f"training.base_precision={base}")
        assert kept(own) == kept(layers("llama-2-7b"))


def test_recomputed_modules_contain_their_adapters() -> None:
    block = layers("llama-2-7b", ALL)[2]
    (mlp,) = (module for module in block.modules if module.name == "mlp")
    names = [block.operators[index].name for index in mlp.operators]
    assert names.count("adapter down") == 3
    assert {block.kept[index].name for index in mlp.kept} >= {"up"}


class Adapted(nn.Module):
    """A frozen linear layer with an adapter."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.first = nn.Linear(base.in_features, RANK, bias=False)
        self.second = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.second(self.first(x)) * 2.0  # type: ignore[no-any-return]


def test_a_gpt_has_the_flops_and_parameters_of_torch() -> None:
    with torch.device("meta"):
        module, tokens = torch_models.gpt()
        module.requires_grad_(False)
        for inner in [*module.modules()]:
            for name in ("qkv", "up"):
                if isinstance(getattr(inner, name, None), nn.Linear):
                    setattr(inner, name, Adapted(getattr(inner, name)))
        with FlopCounterMode(display=False) as counter:
            module(tokens).sum().backward()
    fields = ", ".join(f"{name}: {size}" for name, size in torch_models.GPT.items())
    found = layers(f"{{kind: gpt, {fields}}}", LORA.format(rank=RANK, targets="[c_attn, c_fc]"))
    assert trained(found) == sum(one.numel() for one in module.parameters() if one.requires_grad)
    flops = sum(layer.forward_flops + layer.backward_flops for layer in found)
    assert flops * torch_models.BATCH == pytest.approx(counter.get_total_flops())


def test_frozen_layers_are_named_as_the_table_of_layers_names_them() -> None:
    whole = layers("resnet50")
    for freeze, begin, end in (("[stem, group0, group1]", 0, 8), ('"group[01].*"', 1, 8), ("head", 17, 18)):
        found = layers("resnet50", f"training.freeze={freeze}")
        assert [not layer.tensors for layer in found] == [begin <= number < end for number in range(18)]
        assert sum(layer.parameters for layer in found) == sum(layer.parameters for layer in whole)
    below = layers("resnet50", "training.freeze=[stem, group0, group1]")
    assert not any(layer.has_backward or layer.kept for layer in below[:8])
    assert below[9].backward_flops == whole[9].backward_flops


def test_a_frozen_embedding_takes_the_head_that_shares_its_weights_along() -> None:
    tied = layers("gpt2-small", "training.freeze=embedding")
    assert tied[-1].backward_flops == tied[-1].forward_flops


@pytest.mark.parametrize(
    ("precision", "element_bytes"),
    [
        ("bf16", 2.0),
        # arXiv 2305.14314, section 3: 0.5 and 0.127 bits of scales per parameter
        ("nf4", (4 + 0.5) / 8),
        ("nf4, training.double_quantization=true", (4 + 8 / 64 + 32 / (64 * 256)) / 8),
        ("fp8", 1.0),
    ],
)
def test_frozen_products_are_stored_in_the_base_precision(precision: str, element_bytes: float) -> None:
    base = [f"training.base_precision={precision}".replace(", ", "\n")]
    found = scenario("llama-2-7b", ALL, "training.autocast=false", "training.zero=0", *base[0].split("\n"))
    holders = memory(found).worst.holders_bytes
    adapters = trained(list(found.layers(WHOLE)))
    frozen_bytes = element_bytes * PRODUCTS_7B + 2 * (ENDS_7B + NORMS_7B)
    assert holders["parameters"] == pytest.approx(frozen_bytes + 2 * adapters, rel=1e-6)
    assert holders["master_parameters"] == 4 * adapters
    assert holders["optimizer_states"] == 8 * adapters
    largest = 2 * 4096 * 11008 if element_bytes < 2 else 0
    assert holders["working"] - memory(scenario("llama-2-7b", ALL, "training.autocast=false")).worst.holders_bytes[
        "working"
    ] == pytest.approx(largest)


def test_weights_are_dequantised_before_each_product_of_both_passes() -> None:
    _, first, block, *_ = layers("llama-2-7b", ALL, "training.base_precision=nf4")
    passes = [one for one in block.operators if isinstance(one, WeightPass)]
    assert sum(one.weights for one in passes) == PRODUCTS_7B / 32
    assert len(passes) == 7
    # four bits and scales are read, 16 bits written
    assert sum(one.moved for one in passes) == pytest.approx(PRODUCTS_7B / 32 * (1 + 0.5625 / 2))
    assert all(one.in_backward for one in passes)
    # no gradient of the first block's input is needed
    assert sum(one.in_backward for one in first.operators if isinstance(one, WeightPass)) == 4


def test_dequantisation_and_adapters_take_time() -> None:
    plain, adapted, quantised = (
        scenario("llama-2-7b", "training.autocast=false", "training.recompute=none", *changes)
        for changes in ((), (ALL,), (ALL, "training.base_precision=nf4"))
    )
    forward_s, backward_s = (
        [work_s(compiled(one), phase).max() for one in (plain, adapted, quantised)] for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert forward_s[0] < forward_s[1] < forward_s[2]
    assert backward_s[1] < backward_s[2] < backward_s[0]
    # 1.28 elements of two bytes for each weight, at most at the peak bandwidth
    assert forward_s[2] - forward_s[1] > 0.9 * 1.28125 * 2 * PRODUCTS_7B / 3.35e12


def test_replicas_sum_and_gather_what_is_trained_and_stored() -> None:
    sums = scenario("llama-2-7b", ALL, "training.autocast=false")
    adapters = trained(list(sums.layers(WHOLE)))
    ring = 7 / 8
    assert moved_bytes(compiled(sums)) == pytest.approx(2 * ring * 2 * adapters)
    base = (PRODUCTS_7B * 0.5625 + 2 * (ENDS_7B + NORMS_7B)) * ring
    freeing, keeping = (
        moved_bytes(compiled(scenario("llama-2-7b", ALL, "training.base_precision=nf4", "training.zero=3", *more)))
        for more in ((FREES_ENDS,), ())
    )
    # gathered for both passes, the embedding for one; gradients are scattered in 32 bits
    gathered = 2 * base - ENDS_7B * ring + 2 * 2 * adapters * ring
    assert freeing == pytest.approx(gathered + 4 * adapters * ring, rel=1e-6)
    # FSDP also keeps the head, with the last norm, between both passes
    assert freeing - keeping == pytest.approx((ENDS_7B + 2 * 4096) * ring)


def test_a_run_counts_the_flops_that_it_computes_and_says_what_is_trained() -> None:
    found = scenario("llama-3-8b", ALL, "model.sequence=512")
    run = predict(found, interval=False)
    flops, _ = flops_per_sample(found.layers(WHOLE), found.training.recompute)
    assert run.model_flops == pytest.approx(8 * flops)
    assert "41.9 M of 8.07 B parameters are trained" in run.notes
    assert not any("trained" in note for note in predict(scenario("llama-3-8b", "training.zero=3"), interval=False).notes)


PLANNED = "strategy={kind: hybrid, workers: 8}", "model.layers=4", "batch=32", "framework=ideal"


@pytest.mark.parametrize("model", ["llama-2-7b", "mixtral-8x7b"])
def test_plans_of_adapters_agree_with_predictions(model: str) -> None:
    base = scenario(model, ALL, "training.base_precision=nf4", *PLANNED)
    space = Space(base, (8,), tensor=(1, 2), stages=(1, 2), samples=(1, 2), zero=(0, 2, 3))
    found = every(space)
    check_against_predictions(found, np.random.default_rng(0).choice(len(found), 8, replace=False))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([LORA.format(rank=8, targets="[q_proj, foo]")], "adapters.targets: the model has no foo; give some of q_proj, k_proj"),
        ([LORA.format(rank=2048, targets="[k_proj]")], "adapters.rank: 2048 is above the width of k_proj; give at most 1024"),
        (["training.freeze=foo"], "freeze: the model has no layer foo; give some of embedding, block, head"),
        (["training.freeze=[embedding, block, head]"], "freeze: nothing is left to train; freeze fewer"),
        ([ALL, "training.freeze=embedding"], "freeze: with adapters all layers are frozen; leave either out"),
        (["training.base_precision=nf4"], "base_precision: nf4 is of frozen parameters, but all are trained; add"),
        ([ALL, "training.base_precision=fp16"], "base_precision: fp16, but products compute in bf16; give bf16, nf4"),
        ([ALL, "training.base_precision=int8", "training.double_quantization=true"], "goes with base_precision nf4, not int8"),
        ([ALL, "training.base_precision=nf4", "cluster.device=tpu-v5p", "cluster.nodes=2"], "has no nf4 on TPU"),
        ([ALL, "training.adapters.modules_to_save=foo"], "modules_to_save: the model has no layer foo"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_do(overrides: list[str], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario("llama-3-8b", *overrides)


def test_layers_next_to_adapters_are_trained_as_copies() -> None:
    changes: list[Any] = [ALL, "training.adapters.modules_to_save=[embed_tokens, lm_head]"]
    found = layers("llama-2-7b", *changes)
    adapters = trained(layers("llama-2-7b", ALL))
    # the head has the last norm
    assert trained(found) == adapters + ENDS_7B + 4096
    assert sum(layer.frozen_parameters for layer in found) == PRODUCTS_7B + ENDS_7B + NORMS_7B


def test_the_last_stage_has_a_copy_of_the_frozen_weights_that_it_shares_with_the_first() -> None:
    hidden, rows, blocks = 768, 50257, 12 * 768 * 768 * 12
    pipeline = "strategy={kind: hybrid, stages: 2, microbatches: 8}", "training.autocast=false"
    first, last = (rank.holders_bytes for rank in memory(scenario("gpt2-small", ALL, *pipeline)).ranks)
    assert last["parameters"] == pytest.approx(2 * (rows * hidden + blocks / 2), rel=0.02)
    # also positions
    assert first["parameters"] - last["parameters"] == pytest.approx(2 * 1024 * hidden, rel=0.01)
