"""Remedies: settings with which a scenario fits into the memory of its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.recompute import Recompute
from scaleproof.simulator.scenario.schema import Scenario

Change = tuple[str, str, Scenario]
Remedy = Callable[[Scenario], Iterator[Change]]


def fit_by(scenario: Scenario) -> str:
    """The first remedy with which a scenario fits, as `field=value`; several if no single one suffices; "" if all do not.

    Remedies are tried in the order of their costs: little recomputation, communication, smaller matrix products, full
    recomputation, more ranks, offloading to the host.
    """
    for remedy in _REMEDIES:
        for field, value, changed in remedy(scenario):
            if memory(changed).fits:
                return f"{field}={value}"
    settings: dict[str, str] = {}
    changed, use = scenario, memory(scenario)
    for remedy in _REMEDIES:
        for field, value, more in remedy(changed):
            less = memory(more)
            if less.worst.total_bytes < use.worst.total_bytes:
                settings[field], changed, use = value, more, less
            if use.fits:
                return " ".join(f"{field}={value}" for field, value in _needed(settings, changed, scenario).items())
    return ""


def _needed(settings: dict[str, str], changed: Scenario, scenario: Scenario) -> dict[str, str]:
    """The settings without strategy fields that later remedies have made unnecessary."""
    for field in [field for field in settings if field.startswith("strategy.")]:
        name = _name(scenario, field.partition(".")[2])
        strategy = changed.strategy.model_copy(update={name: getattr(scenario.strategy, name)})
        without = changed.copied(strategy=strategy)
        if _is_possible(without) and memory(without).fits:
            changed, settings = without, {other: value for other, value in settings.items() if other != field}
    return settings


def _name(scenario: Scenario, field: str) -> str:
    """The name of the attribute of a strategy field in YAML."""
    return field if field in type(scenario.strategy).model_fields else f"{field}_"


def _training(scenario: Scenario, field: str, value: Any, text: str) -> Iterator[Change]:
    """The change of a training field, if the framework supports it."""
    try:
        changed = scenario.copied(training=scenario.training.model_copy(update={field: value}))
    except FieldError:
        return
    yield f"training.{field}", text, changed


def _strategy(scenario: Scenario, field: str, value: Any) -> Iterator[Change]:
    """The change of a strategy field, if it is valid."""
    strategy = scenario.strategy.model_copy(update={_name(scenario, field): value})
    changed = scenario.copied(strategy=strategy)
    if _is_possible(changed):
        yield f"strategy.{field}", str(value).lower(), changed


def _is_possible(scenario: Scenario) -> bool:
    """Whether the strategy can divide the model, and the devices suffice."""
    strategy = scenario.strategy
    try:
        strategy.check(scenario.model.build_layers(strategy.plan.shard), scenario.samples_per_worker)
    except FieldError:
        return False
    return strategy.training_ranks <= scenario.cluster.devices


def _selective(scenario: Scenario) -> Iterator[Change]:
    scores = any(kept.group == "attention" for layer in scenario.model.build_layers() for kept in layer.kept)
    if scores and scenario.training.recompute.kind == "none":
        yield from _training(scenario, "recompute", Recompute(kind="selective"), "selective")


def _full(scenario: Scenario) -> Iterator[Change]:
    if scenario.training.recompute != (full := Recompute(kind="full")):
        yield from _training(scenario, "recompute", full, "full")


def _zero(stage: int) -> Remedy:
    def remedy(scenario: Scenario) -> Iterator[Change]:
        strategy = scenario.strategy
        if scenario.training.zero < stage and strategy.workers > 1 and strategy.servers == 0:
            yield from _training(scenario, "zero", stage, str(stage))

    return remedy


def _sequence_parallel(scenario: Scenario) -> Iterator[Change]:
    if scenario.strategy.plan.tensor > 1 and not scenario.strategy.plan.sequence_parallel:
        yield from _strategy(scenario, "sequence_parallel", True)


def _twice(field: str, most: Callable[[Scenario], int]) -> Remedy:
    """A remedy that doubles a degree repeatedly, up to a maximum."""

    def remedy(scenario: Scenario) -> Iterator[Change]:
        if _name(scenario, field) not in type(scenario.strategy).model_fields:
            return
        number = 2 * int(getattr(scenario.strategy.plan, field))
        while number <= most(scenario) and (changes := list(_strategy(scenario, field, number))):
            yield from changes
            number *= 2

    return remedy


def _smaller_microbatches(scenario: Scenario) -> Iterator[Change]:
    """Half the size of microbatches repeatedly where it is given, otherwise twice their number."""
    size = getattr(scenario.strategy, "micro_batch_size", None)
    if size is None:
        yield from _twice("microbatches", lambda scenario: scenario.samples_per_worker)(scenario)
        return
    while size % 2 == 0:
        size //= 2
        yield from _strategy(scenario, "micro_batch_size", size)


def _offload(*states: str) -> Remedy:
    def remedy(scenario: Scenario) -> Iterator[Change]:
        is_allowed = "parameters" not in states or scenario.training.zero == 3
        if is_allowed and scenario.strategy.servers == 0 and not set(states) <= set(scenario.training.offload):
            yield from _training(scenario, "offload", states, f"[{','.join(states)}]")

    return remedy


# Tensor parallelism stays within a node, where collectives are fast (arXiv 2104.04473, section 3).
_REMEDIES: Final[tuple[Remedy, ...]] = (
    _sequence_parallel,
    _selective,
    _zero(1),
    _smaller_microbatches,
    _full,
    _zero(2),
    _twice("tensor", lambda scenario: scenario.cluster.node.devices),
    _twice("stages", lambda scenario: scenario.cluster.devices),
    _zero(3),
    _offload("optimizer"),
    _offload("optimizer", "parameters"),
)
