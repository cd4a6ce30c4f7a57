"""Layouts of a scenario's model on the same GPUs and with the same global batch, and the settings that lead to them."""

from __future__ import annotations

from typing import Any, Final

from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.yaml_file import on_one_line
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.framework_choice import DECIDED
from scaleproof.simulator.scenario.schema import Scenario

# parts of a scenario whose fields a layout or a plan changes
_PARTS: Final = ("strategy", "training")


def rearranged(scenario: Scenario, strategy: Strategy, micro_batch: int | None = None) -> Scenario:
    """The scenario with a strategy whose workers and microbatches follow from the scenario's GPUs and global batch.

    micro_batch: samples of a microbatch; the scenario's if None, and the nearest smaller divisor where it does not divide.
    Raises InputError where the GPUs, the batch or the model cannot be divided.
    """
    gpus, samples = scenario.strategy.training_ranks, scenario.total_samples
    per_worker = strategy.training_ranks // strategy.workers
    fields = type(strategy).model_fields
    update: dict[str, Any] = {}
    if "workers" in fields:
        if gpus % per_worker:
            raise InputError(f"{gpus:,} GPUs are not a multiple of {per_worker:,}")
        update["workers"] = gpus // per_worker
    elif per_worker != gpus:
        raise InputError(f"it uses {per_worker:,} GPUs, not {gpus:,}")
    workers = update.get("workers", 1)
    if samples % workers:
        raise BatchError(f"DP {workers:,} does not divide the global batch of {samples:,}", nearest_batch(samples, workers))
    if "microbatches" in fields:
        update["microbatches"] = _microbatches(samples // workers, micro_batch or micro_batch_size(scenario))
        update["micro_batch_size"] = None
    changed = scenario.copied(strategy=strategy.model_copy(update=update), batch=scenario.batch.with_total(samples))
    check(changed)
    return changed


class BatchError(InputError):
    """The global batch cannot be divided among workers. nearest: the nearest one that can."""

    def __init__(self, message: str, nearest: int) -> None:
        self.nearest = nearest
        super().__init__(message)


def check(scenario: Scenario) -> None:
    """Raises InputError if the strategy does not fit the scenario's model, batch and cluster."""
    strategy, cluster = scenario.strategy, scenario.cluster
    nodes = strategy.nodes_needed(cluster)
    if strategy.training_ranks > cluster.devices or nodes > cluster.nodes:
        raise InputError(f"{strategy.ranks:,} ranks need {nodes:,} nodes; the cluster has {cluster.nodes:,}")
    try:
        scenario.check_options()
        strategy.check(scenario.layers(strategy.plan.shard), scenario.samples_per_worker)
    except FieldError as error:
        raise InputError(error.message) from None
    named = [rank for _, ranks in scenario.unevenness.named_by_field() for rank in ranks]
    if max(named, default=-1) >= strategy.ranks:
        raise InputError(f"the scenario slows rank {max(named)} down, and there would be {strategy.ranks} ranks")
    if cluster.node.link is None and strategy.communicates_in_nodes(cluster):
        raise InputError("GPUs of a node would communicate, and the cluster has no link inside a node")


def micro_batch_size(scenario: Scenario) -> int:
    """Samples of a microbatch of one worker."""
    return max(1, scenario.samples_per_worker // scenario.strategy.microbatches)


def nearest_batch(samples: int, workers: int) -> int:
    """The multiple of `workers` that is nearest to a global batch."""
    return max(1, round(samples / workers)) * workers


def _microbatches(samples: int, size: int) -> int:
    """Number of microbatches of `size` samples, or of the nearest smaller divisor of a worker's samples."""
    return samples // next(divisor for divisor in range(min(size, samples), 0, -1) if samples % divisor == 0)


def settings_between(before: Scenario, after: Scenario) -> list[str]:
    """Settings, as --set takes them, that turn the layout, batch, nodes and framework of one scenario into those of another.

    The scenarios have the same model, and clusters that differ at most in their number of nodes.
    """
    found = [text for part in _PARTS for text in _part_settings(before, after, part)]
    if before.batch != after.batch:
        found.append(f"batch.total={after.total_samples}")
    if before.cluster.nodes != after.cluster.nodes:
        found.append(f"cluster.nodes={after.cluster.nodes}")
    if _named_framework(before) != _named_framework(after):
        found.append(f"framework={_named_framework(after)}")
    return found


def _named_framework(scenario: Scenario) -> str:
    return "null" if scenario.framework_is_default else dump.dump_framework(scenario).partition(": ")[2]


def _part_settings(before: Scenario, after: Scenario, part: str) -> list[str]:
    """Settings of single fields where these suffice, else of the whole part."""
    old, new = _plain(before, part), _plain(after, part)
    if old.get("kind") != new.get("kind") or not old.keys() <= new.keys():
        return [f"{part}={on_one_line(new)}"]
    return [f"{part}.{name}={on_one_line(value)}" for name, value in new.items() if name not in old or old[name] != value]


def _plain(scenario: Scenario, part: str) -> dict[str, Any]:
    """The fields of a part that differ from their defaults, without those that the framework decides."""
    spec = getattr(scenario, part)
    fields = type(spec).model_fields.items()
    free = {info.alias or name for name, info in fields if name in DECIDED and name not in spec.model_fields_set}
    return {name: value for name, value in dump.plain_spec(spec).items() if name not in free}
