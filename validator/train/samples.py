"""Random samples for each kind of model: its input tensors and its targets, as arrays."""

from __future__ import annotations

from functools import cache, singledispatch
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.model import T5, Bert, Dlrm, Hstu, Mlp, ModelSpec, RecurrentNetwork, Siamese, Traced
from scaleproof.simulator.model.convolutional.image_steps import Convnet
from scaleproof.simulator.model.recommender.parts import Recommender
from scaleproof.simulator.model.recommender.placement import each
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.validator.train.models.traced import drawn, examples

Array = NDArray[Any]
# Input tensors of a batch, and its targets; the first dimension of each is that of samples.
Samples = tuple[tuple[Array, ...], NDArray[np.int64]]
# Knuth's multiplicative hash (The Art of Computer Programming, volume 3, section 6.4), a prime: ids of rows that are looked up
# often are spread over a table.
_SPREAD: Final = 2_654_435_761
# Mean time between interactions of a user, in seconds.
_BETWEEN_S: Final = 3600.0


@singledispatch
def arrays(model: ModelSpec, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    """Inputs and targets of a batch. text: file from which words are read; random ones if None."""
    raise NotImplementedError(type(model).__name__)


@arrays.register
def _(model: Mlp, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    return (generator.standard_normal((samples, model.inputs)),), generator.integers(model.outputs, size=samples)


@arrays.register
def _(model: Convnet, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    images = generator.standard_normal((samples, 3, model.image, model.image), dtype=np.float32)
    return (images,), generator.integers(model.classes, size=samples)


@arrays.register
def _(model: Siamese, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    left, right = (arrays(model.tower, samples, generator)[0] for _ in range(2))
    return (*left, *right), generator.integers(2, size=samples)


@arrays.register
def _(model: Transformer, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    if text is None:
        words = generator.integers(model.vocabulary, size=(samples, model.sequence + 1))
    else:
        words = _words_of(text, samples, model, generator)
    # the target of each token is the next one
    return (words[:, :-1].copy(),), words[:, 1:].copy()


@arrays.register
def _(model: RecurrentNetwork, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    words = generator.integers(model.vocabulary, size=(samples, model.sequence + 1))
    return (words[:, :-1].copy(),), words[:, 1:].copy()


@arrays.register
def _(model: Bert, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    words = generator.integers(model.vocabulary, size=(samples, model.sequence))
    if not model.pretraining:
        return (words,), generator.integers(model.hidden, size=samples)
    targets = generator.integers(model.vocabulary, size=(samples, model.sequence))
    return (words,), np.hstack([targets, generator.integers(2, size=(samples, 1))])


@arrays.register
def _(model: T5, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    source = generator.integers(model.vocabulary, size=(samples, model.sequence))
    target = generator.integers(model.vocabulary, size=(samples, model.target_sequence + 1))
    return (source, target[:, :-1].copy()), target[:, 1:].copy()


@arrays.register
def _(model: Dlrm, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    dense = (generator.standard_normal((samples, model.dense)),) if model.dense else ()
    return (*dense, _rows(model, (samples,), generator)), generator.integers(2, size=samples)


@arrays.register
def _(model: Hstu, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    rows = _rows(model, (samples, model.tokens_each), generator)
    # seconds since a user's first interaction
    times = generator.exponential(_BETWEEN_S, (samples, model.sequence)).astype(np.int64).cumsum(1)
    targets = generator.integers(2, size=(samples, model.tokens_each, model.top[-1]))
    return (rows, *((times,) if model.time_buckets else ())), targets


@arrays.register
def _(model: Traced, samples: int, generator: np.random.Generator, text: Path | None = None) -> Samples:
    inputs = tuple(drawn(example, samples, generator) for example in _examples(model.source, Path.cwd()))
    # the module reads its targets like inputs
    return inputs, np.zeros(samples, dtype=np.int64)


def _rows(model: Recommender, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """Random numbers of rows: (…, lookups in all tables)."""
    rows = [
        table.distribution.drawn((*shape, pooling), generator) * _SPREAD % table.rows
        for table, pooling in zip(each(model.tables), poolings(model), strict=True)
    ]
    return np.concatenate(rows, -1)


def poolings(model: Recommender) -> list[int]:
    """Number of lookups of a sample, or of its tokens, in each table."""
    return [round(table.pooling) for table in each(model.tables)]


@cache
def _examples(source: str, folder: Path) -> list[Array]:
    return examples(source)


def _words_of(path: Path, samples: int, model: Transformer, generator: np.random.Generator) -> NDArray[np.int64]:
    """Bytes of a file from random positions, modulo the vocabulary: (samples, sequence + 1)."""
    text = np.memmap(path, dtype=np.uint8, mode="r")
    starts = generator.integers(len(text) - model.sequence, size=samples)
    words: NDArray[np.int64] = text[starts[:, None] + np.arange(model.sequence + 1)].astype(np.int64)
    return words % model.vocabulary
