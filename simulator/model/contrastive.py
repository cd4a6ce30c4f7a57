"""Contrastive losses: the features of each image are compared with those of all words, of the own worker or of all workers.

CLIP (arXiv 2103.00020) takes the softmax of both kinds of features, so that workers gather both; its gradients are scattered
(`--local-loss --gather-with-grad` of OpenCLIP). SigLIP (arXiv 2303.15343, section 3.3) compares own images with words that
pass around a ring, and their gradients return.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from pydantic import Field

from scaleproof.simulator.model.layers import Layer, ModelSpec
from scaleproof.simulator.model.operators import Exchange, Matmul, MemoryBound, SavedActivation

Contrast = Literal["gathered", "ring", "local"]
# Bytes of an element of what softmax keeps.
_SOFTMAX_BYTES: Final = 4


class Peers(NamedTuple):
    """Data-parallel workers whose features a loss compares, and samples of each that pass together."""

    workers: int
    samples: float


class TwoTowers(ModelSpec):
    """A model that may end in the features of two towers, one half of its outputs each."""

    contrast: Contrast | None = Field(
        None,
        description="contrastive loss of two towers, whose features are the outputs: gathered from all workers (CLIP), words "
        "passed around a ring of workers (SigLIP), or local to each worker; no such loss if absent",
    )


@dataclass(frozen=True)
class Logits(Matmul):
    """Products of a worker's features and those of all workers, `columns`, which have gradients but are no weights."""

    @functools.cached_property
    def trained_weights(self) -> int:
        """Number of weights."""
        return 0


def with_loss(layers: Sequence[Layer], model: ModelSpec, peers: Peers | None) -> Sequence[Layer]:
    """The layers with the model's contrastive loss in the last one, if it has one and peers are given."""
    if peers is None or not isinstance(model, TwoTowers) or model.contrast is None:
        return layers
    last, width = layers[-1], layers[-1].output_elements // 2
    workers = 1 if model.contrast == "local" else peers.workers
    loss = _sigmoid if model.contrast == "ring" else _softmax
    whole = last + loss(width, workers, round(workers * peers.samples))
    named = whole.named(
        last.name, f"{last.signature}+{model.contrast}({peers})", last.output_elements, pinned_to_end=last.pinned_to_end,
        inputs=last.inputs,
    )  # fmt: skip
    return [*layers[:-1], replace(named, frozen_parameters=last.frozen_parameters, frozen_bytes=last.frozen_bytes)]


def _softmax(width: int, workers: int, pairs: int) -> Layer:
    """Softmax of the products with all `pairs` features of the other tower, for images and for words."""
    return _loss(
        (Logits("logits of images", 1, pairs, width), Logits("logits of words", 1, pairs, width)),
        MemoryBound("contrastive loss", 4 * pairs, 4 * pairs, 4 * pairs, 4 * pairs),
        SavedActivation("softmax of pairs", 2 * pairs, _SOFTMAX_BYTES), (width, width), workers,
    )  # fmt: skip


def _sigmoid(width: int, workers: int, pairs: int) -> Layer:
    """Sigmoid of the products of images with all words: a bias, signs, and the loss."""
    return _loss(
        (Logits("logits of images", 1, pairs, width),),
        MemoryBound("contrastive loss", 4 * pairs, 3 * pairs, 4 * pairs, 2 * pairs),
        SavedActivation("signed pairs", 2 * pairs), (width,), workers,
    )  # fmt: skip


def _loss(products: tuple[Logits, ...], loss: MemoryBound, kept: SavedActivation, sent: tuple[int, ...], workers: int) -> Layer:
    """A loss of products. sent: elements of each kind of features of a sample that workers exchange."""
    gathered = SavedActivation("gathered features", workers * sum(sent))
    passes = (("all_gather", False), ("reduce_scatter", True)) if workers > 1 else ()
    exchanges = (Exchange(op, workers * width, backward, axis="features") for op, backward in passes for width in sent)
    return Layer(operators=(*products, loss), kept=(gathered, kept), exchanges=tuple(exchanges))
