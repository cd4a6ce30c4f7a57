from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.fit.choice import ALPHA_BETA, LOGGP, MODELS, PIECEWISE, choose
from scaleproof.validator.calibration.fit.shapes import MeasuredRows

SIZES = np.array([4.0**k for k in range(1, 13)])
TRIALS = 20


def alpha_beta(sizes: np.ndarray) -> np.ndarray:
    return 2e-5 + sizes * 1e-9


def jump(sizes: np.ndarray) -> np.ndarray:
    return alpha_beta(sizes) + np.where(sizes > 2000, 6e-5, 0)


def other_rate(sizes: np.ndarray) -> np.ndarray:
    return 2e-5 + np.minimum(sizes, 20_000) * 4e-9 + np.maximum(0, sizes - 20_000) * 1e-9


def drawn(law: Callable[[np.ndarray], np.ndarray], seed: int, noise: float = 0.02) -> MeasuredRows:
    """Median message times by this law."""
    seconds = law(SIZES) * np.exp(np.random.default_rng(seed).normal(0, noise, len(SIZES)))
    return MeasuredRows(np.arange(len(SIZES)), SIZES, seconds, np.zeros(len(SIZES), dtype=bool))


def with_stream(overhead_s: float, seed: int) -> MeasuredRows:
    """One-way times, and times per message of a stream, at the same sizes."""
    moving = np.maximum(overhead_s, SIZES * 1e-9)
    seconds = np.concatenate([2e-5 + moving, moving]) * np.exp(np.random.default_rng(seed).normal(0, 0.02, 2 * len(SIZES)))
    streamed = np.repeat([False, True], len(SIZES))
    return MeasuredRows(np.tile(np.arange(len(SIZES)), 2), np.tile(SIZES, 2), seconds, streamed)


def times_chosen(model: str, law: Callable[[np.ndarray], np.ndarray]) -> int:
    return sum(choose(drawn(law, seed), MODELS, "messages")[0].model == model for seed in range(TRIALS))


def test_a_linear_curve_selects_the_linear_model() -> None:
    assert times_chosen(ALPHA_BETA, alpha_beta) >= 0.85 * TRIALS


@pytest.mark.parametrize("law", [jump, other_rate])
def test_a_change_of_protocol_selects_the_piecewise_model(law: Callable[[np.ndarray], np.ndarray]) -> None:
    assert times_chosen(PIECEWISE, law) >= 0.85 * TRIALS


def test_overhead_is_identified_only_with_streams() -> None:
    chosen, errors = choose(with_stream(1e-5, 1), MODELS, "messages")
    assert chosen.model == LOGGP
    assert errors[LOGGP] < errors[ALPHA_BETA]
    _, without = choose(drawn(alpha_beta, 1), MODELS, "messages")
    assert LOGGP not in without


def test_an_outlier_size_does_not_select_the_piecewise_model() -> None:
    rows = drawn(alpha_beta, 4)
    rows.seconds[5] *= 4
    assert choose(rows, MODELS, "messages")[0].model == ALPHA_BETA


def test_too_few_sizes_for_a_model_are_rejected() -> None:
    with pytest.raises(InputError, match="messages: too few sizes to fit loggp; allow alpha_beta"):
        choose(drawn(alpha_beta, 0), [LOGGP], "messages")
