"""Ranks that recompute activations train like one process that keeps them, and exchange the predicted bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Stream
from scaleproof.simulator.model import Gpt
from scaleproof.simulator.model.operators import Matmul
from scaleproof.simulator.model.recompute import again
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.train.models import models
from scaleproof.validator.train.models.transformer import Block
from scaleproof.validator.train.recompute import prepare
from scaleproof.validator.train.trained_model import TrainedModel
from tests.validator.conftest import MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import at_night, collectives, deviation, deviation_of, in_bulk, paced

MIXED = TINY_GPT | {"experts": {"count": 4, "active": 2, "feedforward": 24, "shared": 1}}
WORKERS = {"kind": "data_parallel", "workers": 2, "microbatches": 2}
PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 4}
HYBRID = {"kind": "hybrid", "tensor": 2}
SEQUENCE = {**HYBRID, "sequence_parallel": True}
CONTEXT = {"kind": "hybrid", "context": 2}
EXPERT = {"kind": "hybrid", "workers": 2, "expert": 2, "tensor": 2}
LLAMA = TINY_GPT | {"kind": "llama", "heads": 4, "key_heads": 2, "feedforward": 24}
T5 = {"kind": "t5", "layers": 2, "hidden": 16, "heads": 2, "head_width": 8, "feedforward": 32, "vocabulary": 32, "sequence": 8}
PRODUCTS = {"products": "every_second"}
MODULES = {"modules": ["core_attn", "layernorm", "mlp", "activation"]}
CASES: list[tuple[dict[str, Any], dict[str, Any], Any, int]] = [
    (WORKERS, TINY_GPT, MODULES, 3),
    ({**SEQUENCE, "stages": 2, "microbatches": 2}, TINY_GPT, {"group": 2}, 0),
    (SEQUENCE, LLAMA, PRODUCTS, 0),
]
MORE_CASES: list[tuple[dict[str, Any], dict[str, Any], Any, int]] = [
    (PIPELINE, TINY_GPT, {"every": 2}, 0),
    (WORKERS, TINY_GPT, "full", 0),
    ({**WORKERS, "overlap": False}, MLP, {"group": 2}, 0),
    ({**PIPELINE, "schedule": "zb_h1", "overlap_sends": True}, TINY_GPT, "full", 0),
    (EXPERT, MIXED, {"modules": ["moe_act", "shared_experts"]}, 0),
    (WORKERS, LLAMA, PRODUCTS, 3),
    (EXPERT, MIXED, PRODUCTS, 0),
    (PIPELINE, {**T5, "target_sequence": 4, "dropout": False}, PRODUCTS, 0),
]


@pytest.mark.parametrize(("strategy", "spec", "recompute", "zero"), [*CASES, *in_bulk(*MORE_CASES)])
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], spec: dict[str, Any], recompute: Any, zero: int, make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, spec, precision="fp64", recompute=recompute, zero=zero)) < 1e-9


@pytest.mark.full
@pytest.mark.parametrize("compute", ["real", *at_night("paced")])
@pytest.mark.parametrize(
    ("strategy", "recompute"),
    [
        (SEQUENCE, {"layers": 1}),
        *in_bulk(
            (HYBRID, {"modules": ["mlp", "layernorm"]}),
            ({**CONTEXT, "context_by": "all_gather"}, "selective"),
        ),
        ({**CONTEXT, "context_by": "ulysses"}, {"modules": ["core_attn", "mlp"]}),
        (SEQUENCE, PRODUCTS),
        *in_bulk((HYBRID, PRODUCTS)),
    ],
)
def test_repeated_exchanges_equal_predicted_ones(
    strategy: dict[str, Any], recompute: Any, compute: str, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario(strategy, precision="fp64", recompute=recompute).model_copy(update={"compute": compute})
    run = measure(scenario, watch=MeasureOptions(verify=True))

    assert deviation_of(run) < 1e-9
    spans = run.spans
    assert spans is not None
    own = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.rank == 0) & (spans.step == 2))
    layers = scenario.model.build_layers(scenario.strategy.plan.shard)
    chosen = scenario.training.recompute
    exchanges = [one for layer in layers for one in layer.exchanges if compute == "paced" or not one.hidden]
    for layer, concerned in zip(layers, chosen.concerned(layers), strict=True):
        whole = [one for one in layer.exchanges if not one.backward]
        exchanges += (whole if chosen.kind == "full" else again(layer, chosen).exchanges) if concerned else []
    predicted = Counter(8.0 * one.elements * scenario.samples_per_worker for one in exchanges)
    measured = Counter(own.size_bytes.tolist())
    assert predicted - measured == Counter()
    # of gradients that each rank makes a part of, or all; paced ranks that share layers make all of them
    assert (measured - predicted).total() == ("context" in strategy or (strategy == SEQUENCE and compute == "real"))


class Counted(nn.Module):
    """Counts how often a module runs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.inner(x)
        return result


