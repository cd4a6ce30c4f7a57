"""Whether the state was right after all changes: parameters and losses are compared with those of one process.

The process trains on the same batches, which depend on the number of hosts at each step if samples per worker are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaleproof.proof.elastic.events.measured_timeline import groups
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.records import LoggedEvent
from scaleproof.simulator.analysis.elastic.outcome import StateCheck
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.verify.verify import LONGEST_S, deviation_of, tolerance_of


def check_state(job: Job, events: Sequence[LoggedEvent]) -> StateCheck:
    """Compares the end of a run with one process that takes the same steps. Raises RankError where that process fails."""
    sizes = _sizes(job, events)
    losses = _losses(job, events)
    (found,) = run_on_ranks(follow_here, 1, job, sizes, timeout_s=max(job.patience_s, LONGEST_S))
    expected: list[float] = found["losses"]
    loss_deviation = max(abs(one / other - 1.0) for one, other in zip(losses, expected, strict=True))
    training = job.scenario.strategy.training_ranks
    digests = {event.digest for event in events if event.what == "ended" and event.rank < training}
    return StateCheck(
        equal=len(digests) == 1,
        deviation=found["deviation"],
        tolerance=tolerance_of(job.scenario),
        loss_deviation=loss_deviation,
        losses=tuple(losses),
    )


def follow_here(job: Job, sizes: Sequence[int]) -> dict[str, Any]:
    """Trains in this process, where step i has the batch of `sizes[i]` ranks. Returns the losses of all steps, and the
    deviation of the parameters that ranks left in the job's folder."""
    import torch

    from scaleproof.validator.train.data import share_of, whole_batches
    from scaleproof.validator.verify.reference.single_process import SingleProcess

    process = SingleProcess.of(job.scenario)
    losses = []
    for step, ranks in enumerate(sizes):
        scenario = job.by_ranks[ranks]
        (batch,) = whole_batches(scenario, [step], torch.device("cpu"), process.dtype)
        mean = 0.0
        for worker in range(scenario.strategy.workers):
            part = batch.part(share_of(scenario, worker))
            loss = process.loss(part) * (len(part.targets) / scenario.total_samples)
            loss.backward()  # type: ignore[no-untyped-call]
            mean += float(loss.detach())
        process.update()
        losses.append(mean)
    left = job.by_ranks[sizes[-1]]
    return {"losses": losses, "deviation": deviation_of(left, job.folder, process.parameters())}


def _sizes(job: Job, events: Sequence[LoggedEvent]) -> list[int]:
    """Number of ranks at each step; that of the last group where a step was taken again."""
    by_step: dict[int, int] = {}
    for group in groups(events):
        by_step |= dict.fromkeys(group.ends_s, len(group.hosts))
    return [by_step[step] for step in range(1, job.steps + 1)]


def _losses(job: Job, events: Sequence[LoggedEvent]) -> list[float]:
    """The mean loss of each step over all ranks of the last group that took it."""
    parts: dict[int, Mapping[int, float]] = {}
    for group in groups(events):
        for step, end_s in group.ends_s.items():
            own = [one for one in events if one.what == "step" and one.step == step and group.ready_s <= one.at_s <= end_s]
            parts[step] = {one.host: one.loss for one in own}
    return [sum(parts[step].values()) for step in range(1, job.steps + 1)]
