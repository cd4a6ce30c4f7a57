"""Remedies: settings with which a scenario fits into the memory of its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.adapters import Adapters
from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.model.recommender.parts import Recommender
from scaleproof.simulator.model.recommender.placement import Tables, divided_with, divisions
from scaleproof.simulator.model.recompute import Recompute
from scaleproof.simulator.scenario.fields import GPUS
from scaleproof.simulator.scenario.schema import Scenario


class SettingsChange(NamedTuple):
    """A changed scenario, and the settings that change it, by field, in the words of `--set`."""

    settings: dict[str, str]
    scenario: Scenario

    def __str__(self) -> str:
        """The settings as `field=value`."""
        return " ".join(f"{field}={value}" for field, value in self.settings.items())


# Shares of the rows of embedding tables that devices have copies of, tried for tables on hosts.
_CACHES: Final = (0.05, 0.02, 0.01)

# A step changes any scenario, or gives None where that is not possible. A remedy gives the steps that it may take from a
# scenario, the cheapest first.
Step = Callable[[Scenario], SettingsChange | None]
Remedy = Callable[[Scenario], Iterator[Step]]


def fitting(scenario: Scenario) -> SettingsChange | None:
    """The first remedy with which a scenario fits; several if no single one suffices; None if all do not.

    Remedies are tried in the order of their costs: little recomputation, communication, smaller matrix products, full
    recomputation, fewer replicas of more GPUs each, 4 bits of frozen parameters, offloading to the host. They keep the number
    of GPUs; only where none of these suffices, larger degrees of parallelism take more GPUs of the cluster, and the settings
    then contain `gpus=N`.
    """
    return _single(scenario) or _combined(scenario)


def fitting_adapters(scenario: Scenario) -> SettingsChange | None:
    """LoRA, then QLoRA, in place of training all parameters, with what else it needs to fit; None if neither fits."""
    for word in ("lora", "qlora"):
        base = "nf4" if word == "qlora" else None
        change = None
        if scenario.training.adapters is None and not scenario.training.freeze:
            change = _changed(scenario, {"adapters": Adapters(rank=16), "base_precision": base})
        if change is None:
            continue
        more = SettingsChange({}, change.scenario) if memory(change.scenario).fits else fitting(change.scenario)
        if more is not None:
            return SettingsChange({"training.adapters": word} | more.settings, more.scenario)
    return None


def _single(scenario: Scenario) -> SettingsChange | None:
    """The first step with which the scenario fits on its number of GPUs; None if there is none."""
    for remedy in _ON_SAME_GPUS:
        for step in remedy(scenario):
            change = step(scenario)
            if change is not None and memory(change.scenario).fits:
                return change
    return None


def _combined(scenario: Scenario) -> SettingsChange | None:
    """Several steps with which the scenario fits, each of which is needed; None if there are none."""
    steps: list[Step] = []
    changed, use = scenario, memory(scenario)
    for remedy in (*_ON_SAME_GPUS, *_ON_MORE_GPUS):
        for step in remedy(changed):
            change = step(changed)
            if change is None:
                continue
            less = memory(change.scenario)
            if less.worst.total_bytes < use.worst.total_bytes:
                steps, changed, use = [*steps, step], change.scenario, less
            if use.fits:
                return _needed(steps, scenario)
    return None


def _needed(steps: list[Step], scenario: Scenario) -> SettingsChange | None:
    """The steps without those that the others make unnecessary, the most costly of which are left out first."""
    result: SettingsChange | None = None
    for left_out in (None, *reversed(steps)):
        fewer = [step for step in steps if step is not left_out]
        change = _taken(fewer, scenario)
        if change is not None and memory(change.scenario).fits:
            steps, result = fewer, change
    return result


def _taken(steps: Sequence[Step], scenario: Scenario) -> SettingsChange | None:
    """The change by several steps; None if one of them is not possible."""
    settings: dict[str, str] = {}
    for step in steps:
        change = step(scenario)
        if change is None:
            return None
        settings, scenario = settings | change.settings, change.scenario
    return SettingsChange(settings, scenario)


def _changed(
    scenario: Scenario, training: Mapping[str, Any] = {}, strategy: Mapping[str, Any] = {}, more: Mapping[str, str] = {}
) -> SettingsChange | None:
    """The change of fields of training and of the strategy at a constant global batch; None if they are not valid. more:
    settings that go with it."""
    fields = {f"training.{field}": value for field, value in training.items()}
    fields |= {f"strategy.{field}": value for field, value in strategy.items()}
    changed, batch = scenario.strategy.model_copy(update=dict(strategy)), scenario.batch
    if batch.total is None and changed.workers != scenario.strategy.workers:
        batch = scenario.batch.with_total(scenario.total_samples)
        fields["batch.total"] = batch.total
    try:
        trained = scenario.training.model_copy(update=dict(training))
        rebuilt = scenario.rebuilt(training=trained, strategy=changed, batch=batch)
    except FieldError:
        return None
    return SettingsChange({field: _text(value) for field, value in fields.items()} | dict(more), rebuilt)


def _text(value: Any) -> str:
    """A value in the words of `--set`."""
    if isinstance(value, Tables):
        named = {"shard": value.shard} | value.model_dump(exclude_defaults=True)
        return f"{{{', '.join(f'{name}: {_text(field)}' for name, field in named.items())}}}"
    return f"[{','.join(value)}]" if isinstance(value, tuple) else str(value).lower()


def _training(field: str, value: Any) -> Step:
    """The step that sets a training field."""
    return partial(_changed, training={field: value})


def _strategy(field: str, value: Any) -> Step:
    """The step that sets a strategy field."""
    return partial(_changed, strategy={field: value})


def _has(scenario: Scenario, field: str) -> bool:
    """Whether the strategy has a field of this name in YAML."""
    return field in type(scenario.strategy).model_fields


def _selective(scenario: Scenario) -> Iterator[Step]:
    layers, selective = scenario.layers(WHOLE), scenario.framework.selective
    scores = any(kept.group == "attention" for layer in layers for kept in layer.kept)
    saves = selective.suits(layers) if selective.products is not None else scores
    if saves and scenario.training.recompute.kind == "none":
        yield _training("recompute", Recompute(kind="selective"))


def _full(scenario: Scenario) -> Iterator[Step]:
    if scenario.training.recompute != (full := Recompute(kind="full")):
        yield _training("recompute", full)


def _quantised(scenario: Scenario) -> Iterator[Step]:
    if scenario.training.adapters is not None and scenario.training.base_precision is None:
        yield _training("base_precision", "nf4")


def _zero(stage: int) -> Remedy:
    def remedy(scenario: Scenario) -> Iterator[Step]:
        strategy = scenario.strategy
        if scenario.training.zero < stage and strategy.workers > 1 and strategy.servers == 0:
            yield _training("zero", stage)

    return remedy


def _sequence_parallel(scenario: Scenario) -> Iterator[Step]:
    if scenario.strategy.plan.tensor > 1 and not scenario.strategy.plan.sequence_parallel:
        yield _strategy("sequence_parallel", True)


def _smaller_microbatches(scenario: Scenario) -> Iterator[Step]:
    """Half the size of microbatches repeatedly where it is given, otherwise twice their number."""
    size = getattr(scenario.strategy, "micro_batch_size", None)
    if size is None:
        yield from _doublings(scenario, "microbatches", scenario.samples_per_worker, partial(_strategy, "microbatches"))
        return
    while size % 2 == 0:
        size //= 2
        yield _strategy("micro_batch_size", size)


def _doublings(scenario: Scenario, field: str, most: int, step: Callable[[int], Step]) -> Iterator[Step]:
    """The steps to twice a number of the plan, repeatedly, up to a maximum."""
    number = 2 * int(getattr(scenario.strategy.plan, field))
    while _has(scenario, field) and number <= most:
        yield step(number)
        number *= 2


def _degree(field: str, most: Callable[[Scenario], int], step: Callable[[str, int], Step]) -> Remedy:
    """A remedy that doubles a degree repeatedly, up to a maximum."""
    return lambda scenario: _doublings(scenario, field, most(scenario), partial(step, field))


def _on_same_gpus(field: str, degree: int) -> Step:
    """The step to a degree with fewer workers, which have more microbatches of the same size."""

    def step(scenario: Scenario) -> SettingsChange | None:
        strategy = scenario.strategy
        before = int(getattr(strategy.plan, field))
        workers, rest = divmod(strategy.workers * before, degree)
        if rest or not _has(scenario, "workers"):
            return None
        values = {field: degree, "workers": workers}
        if _has(scenario, "microbatches") and getattr(strategy, "micro_batch_size", None) is None:
            values["microbatches"] = strategy.microbatches * degree // before
        return _changed(scenario, strategy=values)

    return step


def _on_more_gpus(field: str, degree: int) -> Step:
    """The step to a degree with the same workers, each on more GPUs of the cluster."""

    def step(scenario: Scenario) -> SettingsChange | None:
        gpus = scenario.strategy.training_ranks * degree // int(getattr(scenario.strategy.plan, field))
        return _changed(scenario, strategy={field: degree}, more={GPUS: f"{gpus}"})

    return step


def _divided_tables(scenario: Scenario) -> Iterator[Step]:
    """Embedding tables divided over workers, and last on hosts, with the most frequent rows on devices."""
    own = scenario.strategy.plan.tables
    if not isinstance(scenario.model, Recommender) or not _has(scenario, "tables") or (own is not None and own.on == "host"):
        return
    how = own or divided_with(scenario.training.optimizer)
    workers = scenario.strategy.workers
    ways = divisions(scenario.model.tables, workers, how) if own is None and workers > 1 else []
    caches = (how.cache, *(share for share in _CACHES if share < how.cache))
    for way in (*ways, *(how.model_copy(update={"on": "host", "cache": share}) for share in caches)):
        yield _strategy("tables", way)


def _offload(*states: str) -> Remedy:
    def remedy(scenario: Scenario) -> Iterator[Step]:
        is_allowed = "parameters" not in states or scenario.training.zero == 3
        if is_allowed and scenario.strategy.servers == 0 and not set(states) <= set(scenario.training.offload):
            yield _training("offload", states)

    return remedy


# Tensor parallelism stays within a node, where collectives are fast (arXiv 2104.04473, section 3).
_tensor: Final = partial(_degree, "tensor", lambda scenario: scenario.cluster.node.devices)
_stages: Final = partial(_degree, "stages", lambda scenario: scenario.cluster.devices)
_ON_SAME_GPUS: Final[tuple[Remedy, ...]] = (
    _divided_tables,
    _sequence_parallel,
    _selective,
    _zero(1),
    _smaller_microbatches,
    _full,
    _zero(2),
    _tensor(_on_same_gpus),
    _stages(_on_same_gpus),
    _zero(3),
    _quantised,
    _offload("optimizer"),
    _offload("optimizer", "parameters"),
)
_ON_MORE_GPUS: Final[tuple[Remedy, ...]] = (_tensor(_on_more_gpus), _stages(_on_more_gpus))
