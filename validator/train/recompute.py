"""Recomputation in real training: torch.utils.checkpoint drops activations and computes them again in the backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from scaleproof.simulator.memory.activations import segments
from scaleproof.simulator.model.layers import WHOLE, Layer
from scaleproof.simulator.model.operators import Exchange
from scaleproof.simulator.model.recompute import Recompute, again
from scaleproof.simulator.scenario.schema import Scenario

# Runs a part of a model and keeps what its backward pass needs, or the means to compute it again.
Checkpoint = Callable[..., Any]
# Recomputation of these modules stops at the next product, whose input is their output.
_WITH_NEXT_PRODUCT: Final = ("activation", "moe_act")
# Operators of torch that compute a product with weights, and those that compute attention by one kernel.
_PRODUCTS: Final = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
_ATTENTION: Final = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
)


class Sections:
    """Runs the named sections of a block; those in `names` keep only their inputs and are recomputed in the backward pass.

    A section inside another recomputed section is recomputed as a part of it. separates_products: whether products of the same
    input, such as those of queries, keys and values, are computed one by one.
    """

    separates_products = False

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        # the activation functions of all MLPs include those of experts
        self._names = names | {"moe_act"} if "activation" in names else names
        self._is_inside = False

    def __call__(self, name: str, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Runs `function` as the section `name`, a `scaleproof.simulator.model.recompute.ModuleName`."""
        if self._is_inside or name not in self._names:
            return function(*inputs)
        return cast(Tensor, checkpointed(partial(self._inside, function), *inputs, early_stop=name in _WITH_NEXT_PRODUCT))

    def joined(self, name: str, product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Computes a product that counts as one with the others of that name in the block, such as those of all experts."""
        return product(x)

    def _inside(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        self._is_inside = True
        try:
            return function(*inputs)
        finally:
            self._is_inside = False


class EverySecondProduct(Sections):
    """Runs a layer and keeps its inputs and the outputs of every second product with weights, from the first on, of attention
    kernels and of reduce-scatters; the backward pass computes everything else again. torchtitan calls it selection by operator.
    """

    separates_products = True

    def __init__(self) -> None:
        super().__init__()
        self._joined: str | None = None

    def joined(self, name: str, product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Computes a product that counts as one with the others of that name in the block, such as those of all experts."""
        self._joined = name
        try:
            return product(x)
        finally:
            self._joined = None

    def checkpointed(self, layer: Callable[..., Any], *inputs: Tensor) -> Any:
        """The layer's outputs."""
        return checkpoint(
            layer, *inputs, use_reentrant=False, preserve_rng_state=True, early_stop=False, context_fn=self._contexts
        )

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The contexts of a forward pass and of its recomputation."""
        # torch before 2.13 calls the policy in the recomputation too
        counts = {False: _ProductCount(), True: _ProductCount()}

        def policy(context: SelectiveCheckpointContext, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
            is_kept = operator in _ATTENTION
            if operator in _PRODUCTS:
                is_kept = counts[context.is_recompute].add(self._joined)
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        forward, again = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
        results = list[Tensor]()
        return _Pass(forward, results, is_again=False), _Pass(again, results, is_again=True)


class _ProductCount:
    """Number of the products of a block in one pass. Those with a name in common count once."""

    def __init__(self) -> None:
        self._count = 0
        self._numbers: dict[str, int] = {}

    def add(self, name: str | None) -> bool:
        """Counts a product; returns whether its output is kept."""
        number = self._count if name is None else self._numbers.setdefault(name, self._count)
        self._count += number == self._count
        return number % 2 == 0


class _Pass:
    """The context of a layer's forward pass, or of its recomputation, with the results of collectives in their order.

    mode: of torch's selective checkpoint. is_again: whether the layer runs again, and takes these results from before.
    """

    def __init__(self, mode: AbstractContextManager[Any], results: list[Tensor], is_again: bool) -> None:
        self._mode, self._results, self._is_again = mode, results, is_again
        self._read = 0

    def __enter__(self) -> None:
        self._read = 0
        self._mode.__enter__()
        self._token = _PASS.set(self)

    def __exit__(self, *error: Any) -> None:
        _PASS.reset(self._token)
        self._mode.__exit__(*error)

    def result(self, compute: Callable[[], Tensor]) -> Tensor:
        """The next result; `compute` is called in the forward pass only."""
        if not self._is_again:
            self._results.append(compute())
        self._read += 1
        return self._results[self._read - 1]


_PASS: Final[ContextVar[_Pass | None]] = ContextVar("pass of a layer that keeps every second product", default=None)


def computed_once(compute: Callable[[], Tensor]) -> Tensor:
    """The result of `compute`, which the recomputation of every second product keeps."""
    current = _PASS.get()
    return compute() if current is None else current.result(compute)


def prepare(scenario: Scenario, layers: Mapping[int, nn.Module]) -> dict[range, Checkpoint]:
    """Prepares a stage's numbered layers for the scenario's recomputation; returns the parts of the stage that are recomputed,
    each with the function that runs it.

    Emulated layers are unchanged: they wait for the predicted duration of the recomputation; see `exchanges_again`.
    """
    recompute = scenario.training.recompute
    if scenario.compute == "paced" or recompute.kind == "none":
        return {}
    if recompute.products is not None:
        stage = [scenario.layers(WHOLE)[number] for number in layers]
        chosen = [number for number, is_chosen in zip(layers, recompute.concerned(stage), strict=True) if is_chosen]
        return {range(number, number + 1): _keep_products(layers[number]) for number in chosen}
    if recompute.kind == "selective":
        for layer in layers.values():
            _run_sections(layer, Sections(frozenset(recompute.module_names)))
        return {}
    return dict.fromkeys(_segments(scenario, layers, recompute), checkpointed)


def exchanges_again(scenario: Scenario, stage: Sequence[Layer]) -> list[Sequence[Exchange]]:
    """For each layer of a stage, the exchanges that recomputation repeats in its backward pass."""
    recompute = scenario.training.recompute
    rows = zip(stage, recompute.concerned(stage), strict=True)
    return [_repeated(layer, recompute) if is_recomputed else () for layer, is_recomputed in rows]


def _repeated(layer: Layer, recompute: Recompute) -> Sequence[Exchange]:
    if recompute.kind == "selective":
        return again(layer, recompute).exchanges
    return [exchange for exchange in layer.exchanges if not exchange.backward]


def checkpointed(function: Callable[..., Any], *inputs: Tensor, early_stop: bool = False) -> Any:
    """Calls `function` and keeps only its inputs, and the state of random numbers, for the backward pass.

    early_stop: whether recomputation ends with the last tensor that the backward pass needs; else it repeats all computation
    and exchanges, as predictions assume.
    """
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=True, early_stop=early_stop)


def _keep_products(layer: nn.Module) -> Checkpoint:
    run = EverySecondProduct()
    _run_sections(layer, run)
    return run.checkpointed


def _run_sections(layer: nn.Module, run: Sections) -> None:
    for module in layer.modules():
        if isinstance(getattr(module, "run", None), Sections):
            cast(Any, module).run = run


def _segments(scenario: Scenario, layers: Mapping[int, nn.Module], recompute: Recompute) -> Iterator[range]:
    specs = scenario.layers(scenario.strategy.plan.shard)
    stage = [specs[number] for number in layers]
    rows = zip(segments(stage, recompute).tolist(), recompute.concerned(stage), layers, strict=True)
    for (_, is_recomputed), group in itertools.groupby(rows, key=lambda row: row[:2]):
        numbers = [number for _, _, number in group]
        if is_recomputed:
            yield range(numbers[0], numbers[-1] + 1)
