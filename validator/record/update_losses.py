"""Update losses: the loss of each update of the parameters, where workers go each on its own and no step is everybody's.

A worker knows the loss of each of its steps, a server the order in which pushes came into the parameters: both together tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.validator.record.async_run import goes_alone
from scaleproof.validator.train.steps import warmup_steps

# Of each worker of a crew, by the number of its step: what its samples add to a mean over all workers.
Losses = Sequence[Mapping[str, float]]


def by_update(scenario: Scenario, outcomes: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Mean over the samples that an update comes from, as it was when their gradients were computed; of updates after the
    warm-up's, as the first server made them of its first bucket. Nothing where all workers take the same steps.

    outcomes: of all ranks, as `scaleproof.validator.train.train.Outcome` has them.
    """
    strategy = scenario.strategy
    if not goes_alone(scenario):
        return ()
    assert isinstance(strategy, ParameterServer)
    size = scenario.cluster.node.devices if strategy.two_level else 1
    losses = [told["losses"] for told in outcomes[: strategy.workers]]
    crews = [losses[first : first + size] for first in range(0, strategy.workers, size)]
    logs: list[list[tuple[str, int, int]]] = [told["notes"]["log"] for told in outcomes[strategy.workers :]]
    log = next(filter(None, logs), [])
    return tuple(_means([(what, crew) for what, bucket, crew in log if bucket == log[0][1]], crews, warmup_steps(scenario)))


def _means(log: Sequence[tuple[str, int]], crews: Sequence[Losses], warmup: int) -> Iterator[float]:
    """log: what a server did with the pushes of a bucket, and whose they were."""
    workers, pushed = sum(map(len, crews)), [0] * len(crews)
    since_last: list[float] = []
    for what, crew in log:
        if what == "update":
            if since_last:
                yield sum(since_last) / len(since_last)
            since_last = []
        elif what in ("add", "drop"):
            pushed[crew] += 1
            step = str(pushed[crew] - warmup)
            if what == "add":
                since_last += [losses[step] * workers for losses in crews[crew] if step in losses]
