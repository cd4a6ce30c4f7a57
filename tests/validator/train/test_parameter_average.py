"""The moving average of parameters is the sum that defines it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scaleproof.validator.train.parameter_average import DECAY, ParameterAverage


def test_each_update_counts_with_its_share() -> None:
    parameter = nn.Parameter(torch.full((2,), 3.0, dtype=torch.float64))
    average = ParameterAverage([parameter], torch.float64)
    updates = [5.0, -1.0, 2.0]
    for value in updates:
        parameter.data.fill_(value)
        average.add()
    assert parameter.tolist() == [updates[-1]] * 2, "training goes on from the parameters"
    average.write()

    shares = [(1 - DECAY) * DECAY ** (len(updates) - 1 - step) for step in range(len(updates))]
    expected = DECAY ** len(updates) * 3.0 + sum(share * value for share, value in zip(shares, updates, strict=True))
    assert parameter.tolist() == pytest.approx([expected] * 2, rel=1e-12)
