"""Mixtures of experts have the simulator's tensors, and combine expert outputs by weight."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from scaleproof.simulator.model.transformer.experts import Experts
from scaleproof.validator.train.models.mixture import Mixture


def mixture_of(active: int) -> Mixture:
    torch.manual_seed(0)
    return Mixture(16, Experts(count=4, active=active, feedforward=24)).double()


def tokens_of(count: int) -> torch.Tensor:
    return torch.randn(2, count, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_with_all_experts_active_the_output_is_the_weighted_sum() -> None:
    mixture, x = mixture_of(active=4), tokens_of(5)
    weights = functional.softmax(mixture.router(x), -1)

    expected = sum(weights[..., number, None] * expert(x) for number, expert in enumerate(mixture.experts.values()))

    assert torch.allclose(mixture(x), expected, rtol=1e-12)


def test_each_token_uses_its_highest_weighted_experts() -> None:
    mixture, x = mixture_of(active=2), tokens_of(5)
    weights = functional.softmax(mixture.router(x), -1)
    kept = weights.masked_fill(weights < weights.topk(2).values[..., -1:], 0.0)

    expected = sum(kept[..., number, None] * expert(x) for number, expert in enumerate(mixture.experts.values()))

    assert torch.allclose(mixture(x), expected, rtol=1e-12)


def test_a_sufficient_capacity_drops_no_token() -> None:
    mixture, x = mixture_of(active=2), tokens_of(5)
    expected = mixture(x)
    # a token goes to an expert once, so that no expert gets more than all tokens, twice an even share
    mixture.capacity = 2.0

    assert torch.allclose(mixture(x), expected, rtol=1e-12)


def test_experts_drop_the_last_tokens_beyond_their_capacity() -> None:
    mixture, x = mixture_of(active=1), tokens_of(8)
    mixture.capacity = 0.5
    chosen = mixture.router(x).flatten(0, -2).argmax(-1).tolist()

    processed = (mixture(x).flatten(0, -2) != 0).any(-1).tolist()

    # of 16 tokens an even share is 4, and the capacity half of it
    earlier = [chosen[:place].count(expert) for place, expert in enumerate(chosen)]
    assert processed == [count < 2 for count in earlier]
    assert not all(processed)


@pytest.mark.parametrize("tokens", [0, 1])
def test_unused_experts_have_zero_gradients(tokens: int) -> None:
    mixture = mixture_of(active=1)

    mixture(tokens_of(1)[:1, :tokens]).sum().backward()

    norms = [float(parameter.grad.norm()) for parameter in mixture.parameters() if parameter.grad is not None]
    # of the router and of both products of the expert that the token goes to
    assert (len(norms), sum(norm > 0 for norm in norms)) == (9, 3 * tokens)