@pytest.mark.parametrize(
    ("recompute", "calls"),
    [
        ("none", (1, 1, 1)),
        # once more: norm, first and last product of the MLP
        ("full", (2, 2, 2)),
        ("selective", (1, 1, 1)),
        ({"modules": ["mlp"]}, (1, 2, 2)),
        ({"modules": ["layernorm"]}, (2, 1, 1)),
        # the product behind the activation function runs into its input, and no further
        ({"modules": ["activation"]}, (1, 1, 2)),
        ({"modules": ["mlp", "activation"]}, (1, 2, 2)),
    ],
)
def test_selected_modules_run_once_more(recompute: Any, calls: tuple[int, int, int], make_scenario: MakeScenario) -> None:
    scenario = make_scenario({"kind": "data_parallel"}, recompute=recompute)
    spec = scenario.model
    assert isinstance(spec, Gpt)
    (block,) = models.build(spec, [1], seed=0)
    assert isinstance(block, Block)
    counted = [Counted(getattr(block, name)) for name in ("mlp_norm", "expand", "contract")]
    for name, one in zip(("mlp_norm", "expand", "contract"), counted, strict=True):
        setattr(block, name, one)
    TrainedModel(scenario).graph({1: block})(torch.randn(2, 8, 16, requires_grad=True)).sum().backward()

    assert tuple(one.calls for one in counted) == calls


def kept_bytes(scenario: Any) -> int:
    """Bytes that the blocks of a model keep for the backward pass, parameters left out."""
    modules = models.build(scenario.model, range(1, 5), seed=0)
    chain = TrainedModel(scenario).graph(dict(zip(range(1, 5), modules, strict=True)))
    known = {one.data_ptr() for one in chain.parameters()}
    sizes: dict[int, int] = {}

    def note(kept: Tensor) -> Tensor:
        if kept.untyped_storage().data_ptr() not in known:
            sizes[kept.untyped_storage().data_ptr()] = kept.untyped_storage().nbytes()
        return kept

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        result = chain(torch.randn(2, 8, 16, requires_grad=True))
    assert result.requires_grad
    return sum(sizes.values())


def test_more_recomputation_keeps_fewer_activations(make_scenario: MakeScenario) -> None:
    chosen = [{"group": 4}, "full", {"modules": ["mlp"]}, {"every": 2}, {"modules": ["activation"]}, "none"]
    sizes = [kept_bytes(make_scenario({"kind": "data_parallel"}, recompute=one)) for one in chosen]

    assert sizes == sorted(set(sizes))
    # the input of each block alone
    assert sizes[1] == 4 * (2 * 8 * 16 * 4) == 4 * sizes[0]


