"""Jitter: the factors drawn for each task, and engines that use the requested sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scaleproof.simulator import engine
from scaleproof.simulator.cluster.perturbations import Tail
from scaleproof.simulator.engine import Variation, replay
from scaleproof.simulator.program import Program
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import compiled

Make = Callable[..., Scenario]
SAMPLES = 20_000
# of the largest of four standard normal numbers (H. A. David, H. N. Nagaraja: Order Statistics, 2003)
LARGEST_OF_FOUR = 1.0294


def alone(small: Make, model_parallel_size: int = 1) -> Program:
    """Ranks that each represent a model-parallel group of the given size."""
    program = compiled(small("strategy={kind: data_parallel, workers: 4}"))
    ranks = program.ranks
    return replace(
        program, ranks=replace(ranks, model_parallel_size=np.full_like(ranks.model_parallel_size, model_parallel_size))
    )


def normal(program: Program, jitter: float) -> np.ndarray:
    """The normal numbers that passes' factors were made of, shape (tasks, samples)."""
    factors = Variation(compute_jitter=jitter, samples=SAMPLES).factors(program, 0)
    own = factors[(factors != 1).any(axis=1)]
    sigma = np.sqrt(np.log1p(jitter**2))
    return np.asarray((np.log(own) + sigma**2 / 2) / sigma)


def test_each_task_of_a_model_parallel_group_takes_its_slowest_draw(small: Make) -> None:
    single, four = normal(alone(small), 0.1), normal(alone(small, model_parallel_size=4), 0.1)
    assert len(four) == len(single) > 1
    np.testing.assert_allclose(single.mean(axis=1), 0.0, atol=0.03)
    np.testing.assert_allclose(four.mean(axis=1), LARGEST_OF_FOUR, atol=0.03)
    # one task's slowest is not another's
    assert abs(np.corrcoef(four[:2])[0, 1]) < 0.03


@pytest.mark.parametrize(("model_parallel_size", "share"), [(1, 0.1), (4, 1 - 0.9**4)])
@pytest.mark.parametrize("each", ["step", "pass"])
def test_only_steps_in_the_tail_take_longer(small: Make, each: str, model_parallel_size: int, share: float) -> None:
    tail = Tail.model_validate({"share": 0.1, "slowdown": 2.0, "each": each})
    program = alone(small, model_parallel_size)
    factors = Variation(tail=tail, samples=SAMPLES).factors(program, 0)
    drawn = factors[(factors != 1).any(axis=1)]
    assert len(drawn)
    assert ((drawn == 1.0) | (drawn >= 2.0)).all()
    np.testing.assert_allclose((drawn >= 2.0).mean(axis=1), share, atol=0.015)


def test_engines_use_the_requested_sample(small: Make) -> None:
    program, variation = alone(small), Variation(compute_jitter=0.2, samples=3, seed=5)
    ends = [engine.simulate(program, 2, variation, sample).end_s for sample in range(3)]
    for sample, end_s in enumerate(ends):
        np.testing.assert_allclose(end_s, replay.simulate(program, 2, variation, sample).end_s)
    assert not np.allclose(ends[0], ends[1])
    assert not np.allclose(ends[1], ends[2])
