"""Loss with scale: all ranks wait for the slowest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.frameworks.framework import Scale, expected_maximum, slowest
from scaleproof.simulator.predict import predict
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.frameworks.scenarios import scenario

SCALE = Scale(device_deviation=0.015, pass_jitter=0.01)


@pytest.mark.parametrize("ranks", [1, 2, 8, 64, 1024])
def test_slowest_rank_factor_equals_the_mean_of_draws(ranks: int) -> None:
    """Mean of the slowest of N ranks over many draws."""
    draws = np.random.default_rng(5)
    most = np.mean([draws.normal(1, SCALE.device_deviation, (500, ranks)).max(axis=1).mean() for _ in range(16)])
    assert slowest(SCALE, ranks, 1) == pytest.approx(most, abs=1e-3)


def test_slowest_rank_factor_grows_with_ranks_and_model_parallel_ranks() -> None:
    counts = (1, 2, 4, 8, 64, 1024, 16384)
    assert slowest(SCALE, 1, 1) == 1
    assert slowest(Scale(), 1024, 8) == 1
    for fewer, more in itertools.pairwise(counts):
        assert expected_maximum(fewer) < expected_maximum(more)
        assert slowest(SCALE, fewer, 1) < slowest(SCALE, more, 1)
        assert slowest(SCALE, 1024, min(fewer, 8)) <= slowest(SCALE, 1024, min(more, 8))


def test_a_run_reports_the_cost_of_the_slowest_rank() -> None:
    """The breakdown has a separate cause: zero without deviations, else the additional compute time of the slowest rank."""
    run, ideal = (predict(scenario(f"framework={name}"), interval=False) for name in ("pytorch-ddp", "ideal"))
    assert ideal.breakdown_s["slowest_rank"] == 0
    longer = slowest(shipped("pytorch-ddp").scale, 8, 1) - 1
    assert run.breakdown_s["slowest_rank"] == pytest.approx(longer * run.breakdown_s["compute"])
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)


def test_asynchronous_ranks_have_no_slowest_rank_cost() -> None:
    servers = "strategy={kind: parameter_server, workers: 4, servers: 4, placement: colocated, mode: asynchronous}"
    assert job_of(scenario(servers)).slowest == 1
    assert job_of(scenario(servers.replace("asynchronous", "synchronous"))).slowest > 1
    assert job_of(scenario("strategy.workers=1")).slowest == 1