def test_segments_start_again_in_each_stage(make_scenario: MakeScenario) -> None:
    scenario = make_scenario({"kind": "pipeline", "stages": 2, "microbatches": 2}, recompute={"every": 2})

    def recomputed(numbers: range) -> list[bool]:
        modules = models.build(scenario.model, numbers, seed=0)
        whole = {number for part in prepare(scenario, dict(zip(numbers, modules, strict=True))) for number in part}
        return [number in whole for number in numbers]

    # the embedding and two blocks, two blocks and the head
    assert recomputed(range(3)) == [False, False, True]
    assert recomputed(range(3, 6)) == [False, True, False]


def test_emulated_layers_wait_for_the_recomputation_time(make_scenario: MakeScenario) -> None:
    scenario = paced(make_scenario(WORKERS, precision="fp64", recompute={"products": "every_second"}))

    assert deviation(scenario) < 1e-9


@pytest.mark.full
def test_emulated_ranks_repeat_exchanges(make_scenario: MakeScenario) -> None:
    plain, full = (collectives(measure(paced(make_scenario(HYBRID, recompute=one)))) for one in ("none", "full"))

    # both branches of four blocks are summed once more
    assert full.total() - plain.total() == 8


class Computed(TorchDispatchMode):
    """Counts products with weights, and notes the storages of what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0
        self.bytes_of: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        self.products += operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.bytes_of[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        return result


@pytest.mark.parametrize("spec", [TINY_GPT, LLAMA], ids=["gpt", "llama"])
def test_every_second_product_is_kept_and_the_others_run_once_more(spec: dict[str, Any], make_scenario: MakeScenario) -> None:
    scenario = make_scenario({"kind": "data_parallel"}, spec, recompute=PRODUCTS)
    (block,) = models.build(scenario.model, [1], seed=0)
    graph, entering = TrainedModel(scenario).graph({1: block}), torch.randn(2, 8, 16, requires_grad=True)

    with Computed() as forward:
        leaving = graph(entering)
    constant = {StorageWeakRef(one.untyped_storage()) for one in (*block.parameters(), *block.buffers(), leaving)}
    live_bytes = sum(size for one, size in forward.bytes_of.items() if not one.expired() and one not in constant)
    with Computed() as backward:
        leaving.sum().backward()

    predicted = again(scenario.model.build_layers()[1], scenario.training.recompute)
    repeated = sum(isinstance(operator, Matmul) for operator in predicted.operators)
    # gradients of the input and of the weights are a product each
    assert backward.products - 2 * forward.products == repeated == 3
    assert live_bytes + entering.nbytes == len(entering) * sum(one.elements * 4 for one in predicted.kept)


def test_products_of_all_experts_are_kept_or_run_once_more_together(make_scenario: MakeScenario) -> None:
    scenario = make_scenario({"kind": "data_parallel"}, MIXED, recompute=PRODUCTS)
    (block,) = models.build(scenario.model, [1], seed=0)

    with Computed() as forward:
        leaving = TrainedModel(scenario).graph({1: block})(torch.randn(2, 8, 16, requires_grad=True))
    with Computed() as backward:
        leaving.sum().backward()

    repeated = again(scenario.model.build_layers()[1], scenario.training.recompute).operators
    counts = [operator.count for operator in repeated if isinstance(operator, Matmul)]
    # those of keys, of attention's output, of the four experts' inputs, and of the shared expert's input
    assert backward.products - 2 * forward.products == sum(counts) == 1 + 1 + 4 + 1


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({**CONTEXT, "context_by": "ring"}, "products with strategy.context are predicted but not measured"),
        ({**SEQUENCE, "overlap_tensor": True}, "products with strategy.overlap_tensor are"),
        (
            {**PIPELINE, "schedule": "zb_h1", "overlap_sends": True},
            "products with strategy.schedule are .*; give modules or full",
        ),
    ],
)
def test_products_that_torch_cannot_keep_are_rejected(
    strategy: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=f"training.recompute: {message}"):
        check_trainable(make_scenario(strategy, recompute=PRODUCTS))
