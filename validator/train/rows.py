"""Rows of an embedding that a worker's samples touch in a step, where gradients are sparse."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.strategy.parameter_server.shards import Sparse

Tokens = NDArray[np.int64]


def touched_count(model: Transformer, sparse: Sparse) -> int:
    """Number of rows that a worker's samples touch in a step."""
    return max(1, round(sparse.rows * model.vocabulary))


def within_rows(tokens: Tokens, targets: Tokens, vocabulary: int, count: int, generator: np.random.Generator) -> None:
    """Replaces random tokens in place by those of `count` rows that are drawn. tokens, targets: of one worker's samples."""
    rows = generator.choice(vocabulary, count, replace=False)
    for array in (tokens, targets):
        array[...] = rows[array % count]
