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
    return train_in(SingleProcess.of(scenario, bounds_of(notes)), skipped_steps(notes))


def bounds_of(notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Sequence[int]]:
    """The elements at which ranks divide parameters whose parts they update one by one. notes: of ranks, `parts` with names,
    first elements and numbers of elements."""
    bounds: dict[str, set[int]] = {}
    for name, begin, elements in (part for note in notes for part in note.get("parts", ())):
        bounds.setdefault(name, set()).update((begin, begin + elements))
    return {name: sorted(own) for name, own in bounds.items()}


def skipped_steps(notes: Sequence[Mapping[str, Any]]) -> Collection[int]:
    """The numbers of the steps that ranks left out. notes: of ranks, `skipped` by optimizer. Raises ValueError where optimizers
    left out different ones."""
    skipped = {tuple(steps) for note in notes for steps in note.get("skipped", ())}
    if len(skipped) > 1:
        raise ValueError(f"gradients were not finite in other steps on some ranks than on others: {sorted(skipped)}")
    return skipped.pop() if skipped else ()


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
    process.finish()
    return process.parameters()
