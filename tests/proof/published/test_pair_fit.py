"""Probabilities that one configuration is faster come true as often as they say, for errors of a known distribution."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.proof.published.error_fit import ErrorRow
from scaleproof.proof.published.pair_fit import (
    Configuration,
    curve,
    first_is_faster,
    likeliest_reversed_share,
    pairs_of,
    shared_errors,
    without_other_models,
)
from scaleproof.simulator.uncertainty.error_model import ALL, Fit, PairFit

# Log errors with a standard deviation of 0.2.
FIT = Fit(0.2, {ALL: (1.6449, 1.6449)})


def drawn(sources: int, shared: float, reversed_share: float = 0.0) -> list[Configuration]:
    """Configurations with a share of the variance of their errors in common by source, some of them far off."""
    random = np.random.default_rng(0)
    found = []
    for source in range(sources):
        common = random.normal(0.0, 0.2 * shared**0.5)
        for number in range(12):
            error = common + random.normal(0.0, 0.2 * (1 - shared) ** 0.5)
            if random.uniform() < reversed_share:
                error += random.choice([-4.0, 4.0])
            predicted_s = float(np.exp(random.normal(0.0, 0.3)))
            row = ErrorRow(f"source {source}", ALL, error, 0.0, {})
            system = ("H100", "8")
            found.append(Configuration(row, "gpt", system, (number,), predicted_s, predicted_s * float(np.exp(error))))
    return found


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_the_common_share_is_found_and_probabilities_come_true(shared: float) -> None:
    configurations = drawn(150, shared)
    pairs = pairs_of(configurations)
    found = shared_errors(pairs, configurations, FIT)
    assert found["other degrees"] == pytest.approx(shared, abs=0.08)
    probability = first_is_faster(pairs, configurations, FIT, PairFit(found))
    assert likeliest_reversed_share(probability, pairs) <= 0.01
    points = list(curve(probability, pairs))
    assert len(points) == 10
    for point in points:
        assert point.came_true == pytest.approx(point.predicted, abs=0.07)


def test_pairs_that_are_reversed_for_other_reasons_limit_the_probability() -> None:
    configurations = drawn(100, 0.5, reversed_share=0.1)
    pairs = pairs_of(configurations)
    shared = shared_errors(pairs, configurations, FIT)
    share = likeliest_reversed_share(first_is_faster(pairs, configurations, FIT, PairFit(shared)), pairs)
    assert share > 0.03
    assert first_is_faster(pairs, configurations, FIT, PairFit(shared, share)).max() <= 1 - share


def test_pairs_are_of_one_source_device_and_number_of_gpus() -> None:
    configurations = drawn(2, 0.5)[:13]
    assert len(pairs_of(configurations).first) == 12 * 11 / 2, "the last one is of another source"
    other = [configurations[0], configurations[1]._replace(system=("H100", "16"))]
    assert len(pairs_of(other).first) == 0
    models = pairs_of([configurations[0], configurations[1]._replace(model="bert")])
    assert (len(models.first), len(without_other_models(models).first)) == (1, 0)
