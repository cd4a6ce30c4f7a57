"""Scenarios on another number of GPUs: the global batch and the division of the model stay, the number of workers changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from pydantic import ConfigDict

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import counted
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.scenario.fields import differences
from scaleproof.simulator.scenario.read import validated
from scaleproof.simulator.scenario.schema import AnyStrategy, Scenario
from scaleproof.simulator.scenario.training import Batch

# Fields that depend on the number of GPUs, in the order in which changes are reported.
_CHANGED: Final = ("strategy.workers", "strategy.microbatches", "cluster.nodes")
# Maximum number of GPU counts below, and above, that are tried for the hint of an error.
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
    parts = _Parts.model_construct(strategy=scenario.strategy, cluster=scenario.cluster, batch=scenario.batch)
    return _built(parts, gpus, lambda number: scenario.rebuilt(**parts.on(number)))


def read_with_gpus(located: Located, gpus: int, fixed: Collection[str] = ()) -> Scenario:
    """The scenario of YAML on `gpus` GPUs, as from `with_gpus`. It need not be valid on the number of GPUs that the YAML gives.

    fixed: fields that stay as the YAML gives them, where `with_gpus` would change them: strategy.workers,
    strategy.microbatches, batch.per_worker. Raises InputError.
    """
    try:
        parts = validated(_Parts, located).model_copy(update={"fixed": frozenset(fixed)})
    except ScenarioError:
        # reports the problems of all parts
        return validated(Scenario, located)
    if "strategy.workers" in fixed and gpus != parts.strategy.training_ranks:
        given = f"{parts.strategy.workers:,} workers of {parts.gpus_per_worker:,}"
        raise InputError(f"{gpus:,} GPUs contradict strategy.workers, which is also given ({given}); leave out one of both")
    return _built(parts, gpus, lambda number: validated(Scenario, Located(located.data | parts.on(number), located.places)))


def gpus_note(before: Scenario | None, after: Scenario) -> str:
    """What `with_gpus` changed, such as '64 GPUs: strategy.workers 8 (was 4), cluster.nodes 8 (was 4)'; "" if nothing.

    before: None if the scenario was not valid before.
    """
    gpus = f"{after.strategy.training_ranks:,} GPUs"
    if before is None:
        return f"{gpus}: strategy.workers {after.strategy.workers:,}, cluster.nodes {after.cluster.nodes:,}"
    by_field = {change.field: change for change in differences(before, after)}
    changes = [f"{field} {by_field[field].b} (was {by_field[field].a})" for field in _CHANGED if field in by_field]
    if before.total_samples != after.total_samples:
        changes.append(f"global batch {after.total_samples:,} (was {before.total_samples:,})")
    if not changes:
        return ""
    added = after.cluster.nodes - before.cluster.nodes
    name = before.cluster.name or "the cluster"
    are = "is" if added == 1 else "are"
    grown = f"; {name} has {counted(before.cluster.devices, 'GPU')}, {counted(added, 'node')} {are} added" if added else ""
    return f"{gpus}: {', '.join(changes)}{grown}"


class _Parts(Spec):
    """The parts of a scenario that depend on the number of GPUs."""

    model_config = ConfigDict(extra="ignore")

    cluster: Cluster
    strategy: AnyStrategy
    batch: Batch
    fixed: frozenset[str] = frozenset()

    @property
    def total_samples(self) -> int:
        """Samples per step, over all workers."""
        return self.batch.total or (self.batch.per_worker or 1) * self.strategy.workers

    @property
    def gpus_per_worker(self) -> int:
        """Number of GPUs of a worker."""
        return self.strategy.training_ranks // self.strategy.workers

    def on(self, gpus: int) -> dict[str, Any]:
        """The parts on `gpus` GPUs, by name. Raises InputError where that is not possible."""
        strategy, total, per_worker, plan = self.strategy, self.total_samples, self.gpus_per_worker, self.strategy.plan
        if gpus != strategy.training_ranks and not _has_workers(strategy):
            raise InputError(
                f"a {strategy.kind} is one worker on {strategy.training_ranks} GPUs; set strategy.kind=hybrid for several "
                "workers of that many stages, or change strategy.stages"
            )
        if gpus % per_worker:
            degrees = {"tensor": plan.tensor, "context": plan.context, "stages": plan.stages}
            text = " × ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
            raise InputError(f"not a multiple of the {per_worker} GPUs of a worker ({text})")
        workers = gpus // per_worker
        if "batch.per_worker" in self.fixed:
            total = (self.batch.per_worker or 1) * workers
        elif strategy.fixed_samples is not None and "batch.total" not in self.fixed:
            total = strategy.fixed_samples * workers
        if total % workers:
            message = f"{workers:,} workers do not divide the global batch of {total:,} samples"
            near = max(1, round(total / workers)) * workers
            raise InputError(f"{message}; give another number, or set batch.total={near}")
        update: dict[str, Any] = {"workers": workers} if workers != strategy.workers else {}
        follow = "strategy.microbatches" in self.fixed or getattr(strategy, "micro_batch_size", None) is not None
        if strategy.microbatches > 1 and not follow:
            update["microbatches"] = self._microbatches(total // workers)
        changed = strategy.model_copy(update=update)
        nodes = changed.nodes_needed(self.cluster)
        return {
            "strategy": changed,
            "cluster": self.cluster.with_nodes(nodes),
            "batch": self.batch.with_total(total),
        }

    def _microbatches(self, samples: int) -> int:
        """Number of microbatches of a worker with `samples` samples, of the same size as before. Raises InputError."""
        size, rest = divmod(self.total_samples, self.strategy.workers * self.strategy.microbatches)
        if rest or size == 0:
            # the given microbatches do not divide the batch, which validation reports
            return self.strategy.microbatches
        if samples % size:
            raise InputError(f"{samples:,} samples per worker are not a multiple of the micro-batch of {size:,}")
        return samples // size


def _has_workers(strategy: Strategy) -> bool:
    """Whether the number of workers can be changed."""
    return "workers" in type(strategy).model_fields


def _built(parts: _Parts, gpus: int, build: Callable[[int], Scenario]) -> Scenario:
    """The scenario that `build` makes on `gpus` GPUs. Raises InputError with the nearest numbers on which it makes one."""
    try:
        return build(gpus)
    except InputError as error:
        total, most = parts.total_samples, math.isqrt(parts.total_samples) if _has_workers(parts.strategy) else 0
        small = [divisor for divisor in range(1, most + 1) if total % divisor == 0]
        counts = sorted({workers * parts.gpus_per_worker for divisor in small for workers in (divisor, total // divisor)})
        below = _first_possible((count for count in reversed(counts) if count < gpus), build)
        above = _first_possible((count for count in counts if count > gpus), build)
        possible = " and ".join(f"{count:,}" for count in (*below, *above))
        hint = f"; nearest possible: {possible} GPUs" if possible else ""
        raise InputError(f"{gpus:,} GPUs: {error}{hint}") from None


def _first_possible(counts: Iterable[int], build: Callable[[int], Scenario]) -> list[int]:
    """The first possible number of GPUs among the first ones, in a list; an empty list if all are impossible."""
    for count in islice(counts, _MOST_TRIED):
        with suppress(InputError):
            build(count)
            return [count]
    return []
