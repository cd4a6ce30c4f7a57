"""Fitting: what to set so that a scenario fits into its devices' memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from simulator.errors import FieldError
from simulator.memory import memory
from simulator.recompute import Recompute
from simulator.scenario import Scenario
from simulator.strategy.replicated import Replicated

Change = tuple[str, str, Scenario]


def fit_by(scenario: Scenario) -> str:
    """The first remedy after which `scenario` fits, as `field=value`; several, where none does alone; "" where all together
    do not.

    They are tried in the order of what they cost: a little work again, messages, much work again, more ranks, the host.
    """
    for remedy in _REMEDIES:
        for field, value, changed in remedy(scenario):
            if memory(changed).fits:
                return f"{field}={value}"
    settings: dict[str, str] = {}
    held = memory(scenario)
    for remedy in _REMEDIES:
        for field, value, changed in remedy(scenario):
            less = memory(changed)
            if less.worst.total_bytes < held.worst.total_bytes:
                settings[field], scenario, held = value, changed, less
            if held.fits:
                return " ".join(f"{field}={value}" for field, value in settings.items())
    return ""


def _training(scenario: Scenario, field: str, value: Any, text: str) -> Change:
    training = scenario.training.model_copy(update={field: value})
    return f"training.{field}", text, scenario.model_copy(update={"training": training})


def _selective(scenario: Scenario) -> Iterator[Change]:
    scores = any(kept.group == "attention" for layer in scenario.model.build_layers() for kept in layer.kept)
    if scores and scenario.training.recompute.kind == "none":
        yield _training(scenario, "recompute", Recompute(kind="selective"), "selective")


def _full(scenario: Scenario) -> Iterator[Change]:
    if scenario.training.recompute != (full := Recompute(kind="full")):
        yield _training(scenario, "recompute", full, "full")


def _zero(stage: int) -> Callable[[Scenario], Iterator[Change]]:
    def remedy(scenario: Scenario) -> Iterator[Change]:
        strategy = scenario.strategy
        shares = isinstance(strategy, Replicated) and strategy.servers == 0
        if scenario.training.zero < stage and strategy.workers > 1 and shares:
            yield _training(scenario, "zero", stage, str(stage))

    return remedy


def _stages(scenario: Scenario) -> Iterator[Change]:
    """Twice as many stages and so on, as far as devices and layers go."""
    strategy, layers = scenario.strategy, scenario.model.build_layers()
    stages = 2 * strategy.stages
    while "stages_" in type(strategy).model_fields and strategy.workers * stages <= scenario.cluster.devices:
        changed = strategy.model_copy(update={"stages_": stages})
        try:
            changed.check(layers, scenario.samples_per_worker)
        except FieldError:
            return
        yield "strategy.stages", str(stages), scenario.model_copy(update={"strategy": changed})
        stages *= 2


def _offload(*what: str) -> Callable[[Scenario], Iterator[Change]]:
    def remedy(scenario: Scenario) -> Iterator[Change]:
        may = "parameters" not in what or scenario.training.zero == 3
        if may and scenario.strategy.servers == 0 and not set(what) <= set(scenario.training.offload):
            yield _training(scenario, "offload", what, f"[{','.join(what)}]")

    return remedy


_REMEDIES: Final = (
    _selective, _zero(1), _full, _zero(2), _stages, _zero(3), _offload("optimizer"), _offload("optimizer", "parameters"),
)  # fmt: skip
