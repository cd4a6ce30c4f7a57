"""Configurations: every valid one occurs once, as a combination of halves."""

from __future__ import annotations

import numpy as np

from scaleproof.simulator.analysis.planner.estimate import Configurations, every
from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS
from scaleproof.simulator.analysis.planner.space import space
from scaleproof.simulator.scenario.load import load


def found() -> Configurations:
    return every(space(load("megatron-175b-3d-selene", ("batch=768",)), 16))


def written_out(c: Configurations) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """All columns, shape (configurations, columns)."""
    return np.array([getattr(c, name) for name in COLUMNS]).T


def test_each_configuration_occurs_once() -> None:
    rows = written_out(found())

    assert len(np.unique(rows, axis=0)) == len(rows) > 1000


def test_each_configuration_uses_all_ranks_and_all_samples() -> None:
    c = found()

    assert (c.tensor * c.context * c.stages * c.workers == 16).all()
    assert (c.workers * c.microbatches * c.samples == 768).all()


def test_each_configuration_is_a_valid_scenario() -> None:
    c = found()

    for row in np.random.default_rng(0).choice(len(c), 20, replace=False).tolist():
        one = c.scenario(row)
        assert (one.strategy.training_ranks, one.training.zero) == (16, c.zero[row])


def test_columns_without_effect_are_not_varied() -> None:
    c = found()

    alone = c.workers * c.context == 1
    assert not c.zero[alone].any()
    assert not c.bucket[alone | (c.zero == 3)].any()
    assert not c.order[(c.workers == 1) | (c.stages == 1)].any()
    assert (c.chunks[c.stages == 1] == 1).all()
