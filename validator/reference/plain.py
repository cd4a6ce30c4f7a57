"""The plain rule: every step applies the gradient of the mean loss over the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from simulator.scenario import Scenario
from validator import model
from validator.data import whole_batches
from validator.reference.replica import Replica


def train(scenario: Scenario, notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """The parameters after all steps on one process. Takes memory for one worker's samples at a time."""
    replica = Replica.of(scenario)
    for batch in whole_batches(scenario, replica.steps, torch.device("cpu"), replica.dtype):
        for part in replica.parts(batch):
            loss = model.loss(replica.module(part.inputs), part.targets)
            (loss * (len(part.targets) / scenario.total_samples)).backward()  # type: ignore[no-untyped-call]
        replica.update()
    return replica.parameters()
