"""Loss of each update of the parameters in asynchronous training, where workers have no common steps.

Workers record the loss of each of their steps, and servers the order in which pushes were applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.async_run import is_asynchronous
from scaleproof.validator.record.steps import warmup_steps

# For each worker of a pusher, by the number of its step: the part of its samples in a mean over all workers.
Losses = Sequence[Mapping[str, float]]


def by_update(scenario: Scenario, outcomes: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Mean loss over the samples of each update, at the parameters with which their gradients were computed.

    Updates after the warm-up of the first server's first bucket count. Empty where all workers take the same steps. outcomes:
    the `scaleproof.validator.strategy.train.RankOutcome` of all ranks.
    """
    strategy = scenario.strategy
    if not is_asynchronous(scenario):
        return ()
    assert isinstance(strategy, ParameterServer)
    groups = strategy.pushers(scenario.cluster.node.devices)
    pushers = [[outcomes[worker]["losses"] for worker in workers] for workers in groups]
    logs: list[list[tuple[str, int, int]]] = [outcome["notes"]["log"] for outcome in outcomes[strategy.workers :]]
    log = next(filter(None, logs), [])
    first_bucket = [(action, pusher) for action, bucket, pusher in log if bucket == log[0][1]]
    return tuple(_means(first_bucket, pushers, warmup_steps(scenario)))


def _means(log: Sequence[tuple[str, int]], pushers: Sequence[Losses], warmup: int) -> Iterator[float]:
    """Mean loss of each update in a log. log: a server's actions for one bucket, and the pusher of each."""
    workers, pushed = sum(map(len, pushers)), [0] * len(pushers)
    since_last: list[float] = []
    for action, pusher in log:
        if action in ("update", "skip"):
            if since_last:
                yield sum(since_last) / len(since_last)
            since_last = []
        elif action in ("add", "drop"):
            pushed[pusher] += 1
            step = str(pushed[pusher] - warmup)
            if action == "add":
                since_last += [losses[step] * workers for losses in pushers[pusher] if step in losses]
