"""The plain rule: every step applies the gradient of the mean loss over the whole batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.data import whole_batches
from scaleproof.validator.verify.reference.single_process import SingleProcess


def train(scenario: Scenario, notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """The parameters after all steps in one process. Needs memory for the samples of one worker at a time."""
    return train_in(SingleProcess.of(scenario), notes[0].get("skipped", ()) if notes else ())


def train_in(process: SingleProcess, skipped: Collection[int] = ()) -> Mapping[str, Tensor]:
    """The same for a process whose model has been prepared. skipped: numbers of steps that ranks did not apply."""
    scenario = process.scenario
    for step, batch in enumerate(whole_batches(scenario, process.steps, torch.device("cpu"), process.dtype)):
        if step in skipped:
            continue
        for part in process.parts(batch):
            loss = process.loss(part)
            (loss * (len(part.targets) / scenario.total_samples)).backward()  # type: ignore[no-untyped-call]
        process.update()
    return process.parameters()
