"""Tokens of the fullest rank's experts by the distribution of tokens, and their cost."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.model.transformer.experts import (
    Dirichlet,
    Distribution,
    Experts,
    Multinomial,
    Zipf,
    fullest_loads,
)
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model

UNEVEN: tuple[tuple[Distribution, ...], ...] = (
    tuple(Zipf(exponent=exponent) for exponent in (0, 0.1, 0.3, 0.6, 1, 2)),
    tuple(Dirichlet(concentration=concentration) for concentration in (1e5, 100, 10, 2, 0.5, 0.1)),
    tuple(Multinomial(tokens=tokens) for tokens in (10**8, 10**6, 10**5, 10**4, 10**3)),
)


def room(distribution: Distribution, count: int, active: int, ranks: int) -> float:
    loads = fullest_loads(distribution, count, active, ranks)
    return sum(loads) / len(loads)


@pytest.mark.parametrize("kinds", UNEVEN, ids=lambda kinds: kinds[0].kind)
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_more_unequal_tokens_fill_the_fullest_rank_more(kinds: tuple[Distribution, ...], ranks: int) -> None:
    rooms = [room(kind, 64, 4, ranks) for kind in kinds]
    assert rooms[0] == pytest.approx(1, abs=0.02)
    assert rooms == sorted(rooms)
    assert rooms[-1] > 1.01
    assert rooms[-1] <= 64 / 4


@given(st.floats(0.05, 100), st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=20)
def test_a_single_rank_gets_all_tokens(concentration: float, active: int) -> None:
    """However its experts share them, the fullest first."""
    loads = fullest_loads(Dirichlet(concentration=concentration), 16, active, 1)
    assert sum(loads) == pytest.approx(16)
    assert list(loads) == sorted(loads, reverse=True)
    assert max(loads) <= 16 / active + 1e-9, "a token goes to an expert once"


@pytest.mark.parametrize("concentration", [0.7, 2, 8, 50])
@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_dirichlet_shares_are_those_of_gamma_variates(concentration: float, ranks: int) -> None:
    """The largest of n gamma variates of shape a over their mean: ∫ (1 − F(x)ⁿ) dx / a, whatever they add up to."""
    shape = concentration * 32 / ranks
    # x = e^u, in which the density has no pole
    u = np.linspace(-60, np.log(shape + 60 * np.sqrt(shape) + 60), 400_001)
    density = np.exp(shape * u - np.exp(u) - math.lgamma(shape))
    below = np.cumsum(density) * (u[1] - u[0])
    largest = np.trapezoid((1 - np.minimum(1, below) ** ranks) * np.exp(u), u)
    assert room(Dirichlet(concentration=concentration), 32, 1, ranks) == pytest.approx(largest / shape, rel=0.02)


@pytest.mark.parametrize("tokens", [1000, 10_000, 100_000])
def test_random_routing_alone_leaves_one_of_two_ranks_fuller(tokens: int) -> None:
    """Of n choices the fuller half has n / 2 + E|B − n/2|, and the mean deviation of a binomial is √(n / 2π)."""
    n = 2 * tokens
    assert room(Multinomial(tokens=tokens), 8, 2, 2) - 1 == pytest.approx(2 / n * math.sqrt(n / (2 * math.pi)), rel=0.05)


def test_zipf_loads_equal_expert_popularities_with_one_expert_per_rank() -> None:
    """The most popular of 16 experts is alone on the fullest of 16 ranks: 16 / H(16)."""
    harmonic = sum(1 / number for number in range(1, 17))
    assert room(Zipf(exponent=1), 16, 1, 16) == pytest.approx(16 / harmonic)
    # a token of three experts is sent to the most popular once
    assert room(Zipf(exponent=10), 16, 3, 16) == pytest.approx(16 / 3)


def unequal(expert: int) -> list[Run]:
    kinds = [f"{{kind: zipf, exponent: {exponent}}}" for exponent in (0, 0.2, 0.5, 1)]
    more = [(f"strategy.expert={expert}", f"model.experts.imbalance={kind}") for kind in kinds]
    return [predict(load("mixtral-8x7b-experts-h100", overrides)) for overrides in more]


@pytest.mark.parametrize("expert", [4, 8])
def test_steps_take_longer_the_more_unequal_tokens_are(expert: int) -> None:
    for less, worse in itertools.pairwise(unequal(expert)):
        assert less.step_time_s < worse.step_time_s
        assert worse.model_flops == less.model_flops


def test_what_balances_experts_stands_for_a_distribution() -> None:
    """The fullest of 64 experts has 1.52 times the mean load with an auxiliary loss, 1.12 times with biases."""
    for balancing, fullest in (("auxiliary_loss", 1.52), ("bias", 1.12)):
        experts = Experts(count=64, active=6, feedforward=64, imbalance=balancing)
        assert experts.load_factor(64) == pytest.approx(fullest, rel=0.01)
        assert experts.load_factor(1) == 1
        assert experts.load_factor(8) < fullest
        assert experts.model_copy(update={"capacity": 1.25}).load_factor(8) == 1.25


@pytest.mark.parametrize(("name", "balancing"), [("mixtral-8x7b", "auxiliary_loss"), ("deepseek-v3", "bias")])
def test_models_that_ship_say_what_balances_them(name: str, balancing: str) -> None:
    experts = load_model(name).model_dump()["experts"]
    assert experts["imbalance"] == balancing
    load(name, ("cluster=dgx-h100", "batch=64", "strategy.workers=8", "model.layers=4", "model.experts.capacity=1.25"))


REFUSED = {
    "0.5": "imbalance: must be at least 1.0, got 0.5",
    "{kind: pareto}": "imbalance: unknown kind 'pareto'; give one of zipf, dirichlet, multinomial",
    "{exponent: 1}": "imbalance: missing 'kind'; give one of zipf, dirichlet, multinomial",
    "{kind: zipf}": "imbalance.exponent: missing; add it",
    "{kind: dirichlet, concentration: 0}": "imbalance.concentration: must be greater than 0.0, got 0",
    "{kind: multinomial, tokens: 0}": "imbalance.tokens: must be at least 1, got 0",
}


@pytest.mark.parametrize("imbalance", REFUSED)
def test_invalid_distributions_are_rejected(imbalance: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(f"model.experts.{REFUSED[imbalance]}")):
        load("mixtral-8x7b-experts-h100", (f"model.experts.imbalance={imbalance}",))


def test_expert_capacity_rejects_imbalance() -> None:
    overrides = ("model.experts.capacity=1.25", "model.experts.imbalance={kind: zipf, exponent: 1}")
    with pytest.raises(ScenarioError, match="imbalance: with a capacity"):
        load("mixtral-8x7b-experts-h100", overrides)
