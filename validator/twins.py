"""Twins: which strategies real training has, which of their fields it follows, and what else it refuses of each.

It knows nothing of torch, so that everything is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.errors import InputError
from simulator.recompute import NO_RECOMPUTE
from simulator.scenario import Scenario

SCHEDULES: Final = ("gpipe", "1f1b")
_STAGED: Final = ("stages_", "microbatches_", "schedule")
_BUCKETED: Final = ("bucket_bytes", "first_bucket_bytes", "overlap")
_SHARDED: Final = ("prefetch", "reshard", "shard_over")
# Of each kind the fields that its twin follows.
_MEASURED: Final[dict[str, tuple[str, ...]]] = {
    "data_parallel": ("workers_", "microbatches_", *_BUCKETED, *_SHARDED),
    "parameter_server": ("workers_", "servers_", "placement"),
    "pipeline": _STAGED,
    "hybrid": ("workers_", "bucket_bytes", *_STAGED),
}


def check_strategy(scenario: Scenario) -> None:
    """Raises InputError where real training has no such strategy, or not with these fields."""
    strategy = scenario.strategy
    measured = _MEASURED.get(strategy.kind)
    if measured is None:
        known = ", ".join(_MEASURED)
        raise InputError(f"strategy: {strategy.kind} can be predicted but not measured; give one of {known}")
    for name, field in type(strategy).model_fields.items():
        given = getattr(strategy, name)
        if name not in ("kind", *measured) and given != field.get_default(call_default_factory=True):
            raise InputError(f"strategy.{field.alias or name} is predicted but not measured; leave it out to measure")
    _check_training(scenario)
    if scenario.compute == "paced":
        _check_paced(scenario)
    if (check := _CHECKS.get(strategy.kind)) is not None:
        check(scenario)


def _check_training(scenario: Scenario) -> None:
    """What of `training` a twin follows."""
    training = scenario.training
    if training.recompute != NO_RECOMPUTE and scenario.compute == "real":
        raise InputError("training.recompute is predicted but not measured; leave it out to measure, or set compute=paced")
    if training.zero:
        _check_sharded(scenario)


def _check_sharded(scenario: Scenario) -> None:
    """Which of ZeRO's stages there are, and with what."""
    zero, plan = scenario.training.zero, scenario.strategy.plan
    if scenario.strategy.kind != "data_parallel":
        raise InputError(f"training.zero of a {scenario.strategy.kind} is predicted but not measured; give a data_parallel")
    if zero == 1:
        raise InputError("training.zero: 1 is predicted but not measured; give 2, which shares gradients out as well, or 3")
    if plan.shares is not None:
        raise InputError("strategy.shares with training.zero is predicted but not measured; leave either out to measure")


def _check_paced(scenario: Scenario) -> None:
    """Layers that ranks share exchange what small ones have not."""
    if scenario.strategy.plan.lockstep > 1:
        raise InputError("compute: ranks that share layers cannot be paced; leave tensor and context out, or set compute=real")


def _check_stages(scenario: Scenario) -> None:
    plan = scenario.strategy.plan
    if plan.stages > 1 and plan.schedule not in SCHEDULES:
        message = f"strategy.schedule: {plan.schedule} is predicted but not measured; give one of {', '.join(SCHEDULES)}"
        raise InputError(message)
    if plan.schedule == "1f1b" and plan.microbatches < plan.stages > 1:
        numbers = f"{plan.microbatches} for {plan.stages}"
        message = f"torch's 1f1b needs at least as many microbatches as stages, got {numbers}; give {plan.stages}, or gpipe"
        raise InputError(f"strategy.microbatches: {message}")


# Of each kind what its twin refuses beside.
_CHECKS: Final[dict[str, Callable[[Scenario], None]]] = {"pipeline": _check_stages, "hybrid": _check_stages}
