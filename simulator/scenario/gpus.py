"""Scenarios on another number of GPUs: the global batch and the division of the model stay, the number of workers changes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.fields import differences
from scaleproof.simulator.scenario.schema import Batch, Scenario
from scaleproof.simulator.strategy import Strategy

# Fields that `with_gpus` changes, in the order in which they are reported.
_CHANGED: Final = ("strategy.workers", "strategy.microbatches", "cluster.nodes")
# Number of GPU counts below and above that are tried for the hint of an error.
_MOST_TRIED: Final = 50


def with_gpus(scenario: Scenario, gpus: int) -> Scenario:
    """The scenario on `gpus` GPUs.

    The global batch, the samples of a microbatch and the tensor-, context- and pipeline-parallel degrees stay. The number of
    workers (data-parallel degree), the number of microbatches (gradient accumulation) and, where the cluster has too few nodes,
    their number change. Parameter servers are not counted as GPUs. `gpus_note` reports the changes.

    Raises InputError, which names the nearest numbers of GPUs that are possible.
    """
    if gpus == scenario.strategy.training_ranks:
        return scenario
    try:
        return _changed(scenario, gpus)
    except InputError as error:
        possible = " and ".join(f"{count:,}" for count in _nearest(scenario, gpus))
        hint = f"; nearest possible: {possible} GPUs" if possible else ""
        raise InputError(f"{gpus:,} GPUs: {error}{hint}") from None


def gpus_note(before: Scenario, after: Scenario) -> str:
    """What `with_gpus` changed, such as '64 GPUs: strategy.workers 8 (was 4), cluster.nodes 8 (was 4)'; "" if nothing."""
    by_field = {change.field: change for change in differences(before, after)}
    changes = [f"{field} {by_field[field].b} (was {by_field[field].a})" for field in _CHANGED if field in by_field]
    if not changes:
        return ""
    added = after.cluster.nodes - before.cluster.nodes
    name = before.cluster.name or "the cluster"
    grown = f"; {name} has {before.cluster.devices:,} GPUs, {added:,} nodes are added" if added else ""
    return f"{after.strategy.training_ranks:,} GPUs: {', '.join(changes)}{grown}"


def _changed(scenario: Scenario, gpus: int) -> Scenario:
    """The scenario on `gpus` GPUs. Raises InputError where that is not possible."""
    strategy = scenario.strategy
    per_worker = _gpus_per_worker(strategy)
    if gpus % per_worker:
        raise InputError(f"not a multiple of the {per_worker} GPUs of a worker ({_degrees(strategy)})")
    workers, total = gpus // per_worker, scenario.total_samples
    if total % workers:
        message = f"{workers:,} workers do not divide the global batch of {total:,} samples"
        raise InputError(f"{message}; give another number, or set batch.total={_near(total, workers)}")
    update: dict[str, Any] = {"workers_": workers}
    if strategy.microbatches > 1 and "microbatches_" in type(strategy).model_fields:
        update["microbatches_"] = _microbatches(scenario, workers)
    changed = strategy.model_copy(update=update)
    cluster = scenario.cluster.with_nodes(changed.nodes_needed(scenario.cluster))
    return scenario.rebuilt(strategy=changed, cluster=cluster, batch=Batch(total=total))


def _gpus_per_worker(strategy: Strategy) -> int:
    """Number of GPUs of a worker. Raises InputError for strategies whose number of workers is fixed."""
    if "workers_" not in type(strategy).model_fields:
        message = (
            f"a {strategy.kind} is one worker on {strategy.training_ranks} GPUs; set strategy.kind=hybrid for several "
            "workers of that many stages, or change strategy.stages"
        )
        raise InputError(message)
    return strategy.training_ranks // strategy.workers


def _microbatches(scenario: Scenario, workers: int) -> int:
    """Number of microbatches of each of `workers` workers, of as many samples as before. Raises InputError."""
    size = scenario.samples_per_worker // scenario.strategy.microbatches
    samples = scenario.total_samples // workers
    if samples % size:
        raise InputError(f"{samples:,} samples per worker are not a multiple of the micro-batch of {size:,}")
    return samples // size


def _degrees(strategy: Strategy) -> str:
    """The degrees of parallelism inside a worker, such as 'tensor 8 × stages 4'."""
    plan = strategy.plan
    degrees = {"tensor": plan.tensor, "context": plan.context, "stages": plan.stages}
    return " × ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)


def _near(total: int, workers: int) -> int:
    """The multiple of `workers` that is nearest to `total`."""
    return max(1, round(total / workers)) * workers


def _nearest(scenario: Scenario, gpus: int) -> list[int]:
    """The largest possible number of GPUs below `gpus`, and the smallest above it."""
    if "workers_" not in type(scenario.strategy).model_fields:
        return []
    per_worker = scenario.strategy.training_ranks // scenario.strategy.workers
    counts = [workers * per_worker for workers in _divisors(scenario.total_samples)]
    below = _first_possible(scenario, (count for count in reversed(counts) if count < gpus))
    above = _first_possible(scenario, (count for count in counts if count > gpus))
    return [*below, *above]


def _first_possible(scenario: Scenario, counts: Iterable[int]) -> list[int]:
    """The first of the first numbers of GPUs on which the scenario can be trained, in a list; an empty one if there is none."""
    for _, count in zip(range(_MOST_TRIED), counts, strict=False):
        try:
            _changed(scenario, count)
        except InputError:
            continue
        return [count]
    return []


def _divisors(number: int) -> list[int]:
    """All divisors of a number, in ascending order."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
