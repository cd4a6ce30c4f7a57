"""Integers that floats decide, such as the experts that a router chooses: how often each option is chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.errors import InputError

BALANCED: Final = "balanced"
_ZIPF: Final = "zipf:"


@dataclass(frozen=True)
class Policy:
    """Shares of options. exponent: of Zipf's law, 0 for equal shares. weights: of options, from a file, instead."""

    text: str = BALANCED
    exponent: float = 0.0
    weights: tuple[float, ...] = ()

    def shares(self, options: int) -> NDArray[np.float64]:
        """Probability of each option, which add up to 1. Raises InputError where the file has another number of options."""
        if self.weights and len(self.weights) != options:
            message = (
                f"{self.text} has {len(self.weights)} numbers, but the script chooses among {options}; give one per option"
            )
            raise InputError(message)
        weights = np.array(self.weights or np.arange(1, options + 1) ** -self.exponent, np.float64)
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares

    def choices(self, rows: int, chosen: int, options: int) -> NDArray[np.int64]:
        """`chosen` different options of each row: shape (rows, chosen). They are as frequent as their shares."""
        if not self.exponent and not self.weights:
            return (np.arange(rows * chosen) % options).reshape(rows, chosen)
        ends = np.cumsum(_inclusion(self.shares(options), chosen))
        # systematic sampling: evenly spaced points, shifted by an even sequence over rows
        shift = (np.arange(rows) + 0.5) / max(rows, 1)
        points = np.random.default_rng(0).permutation(shift)[:, None] + np.arange(chosen)[None]
        return np.minimum(np.searchsorted(ends, points, side="right"), options - 1).astype(np.int64)


def _inclusion(shares: NDArray[np.float64], chosen: int) -> NDArray[np.float64]:
    """Probabilities, at most 1, with which each option is among the `chosen` ones; they add up to `chosen`."""
    probability = np.zeros(len(shares))
    certain = np.zeros(len(shares), bool)
    while True:
        left = chosen - int(certain.sum())
        rest = shares[~certain].sum()
        if left <= 0 or rest <= 0:
            break
        probability = np.where(certain, 1.0, left * shares / rest)
        if not (probability > 1.0).any():
            break
        certain |= probability >= 1.0
    return np.where(certain, 1.0, np.minimum(probability, 1.0))


def policy_of(text: str) -> Policy:
    """The policy `balanced`, `zipf:S` with an exponent, or that of a file with one number per option. Raises InputError."""
    if text == BALANCED:
        return Policy()
    if text.startswith(_ZIPF):
        exponent = _number(text.removeprefix(_ZIPF))
        if exponent is None or exponent < 0:
            raise InputError(f"--values {text}: expected an exponent of at least 0, such as zipf:1.2")
        return Policy(text, exponent)
    try:
        words = Path(text).read_text(encoding="utf-8").replace(",", " ").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--values {text}: no such policy or file ({error}); give balanced, zipf:S or a file") from None
    return Policy(text, weights=_weights(text, words))


def _weights(text: str, words: Sequence[str]) -> tuple[float, ...]:
    numbers = [_number(word) for word in words]
    valid = [number for number in numbers if number is not None and number >= 0]
    if len(valid) != len(words) or not sum(valid):
        raise InputError(f"--values {text}: expected one number of at least 0 per option, separated by spaces, commas or lines")
    return tuple(valid)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
