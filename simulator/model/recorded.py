"""Models whose layers are recorded in a data file: modules of timm, torchvision, diffusers and transformers, traced once.

`benchmarks/record_models.py` writes the file by tracing (`tracing.torch_module`), so that neither torch nor the package is
needed to predict. A line of the file is a module: its name, the side of its images (0 without) and its layers;
tabs separate them. `=NAME` in place of layers refers to a module of another name.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import json
import lzma
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.contrastive import TwoTowers
from scaleproof.simulator.model.layers import WHOLE, Layer, Shard, refuse_to_shard
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, SavedActivation
from scaleproof.simulator.model.traced import PACKAGES

FILE: Final = catalog.ROOT / "models" / "recorded.jsonl.xz"
_OPERATORS: Final[tuple[Callable[..., Operator], ...]] = (Matmul, Convolution, Attention, MemoryBound)
# Packages that can be installed to trace modules that are not recorded.
_INSTALLED: Final = ("timm", "torchvision")
# Bytes of what softmax keeps where attention is not one kernel.
_SCORES: Final = "attention scores"


class RecordedModel(TwoTowers):
    """A module of a package, as it was traced.

    source: `PACKAGE:NAME`, or the name of a module without a package. flash: whether attention is one kernel; software older
    than PyTorch 2.0 writes scores to memory.
    """

    kind: Literal["recorded"] = "recorded"
    source: str
    image: Width | None = Field(None, description="pixels of a side of an image; the module's own if absent")
    flash: bool = True

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The recorded layers; traced ones where the package is installed and the size is not recorded.

        Raises FieldError for an unknown name or size, or if `shard` divides the layers.
        """
        refuse_to_shard(self.kind, shard)
        layers = _layers(self.source, self.image)
        return list(layers if self.flash else map(_without_flash, layers))


def _without_flash(layer: Layer) -> Layer:
    """The layer with attention as products with a softmax between them, whose scores are kept."""
    if not any(isinstance(one, Attention) and one.flash for one in layer.operators):
        return layer
    operators = tuple(replace(one, flash=False) if isinstance(one, Attention) else one for one in layer.operators)
    scores = sum(one.scores for one in layer.operators if isinstance(one, Attention) and one.has_backward)
    kept = (*layer.kept, SavedActivation(_SCORES, scores, group="attention"))
    return replace(layer, operators=operators, kept=kept)


@functools.lru_cache(maxsize=64)
def _layers(source: str, side: int | None) -> tuple[Layer, ...]:
    sides = _sides().get(source, {})
    wanted = side or next(iter(sides), None)
    if wanted in sides:
        return decoded(sides[wanted])
    if source.startswith(PACKAGES) and importlib.util.find_spec(source.partition(":")[0]) is not None:
        from scaleproof.simulator.model.tracing.torch_module import trace_of

        return trace_of(source if side is None else f"{source}@{side}", Path()).layers
    raise _not_recorded(source, wanted, list(sides))


def _not_recorded(source: str, side: int | None, sides: Sequence[int]) -> FieldError:
    """The error that a module is not recorded, or for images of other sizes alone, with what to do."""
    package, _, name = source.rpartition(":")
    install = f"pip install {package}, which then builds it" if package in _INSTALLED else ""
    if sides:
        remedy = f"leave image out, or {install}" if install else "leave image out"
        message = f"{source} is recorded for {' and '.join(map(str, sides))} pixels, not {side}; {remedy}"
        return FieldError(("model", "image"), message)
    models = [model for model in catalog.names(catalog.PARTS["model"]) if catalog.letters(model) == catalog.letters(name)]
    close = models or difflib.get_close_matches(source, _sides(), n=3)
    if install:
        others = f", or take {catalog.either(close)}" if close else ""
        return FieldError(("model", "source"), f"{source} is not recorded, and {package} is not installed; {install}{others}")
    hint = f"did you mean {catalog.either(close)}?" if close else f"names are in {FILE.name}"
    return FieldError(("model", "source"), f"no module is recorded as {source!r}; {hint}")


@functools.cache
def _sides() -> dict[str, dict[int, str]]:
    """By name and side, lines of the file; the first side is the module's own."""
    found: dict[str, dict[int, str]] = {}
    for line in lzma.decompress(FILE.read_bytes()).decode().splitlines():
        name, side, rest = line.split("\t")
        found.setdefault(name, {})[int(side)] = rest
    for name, lines in list(found.items()):
        if (other := next(iter(lines.values()))).startswith("="):
            found[name] = found.get(other[1:], {})
    return found


def known(package: str = "") -> list[str]:
    """Names of recorded modules that begin with a package's."""
    return sorted(name for name in _sides() if name.startswith(package))


def encoded(layers: Sequence[Layer]) -> str:
    """Layers as one line: distinct layers, and for each layer its name, its inputs and the number of the distinct one."""
    distinct: dict[str, int] = {}
    order: list[Any] = []
    for layer in layers:
        operators = [[_OPERATORS.index(type(one)), *astuple(one)] for one in layer.operators]
        costs = [
            layer.signature, operators, layer.tensors, layer.output_elements, int(layer.pinned_to_end), layer.kept,
            layer.frozen_parameters,
        ]  # fmt: skip
        text = json.dumps(costs, separators=(",", ":"))
        order.append([layer.name, layer.inputs, distinct.setdefault(text, len(distinct))])
    return json.dumps([[json.loads(text) for text in distinct], order], separators=(",", ":"))


def decoded(line: str) -> tuple[Layer, ...]:
    """The layers of a line."""
    distinct, order = json.loads(line)
    layers = [
        Layer(
            "", signature, tuple(_operator(*one) for one in operators), tuple(tensors), output, bool(pinned),
            tuple(SavedActivation(*one) for one in kept), frozen_parameters=frozen,
        )
        for signature, operators, tensors, output, pinned, kept, frozen in distinct
    ]  # fmt: skip
    return tuple(
        replace(layers[number], name=name, inputs=None if inputs is None else tuple(inputs)) for name, inputs, number in order
    )


def _operator(kind: int, *fields: Any) -> Operator:
    return _OPERATORS[kind](*(tuple(one) if isinstance(one, list) else one for one in fields))
