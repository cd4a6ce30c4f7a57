"""Saved activations of transformers that are trained in 16 bits by `torch.autocast`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import SavedActivation

# Norms save the residual stream, and softmax its output, with 32 bits. Without dropout behind softmax, its output is also saved
# in 16 bits, by the product that reads it; with dropout, that product saves the output of dropout.
_WIDE_BYTES: Final = 4
_NARROW_BYTES: Final = 2
_STREAM: Final = ("input", "sums", "embedding sum")
_SCORES: Final = "attention scores"
_DROPPED: Final = "dropped attention scores"
_NORMS: Final = frozenset({"norm", "rms norm"})


def with_wide_stream(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers with 32-bit residual streams and softmax outputs among their saved activations, where they have norms."""
    return tuple(replace(one, kept=_widened(one.kept)) if _has_norm(one) else one for one in layers)


def stream_bytes(layers: Sequence[Layer], element_bytes: int) -> int:
    """Bytes of an element that passes from layer to layer under autocast: 32 bits between layers with norms."""
    return _WIDE_BYTES if any(map(_has_norm, layers)) else element_bytes


def _has_norm(layer: Layer) -> bool:
    return not _NORMS.isdisjoint(operator.name for operator in layer.operators)


def _widened(kept: Sequence[SavedActivation]) -> tuple[SavedActivation, ...]:
    scores_bytes = _WIDE_BYTES + (0 if any(one.name == _DROPPED for one in kept) else _NARROW_BYTES)
    wide_bytes = dict.fromkeys(_STREAM, _WIDE_BYTES) | {_SCORES: scores_bytes}
    return tuple(one._replace(element_bytes=wide_bytes.get(one.name, one.element_bytes)) for one in kept)
