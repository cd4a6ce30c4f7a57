"""Contradictions between what a log or trace reports of its job and what the scenario describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.jobs.log_formats import Fact
from scaleproof.validator.reconciliation.jobs.logs import JobLog

_WORDS: Final[dict[Fact, str]] = {
    "global_batch": "a global batch of {} sequences",
    "gpus": "{} GPUs",
    "sequence": "sequences of {} tokens",
    "tensor": "tensor parallelism over {}",
    "stages": "{} pipeline stages",
    "context": "context parallelism over {}",
}
_RANKS_CURE: Final = "add --set gpus={}"


def check(log: JobLog, scenario: Scenario) -> None:
    """Raises InputError for the first fact of a log that contradicts the scenario."""
    for fact, described, cure in _described(scenario):
        reported = log.facts.get(fact)
        if reported is not None and reported.value != described:
            words = _WORDS[fact].format(reported.value)
            fix = cure.format(reported.value)
            raise InputError(f"{reported.place}: the job has {words}, {scenario.name} describes {described}; {fix}")


def check_world(world: int, place: str, scenario: Scenario) -> None:
    """Raises InputError if a trace's number of ranks contradicts the scenario."""
    ranks = scenario.strategy.training_ranks
    if world not in (0, ranks):
        cure = _RANKS_CURE.format(world)
        raise InputError(f"{place}: the job has {world} ranks, {scenario.name} describes {ranks}; {cure}")


def _described(scenario: Scenario) -> Iterator[tuple[Fact, int, str]]:
    """Facts in the order of checking: value in the scenario, and what to change if it is another."""
    plan = scenario.strategy.plan
    # degrees first: the number of GPUs follows from them
    yield "tensor", plan.tensor, "set strategy.tensor={}"
    yield "stages", scenario.strategy.stages, "set strategy.stages={}"
    yield "context", plan.context, "set strategy.context={}"
    yield "gpus", scenario.strategy.training_ranks, _RANKS_CURE
    cure = (
        "add --set batch.total={}" if scenario.batch.total is not None else "give batch.total={} in place of batch.per_worker"
    )
    yield "global_batch", scenario.total_samples, cure
    sequence: int | None = getattr(scenario.model, "sequence", None)
    if sequence is not None:
        yield "sequence", sequence, "add --set model.sequence={}"
