"""Every kind of model has torch modules with the simulator's tensors and activations, and trains like one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import AnyModel, ModelSpec
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.train.layer_graph import LayerGraph
from scaleproof.validator.train.models import models
from scaleproof.validator.train.models.attention import Attend, rotary_table, rotated
from scaleproof.validator.train.samples import arrays
from scaleproof.validator.verify.verify import check_verifiable
from tests.validator.conftest import MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import at_night, deviation, in_bulk, paced

LLAMA = {
    "kind": "llama", "layers": 4, "hidden": 16, "heads": 4, "key_heads": 2, "vocabulary": 32, "sequence": 8, "feedforward": 24,
}  # fmt: skip
GEMMA = LLAMA | {"norms": "around", "window": 3, "global_every": 2, "softcap": True, "tied": True, "activation": "geglu"}
OLMO = LLAMA | {"norms": "after", "head_norms": "whole"}
TIED = LLAMA | {"tied": True, "head_norms": True, "biases": "qkv"}
MIXED = LLAMA | {"experts": {"count": 4, "active": 2, "feedforward": 8, "shared": 1, "capacity": 1.0, "dense_layers": 1}}
LATENT = {"query_rank": 6, "key_rank": 5, "width": 4, "rotary_width": 2, "value_width": 3}
COMPRESSED = LLAMA | {"key_heads": 4, "latent": LATENT}
NEOX = TINY_GPT | {"positions": "rotary", "parallel": True, "tied": True, "flash": False}
PHI = TINY_GPT | {"positions": "rotary", "parallel": "one norm", "head_bias": True}
WINDOW = TINY_GPT | {"window": 3, "position_rows": 12, "activation": "geglu", "head_width": 4}
BERT = {"kind": "bert", "layers": 4, "hidden": 16, "heads": 2, "vocabulary": 32, "sequence": 8, "dropout": False}
T5 = {
    "kind": "t5", "layers": 2, "hidden": 16, "heads": 2, "head_width": 8, "feedforward": 32, "vocabulary": 32, "sequence": 8,
    "target_sequence": 6, "dropout": False,
}  # fmt: skip
SIAMESE = {"kind": "siamese", "tower": MLP}
SMALL = [
    LLAMA,
    GEMMA,
    OLMO,
    PHI,
    TIED,
    MIXED,
    COMPRESSED,
    NEOX,
    WINDOW,
    BERT,
    BERT | {"pretraining": True},
    T5,
    T5 | {"layers": 1},
    SIAMESE,
]
LARGE = [
    {"kind": "vgg", "image": 32, "classes": 10},
    {"kind": "alexnet", "image": 67, "classes": 10, "grouped": True},
    {"kind": "inception_v3", "image": 299, "classes": 10},
    {"kind": "siamese", "tower": {"kind": "resnet", "image": 32, "classes": 10}},
]
PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 2}
CHUNKS = {**PIPELINE, "chunks": 2, "microbatches": 4, "schedule": "interleaved_1f1b", "overlap_sends": True}
SERVERS = {"kind": "parameter_server", "workers": 2, "servers": 2, "overlap": True, "bucket": "1 KiB"}
HYBRID = {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}
TENSOR = {"kind": "hybrid", "tensor": 2}


def spec_of(fields: dict[str, Any]) -> ModelSpec:
    return TypeAdapter(AnyModel).validate_python(fields)  # type: ignore[no-any-return]


def name_of(fields: dict[str, Any]) -> str:
    return str(fields["kind"])


@pytest.mark.parametrize("fields", [*SMALL, *in_bulk(*LARGE)], ids=name_of)
def test_layers_have_the_simulators_tensors(fields: dict[str, Any]) -> None:
    spec = spec_of(fields)
    layers, ties = spec.build_layers(), {(tie.layer, tie.name) for tie in models.family_of(spec).ties(spec)}
    with torch.device("meta"):
        modules = models.build(spec, range(len(layers)), seed=0)

    for number, (layer, module) in enumerate(zip(layers, modules, strict=True)):
        own = [parameter for name, parameter in module.named_parameters() if (number, name) not in ties]
        assert tuple(parameter.numel() for parameter in own) == layer.tensors, layer.name


@pytest.mark.parametrize("fields", [*SMALL, *in_bulk(*LARGE[:2]), *at_night(*LARGE[2:])], ids=name_of)
def test_all_parameters_get_gradients_of_the_loss(fields: dict[str, Any]) -> None:
    spec = spec_of(fields)
    family, numbers = models.family_of(spec), range(len(spec.build_layers()))
    graph = LayerGraph(dict(zip(numbers, models.build(spec, numbers, seed=0), strict=True)), family.wiring(spec))
    inputs, targets = arrays(spec, 3, np.random.default_rng(0))
    first, *others = (torch.from_numpy(array) for array in inputs)
    first, *others = (tensor.float() if tensor.is_floating_point() else tensor for tensor in (first, *others))

    outputs = graph(first, **{f"data{number}": tensor for number, tensor in enumerate(others, start=1)})
    family.loss(outputs, torch.from_numpy(targets)).backward()

    assert all(parameter.grad is not None for parameter in graph.parameters())


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        (PIPELINE, T5),
        (TENSOR, TIED),
        *in_bulk(
            (SERVERS, BERT | {"pretraining": True}),
            (CHUNKS, SIAMESE),
            (SERVERS, TIED),
            (HYBRID, T5),
            (TENSOR, NEOX),
            ({**TENSOR, "stages": 2, "sequence_parallel": True, "microbatches": 2}, TIED),
            ({"kind": "hybrid", "context": 2}, TIED),
            ({"kind": "hybrid", "context": 2, "context_by": "all_gather"}, TIED),
            ({"kind": "hybrid", "context": 2, "context_by": "ulysses"}, WINDOW),
            ({"kind": "parameter_server", "workers": 2, "servers": 1, "mode": "asynchronous"}, SIAMESE),
            ({"kind": "local_sgd", "workers": 2, "period": 2}, TIED),
        ),
        *at_night(*(({"kind": "data_parallel", "workers": 2}, model) for model in SMALL)),
    ],
)
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, model, precision="fp64", batch=8, steps=3)) < 1e-9


@pytest.mark.parametrize(("strategy", "model"), [(PIPELINE, T5), *in_bulk((HYBRID, T5), (SERVERS, SIAMESE))])
def test_emulated_graphs_train_like_one_process(
    strategy: dict[str, Any], model: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(paced(make_scenario(strategy, model, precision="fp64", batch=8, steps=3))) < 1e-9


def test_rotary_scores_depend_on_the_distance_of_tokens_alone() -> None:
    table = rotary_table(16, 8).double()
    query, key = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def score(first: int, second: int) -> Tensor:
        return rotated(query, table[:, first]) @ rotated(key, table[:, second])

    # the table has the precision of fp32
    assert torch.allclose(score(3, 1), score(9, 7), atol=1e-5)
    assert not torch.allclose(score(3, 1), score(3, 2), atol=1e-3)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_fused_attention_equals_attention_that_keeps_scores(causal: bool, window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 8, 6, dtype=torch.float64, generator=generator)
    key, value = torch.randn(2, 2, 2, 8, 6, dtype=torch.float64, generator=generator)

    fused, kept = (Attend(causal, flash, window)(query, key, value) for flash in (True, False))

    assert torch.allclose(fused, kept, rtol=1e-9)


@pytest.mark.parametrize(
    ("strategy", "model", "training", "message"),
    [
        ({"kind": "data_parallel", "workers": 2}, TIED, {"zero": 3}, "training.zero: torch's fully_shard cannot shard weights"),
        (TENSOR, COMPRESSED, {}, "strategy.tensor: real ranks do not divide the latents"),
        (TENSOR, BERT, {}, "strategy.tensor: real layers of a bert cannot be divided; leave it out, or set compute=paced"),
        (
            {"kind": "hybrid", "tensor": 4},
            LLAMA,
            {},
            "strategy.tensor: real ranks have whole heads of keys",
        ),
        ({"kind": "hybrid", "context": 2}, WINDOW, {}, "strategy.context: real rings"),
    ],
)
def test_what_ranks_cannot_divide_is_refused(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=message):
        check_trainable(make_scenario(strategy, model, **training))


def test_emulated_towers_that_share_weights_cannot_be_sharded(make_scenario: MakeScenario) -> None:
    towers = {"kind": "siamese", "tower": {"kind": "mlp", "inputs": 8, "hidden": 8, "layers": 2, "outputs": 8}}
    scenario = make_scenario({"kind": "data_parallel", "workers": 2}, towers, zero=3)

    with pytest.raises(InputError, match=r"training\.zero: torch's fully_shard cannot shard weights"):
        check_trainable(scenario.model_copy(update={"compute": "paced"}))


def test_random_masks_are_refused_for_verification(make_scenario: MakeScenario) -> None:
    scenario = make_scenario({"kind": "data_parallel", "workers": 2}, BERT | {"dropout": True})

    check_trainable(scenario)
    with pytest.raises(InputError, match="masks of dropout differ between ranks; leave dropout out of the model"):
        check_verifiable(scenario)
