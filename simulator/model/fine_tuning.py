"""Layers of which only a part is trained: frozen layers, adapters next to frozen products, and frozen weights in few bits.

The forward pass is that of the whole model and of the adapters. The backward pass computes gradients of activations down to the
first trained parameters, and gradients of trained weights alone; what only frozen weights would read is not kept for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.units import format_parameters
from scaleproof.simulator.model.adapters import HEAD, Adapters, Part, parts_of
from scaleproof.simulator.model.layers import Layer, inputs_of, owners_of
from scaleproof.simulator.model.operators import (
    ADDED,
    Attention,
    Convolution,
    Matmul,
    MemoryBound,
    Module,
    Operator,
    SavedActivation,
    Scan,
    WeightPass,
)

BasePrecision = Literal["nf4", "int8", "fp8", "bf16", "fp16", "fp32"]
# Names of passes over quantised weights.
DEQUANTISE: Final = "dequantise"
# Bytes of an element of frozen weights in blocks of 64 elements with a scale of 32 bits, or with scales of 8 bits of which 256
# have one of 32 bits (arXiv 2305.14314, section 3); with one scale of 32 bits a row (arXiv 2208.07339), which is left out here.
_BLOCK_BYTES: Final = {"nf4": 0.5 + 4 / 64, "int8": 1.0, "fp8": 1.0}
_TWICE_BYTES: Final = {**_BLOCK_BYTES, "nf4": 0.5 + 1 / 64 + 4 / (64 * 256)}
# Kernels that dequantise weights: at first, scales of 8 bits are dequantised and a mean is added (bitsandbytes/functional.py).
_TWICE_KERNELS: Final = 3
# bitsandbytes' products keep what they read although no gradient of weights needs it (autograd/_functions.py: MatMul4Bit,
# MatMul8bitLt).
_KEEPS_INPUTS: Final = frozenset({"nf4", "int8"})
_WIDE_BYTES: Final = 4
# Operators that look weights up.
_LOOK_UPS: Final = frozenset({"embedding", "add embedding"})
# By saved activation that a product alone reads, the products that may read it, in the order of the layer.
_READ_BY: Final[dict[str, tuple[str, ...]]] = {
    "activation": ("down", "expert down"), "projection input": ("projection",), "head input": ("head",),
    "expert inputs": ("expert up",), "attention output": ("projection",),
}  # fmt: skip
_NORMS: Final = frozenset({"norm", "rms norm"})
# Names of layers in training software.
_LAYERS: Final = {"embed_tokens": "embedding", "wte": "embedding", "lm_head": HEAD}
_ENDS_BRANCH: Final = _NORMS | {"residual"}
# Products that read the output of a block's norm.
_AFTER_NORM: Final = frozenset({"qkv", "query", "query down", "key down", "up", "router"})
# Products that read the output of the norm of a latent.
_AFTER_LATENT: Final = ("query up", "key up")


class FineTuning(NamedTuple):
    """What is trained of a model, and how the rest is stored.

    freeze: names of layers that are not trained; with adapters nothing else is trained. base: precision of frozen parameters,
    or of those of products alone if it has few bits; twice: whether scales of blocks are quantised as well. element_bytes: of
    an activation; trained_bytes: of a trained parameter. wide: whether frozen parameters that are not quantised, and the
    residual stream, have 32 bits. autocast: whether products of adapters cast what they read. is_fused: whether queries, keys
    and values are one product in the model's software.
    """

    adapters: Adapters | None
    freeze: tuple[str, ...]
    base: BasePrecision | None
    twice: bool
    element_bytes: int
    trained_bytes: int
    wide: bool
    autocast: bool
    is_fused: bool

    @property
    def casts(self) -> int:
        """Casts of what a product of an adapter reads: to its precision, and by autocast back to that of activations."""
        is_wider = self.trained_bytes > self.element_bytes and not self.wide
        return is_wider + (self.autocast and self.trained_bytes > self.element_bytes)

    @property
    def copies(self) -> bool:
        """Whether each adapter keeps a copy of what it reads: one that is cast, or of which some is dropped."""
        return self.casts > 0 or (self.adapters is not None and self.adapters.dropout > 0)

    def quantised_bytes(self, product: Matmul) -> float | None:
        """Bytes of an element of a frozen product's weights; None unless they are quantised. Output heads are not
        (transformers' BitsAndBytesConfig, llm_int8_skip_modules)."""
        if self.base not in _BLOCK_BYTES or product.name == HEAD:
            return None
        scale_bytes = _WIDE_BYTES / product.inner if self.base == "int8" else 0.0
        return (_TWICE_BYTES if self.twice else _BLOCK_BYTES)[self.base] + scale_bytes

    @property
    def frozen_bytes(self) -> int:
        """Bytes of an element of frozen parameters that are not quantised."""
        return _WIDE_BYTES if self.wide or self.base == "fp32" else self.element_bytes

    def __str__(self) -> str:
        parts = (f"{name}={value}" for name, value in self._asdict().items() if value not in (None, (), False))
        return ",".join(parts)


def trained_part(layers: Sequence[Layer], tuning: FineTuning) -> tuple[Layer, ...]:
    """The layers as they are trained; identical parts for layers with equal signatures. Raises FieldError for layers to freeze
    that the model does not have, and where nothing is left to train."""
    frozen, owners = frozen_layers(layers, tuning), owners_of(layers)
    untrained = frozenset(tensor for number in frozen for tensor in layers[number].tensors)
    reaches, known, result = dict[str, bool](), dict[tuple[object, ...], Layer](), list[Layer]()
    for number, (layer, read) in enumerate(zip(layers, inputs_of(layers), strict=True)):
        below, shares = any(reaches[name] for name in read), number in owners
        is_frozen = owners.get(number, number) in frozen
        key = layer.signature, is_frozen, below, shares
        if key not in known:
            known[key] = _Changed(layer, tuning, is_frozen, below, untrained).layer(shares)
        result.append(replace(known[key], name=layer.name, inputs=layer.inputs))
        reaches[layer.name] = below or result[-1].has_backward
    if not any(layer.tensors for layer in result):
        raise FieldError(("training", "freeze"), "nothing is left to train; freeze fewer layers, or add training.adapters")
    return tuple(result)


def frozen_layers(layers: Sequence[Layer], tuning: FineTuning) -> set[int]:
    """Numbers of the frozen layers: with adapters all except those that are trained in full."""
    if tuning.adapters is None:
        return _named(layers, tuning.freeze, ("training", "freeze"))
    trained = _named(layers, tuning.adapters.modules_to_save, ("training", "adapters", "modules_to_save"))
    return set(range(len(layers))) - trained


def _named(layers: Sequence[Layer], names: Sequence[str], path: tuple[str, ...]) -> set[int]:
    """Numbers of the layers with some names. Raises FieldError for the field `path` if there are none with one of them."""
    found = set[int]()
    for given in names:
        name = _LAYERS.get(given, given)
        matching = {
            number
            for number, layer in enumerate(layers)
            if fnmatchcase(layer.name, name) or layer.name.startswith(f"{name}.") or layer.name.rstrip("0123456789") == name
        }
        if not matching:
            known = ", ".join(dict.fromkeys(layer.name.rstrip("0123456789") for layer in layers))
            message = (
                f"the model has no layer {name}; give some of {known}, or numbered ones such as {layers[len(layers) // 2].name}"
            )
            raise FieldError(path, message)
        found |= matching
    return found


@dataclass
class _Changed:
    """A layer while it is changed. below: whether a layer below has a backward pass. untrained: elements of tensors of frozen
    layers, which the layer may share."""

    base: Layer
    tuning: FineTuning
    is_frozen: bool
    below: bool
    untrained: frozenset[int]
    # by operator of the layer, those in its place
    operators: list[list[Operator]] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    kept: list[SavedActivation] = field(default_factory=list)
    experts: int = 0

    def layer(self, shares: bool) -> Layer:
        """The layer as it is trained. shares: whether its weights are those of another layer."""
        signature = f"{self.base.signature}[{self.tuning}{',frozen' if self.is_frozen else ''}{'' if self.below else ',first'}]"
        needs = self.below
        for operator in self.base.operators:
            self.operators.append(list(self._operators(operator, needs)))
            needs = needs or any(one.has_backward for one in self.operators[-1])
        operators = tuple(itertools.chain.from_iterable(self.operators))
        if not self.is_frozen:
            return self._trained_layer(signature, operators)
        kept = [self._still_kept(number) for number in range(len(self.base.kept))] if needs else [None] * len(self.base.kept)
        return replace(
            self.base,
            signature=signature,
            operators=operators,
            tensors=() if shares else tuple(self.tensors),
            kept=(*filter(None, kept), *self.kept),
            expert_parameters=self.experts,
            modules=self._modules(kept),
            frozen_parameters=self.base.parameters,
            frozen_bytes=self._frozen_bytes(),
        )

    def _operators(self, operator: Operator, needs: bool) -> Iterator[Operator]:
        """An operator and those that fine-tuning adds to it. needs: whether gradients of what it reads are needed."""
        if not self.is_frozen:
            yield self._trained(operator, needs) if isinstance(operator, Matmul | Convolution) else operator
        elif isinstance(operator, Matmul | Convolution):
            frozen = replace(operator, input_gradient=needs and operator.input_gradient, weight_gradient=False)
            yield from self._product(frozen) if isinstance(frozen, Matmul) else (frozen,)
        elif isinstance(operator, Attention | Scan):
            yield replace(operator, has_backward=needs)
        elif needs and operator.name not in _LOOK_UPS:
            yield operator
        else:
            yield replace(operator, backward_read=0, backward_written=0)

    def _trained_layer(self, signature: str, operators: tuple[Operator, ...]) -> Layer:
        """A layer that is trained in full; next to adapters, the frozen one remains (PEFT's ModulesToSaveWrapper)."""
        if self.tuning.adapters is None and operators == self.base.operators:
            return self.base
        layer = replace(self.base, signature=signature, operators=operators)
        if self.tuning.adapters is None:
            return layer
        return replace(layer, frozen_parameters=self.base.parameters, frozen_bytes=self._frozen_bytes())

    def _trained(self, product: Matmul | Convolution, needs: bool) -> Operator:
        """A product of a trained layer, whose weights may be those of a frozen embedding."""
        shared = product.weights in self.untrained and product.weights not in self.base.tensors
        return replace(product, input_gradient=needs and product.input_gradient, weight_gradient=not shared)

    def _product(self, product: Matmul) -> Iterator[Operator]:
        """A frozen product, with dequantisation before it and adapters after it."""
        both, tuning = parts_of(self.base, product), self.tuning
        quantised_bytes = tuning.quantised_bytes(product)
        if quantised_bytes is not None:
            for part in (both.whole,) if tuning.is_fused else both.split:
                weights = part.columns * product.inner * product.count
                moved = round(weights * (quantised_bytes / tuning.element_bytes + 1))
                kernels = _TWICE_KERNELS if tuning.twice and tuning.base == "nf4" else 1
                yield WeightPass(DEQUANTISE, 0, 0, 0, 0, weights, moved, kernels, product.input_gradient)
        yield product
        adapters = tuning.adapters
        parts = () if adapters is None else both.chosen(adapters.targets, tuning.is_fused)
        for part in parts:
            assert adapters is not None
            yield from self._adapter(adapters, product, part)

    def _adapter(self, adapters: Adapters, product: Matmul, part: Part) -> Iterator[Operator]:
        """The operators of an adapter next to some columns of a product, kernel by kernel as in PEFT (tuners/lora/layer.py).

        The gradient of what it reads is added to that of the product.
        """
        tuning, rank = self.tuning, adapters.rank
        read, written = product.read, product.rows * part.columns * product.count
        weights: tuple[int, ...] = (product.inner * rank, rank * part.columns)
        if adapters.dropout:
            mask = round(read / tuning.element_bytes)
            again = product.input_gradient
            yield _moving("dropout", read, read + mask, (read + mask) * again, read * again)
            self.kept.append(SavedActivation(f"{ADDED}mask", read, 1))
        # one side of a cast has 32 bits
        wide = _WIDE_BYTES // tuning.element_bytes
        for _ in range(tuning.casts):
            yield _moving("cast", read, wide * read, wide * read * product.input_gradient, read * product.input_gradient)
        if tuning.copies:
            is_wide = tuning.trained_bytes > tuning.element_bytes and not tuning.autocast
            self.kept.append(SavedActivation(f"{ADDED}input", read, _WIDE_BYTES if is_wide else None))
        yield replace(product, name=f"{ADDED}down", columns=rank, weight_gradient=True)
        yield replace(product, name=f"{ADDED}up", columns=part.columns, inner=rank, input_gradient=True, weight_gradient=True)
        self.kept.append(SavedActivation(f"{ADDED}rank", product.rows * rank * product.count))
        yield _moving("scale", written, written, written, written)
        if adapters.kind == "dora":
            weights = *weights, part.columns
            yield from self._magnitudes(adapters, product, part, written)
        added = read * product.input_gradient
        yield _moving("sum", 2 * written, written, 2 * added, added)
        self.tensors += weights * product.count
        self.experts += sum(weights) * product.count if product.name.startswith("expert") else 0

    def _magnitudes(self, adapters: Adapters, product: Matmul, part: Part, written: int) -> Iterator[Operator]:
        """What DoRA adds to LoRA: norms of the columns of the whole weights, which have no gradients, and products and sums
        with the trained magnitudes over these norms (tuners/lora/dora.py). With dropout, the frozen product is computed again.
        """
        elements, inner = part.columns * product.inner * product.count, product.inner * product.count
        # an identity matrix goes through the adapter; its result is scaled, added to the weights, and all are read for norms
        yield WeightPass(f"{ADDED}norms", 0, 0, 0, 0, 0, 2 * inner * product.inner + 7 * elements, 8)
        if adapters.dropout:
            yield replace(product, name=f"{ADDED}base", columns=part.columns)
        yield _moving("magnitudes", 4 * written, 2 * written, 6 * written, 2 * written)
        yield _moving("magnitude sum", 2 * written, written, 0, 0)
        self.kept += [SavedActivation(f"{ADDED}{name}", written) for name in ("base output", "output")]

    def _still_kept(self, number: int) -> SavedActivation | None:
        """A kept activation of the frozen layer, as far as an adapter or an operator without weights reads it."""
        activation, operators = self.base.kept[number], self.base.operators
        if activation.name == "norms":
            norms = [place for place, one in enumerate(operators) if one.name in _NORMS]
            return _share(activation, sum(map(self._keeps_norm, norms)), len(norms))
        if activation.name == "latent":
            # the input of the norm remains
            is_read = any(self._is_kept_by(place) for place, one in enumerate(operators) if one.name in _AFTER_LATENT)
            return activation if is_read else _share(activation, 1, 2)
        if activation.name not in _READ_BY or (activation.name == "attention output" and self._is_flash):
            return activation
        readers = [place for place, one in enumerate(operators) if one.name in _READ_BY[activation.name]]
        place = sum(one.name == activation.name for one in self.base.kept[:number])
        return activation if place < len(readers) and self._is_kept_by(readers[place]) else None

    def _keeps_norm(self, place: int) -> bool:
        """Whether what is kept of a norm is read: by adapters of products behind it, or by itself, behind a branch."""
        following = itertools.dropwhile(lambda one: one[1].name in _NORMS, enumerate(self.base.operators[place:], place))
        branch = itertools.takewhile(lambda one: one[1].name not in _ENDS_BRANCH, following)
        products = [number for number, operator in branch if operator.name in _AFTER_NORM]
        return not products or any(map(self._is_kept_by, products))

    def _is_kept_by(self, place: int) -> bool:
        """Whether an adapter of the operator, or its quantised product, keeps what the operator reads."""
        products = [one for one in self.operators[place] if isinstance(one, Matmul)]
        if self.tuning.base in _KEEPS_INPUTS and any(
            one.input_gradient and self.tuning.quantised_bytes(one) is not None for one in products if ADDED not in one.name
        ):
            return True
        return not self.tuning.copies and any(one.weight_gradient for one in products)

    @property
    def _is_flash(self) -> bool:
        return any(isinstance(one, Attention) and one.flash for one in self.base.operators)

    def _modules(self, kept: Sequence[SavedActivation | None]) -> tuple[Module, ...]:
        """The modules of the layer, with the operators that are added to theirs."""
        begins = [*itertools.accumulate(map(len, self.operators), initial=0)]
        numbers = [*itertools.accumulate((one is not None for one in kept), initial=0)]
        return tuple(
            module._replace(
                operators=tuple(i for place in module.operators for i in range(begins[place], begins[place + 1])),
                kept=tuple(numbers[index] for index in module.kept if kept[index] is not None),
            )
            for module in self.base.modules
        )

    def _frozen_bytes(self) -> float | None:
        """Bytes of the parameters of the frozen layer; None if they are stored like trained ones."""
        tuning, quantised, size_bytes = self.tuning, 0, 0.0
        if tuning.adapters is None and tuning.base is None:
            return self.base.frozen_bytes
        for operator in self.base.operators:
            if isinstance(operator, Matmul) and (element_bytes := tuning.quantised_bytes(operator)) is not None:
                quantised += operator.weights
                size_bytes += element_bytes * operator.weights
        return size_bytes + tuning.frozen_bytes * (self.base.parameters - quantised)


def _moving(name: str, read: int, written: int, backward_read: int, backward_written: int) -> MemoryBound:
    """A memory-bound operator of an adapter."""
    return MemoryBound(ADDED + name, read, written, backward_read, backward_written)


def _share(activation: SavedActivation, parts: int, of: int) -> SavedActivation | None:
    """Some of the equal parts of a kept activation; None without any."""
    return activation._replace(elements=activation.elements * parts // of) if parts else None


def parameter_counts(layers: Sequence[Layer]) -> tuple[int, int]:
    """Numbers of trained and of all parameters."""
    return sum(one.trained_parameters for one in layers), sum(one.parameters for one in layers)


def trained_words(layers: Sequence[Layer]) -> str:
    """'41.9 M of 8.07 B parameters': those that are trained, and all."""
    trained, total = parameter_counts(layers)
    return f"{format_parameters(trained)} of {format_parameters(total)} parameters"
