"""verify: whether ranks came to the parameters that one process comes to which follows the same rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.launch import run_on_ranks

# One process trains on all samples by itself, and tells no progress.
LONGEST_S: Final = 300.0
# What rounding explains of a deviation: sums are made in another order. Adam divides by the size of gradients, so that rounding
# of tiny ones weighs more. In bf16 rounding is as large as what a step changes, and nothing can be told.
_TOLERANCES: Final = {"fp64": 1e-9, "fp32": 5e-4}
_OF_ADAM: Final = 10.0
_SMALLEST: Final = 1e-30


def check_verifiable(scenario: Scenario) -> None:
    """Raises InputError where wrong training could not be told from rounding."""
    precision = scenario.training.precision
    if precision not in _TOLERANCES:
        what_to_do = f"set training.precision={' or '.join(_TOLERANCES)}"
        raise InputError(f"{scenario.name}: --verify: rounding in {precision} hides what is wrong; {what_to_do}")


def tolerance_of(scenario: Scenario) -> float:
    """How far parameters may be off where ranks sum in another order than one process."""
    training = scenario.training
    # sums of fp64 gradients may be in fp32
    precision = "fp32" if "fp32" in (training.accumulate_precision, training.reduce_precision) else training.precision
    return _TOLERANCES[precision] * (_OF_ADAM if training.optimizer == "adam" else 1.0)


def verdict(scenario: Scenario, folder: Path, notes: Sequence[Mapping[str, Any]], timeout_s: float) -> dict[str, Any]:
    """What `verify_here` finds, in a process of its own. Raises RankError where that fails."""
    found: dict[str, Any] = run_on_ranks(verify_here, 1, scenario, folder, notes, timeout_s=max(timeout_s, LONGEST_S))[0]
    return found


def verify_here(scenario: Scenario, folder: Path, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Follows the scenario's rule in this process and compares with the parameters that ranks left in `folder`.

    Returns `rule`, in words, `deviation`, the largest of a tensor's differences on any rank, relative to what training changed
    in it or, where that is more, in tensors on average; and `tolerance`. Raises ValueError where ranks left other parameters
    than the model has.
    """
    import torch

    from scaleproof.validator.verify.reference import rule_of
    from scaleproof.validator.verify.reference.single_process import SingleProcess

    rule, initial = rule_of(scenario), SingleProcess.of(scenario).parameters()
    expected = rule.train(scenario, notes)
    changed = {name: float((value - initial[name]).norm()) for name, value in expected.items()}
    typical = math.sqrt(sum(size**2 for size in changed.values()) / len(changed))
    seen: set[str] = set()
    deviation = 0.0
    for rank in range(scenario.strategy.training_ranks):
        left = torch.load(folder / f"rank{rank}.pt", weights_only=True)
        _check_names(scenario, rank, set(left), set(expected))
        seen |= set(left)
        for name, value in left.items():
            off = float((value.cpu().double() - expected[name].double()).norm())
            share = off / max(changed[name], typical, _SMALLEST)
            # what is not a number compares with nothing
            deviation = max(deviation, math.inf if math.isnan(share) else share)
    if missing := sorted(set(expected) - seen):
        raise ValueError(f"no rank trained {', '.join(missing[:3])}")
    tolerance = tolerance_of(scenario) if rule.tolerance is None else rule.tolerance
    return {"rule": rule.words, "deviation": deviation, "tolerance": tolerance}


def _check_names(scenario: Scenario, rank: int, left: set[str], expected: set[str]) -> None:
    """Raises ValueError where a rank left none of the model's parameters, others, or not all where it has all."""
    plan = scenario.strategy.plan
    if unknown := sorted(left - expected):
        raise ValueError(f"rank {rank} trained {unknown[0]}, which the model has not")
    if not left or (plan.stages == 1 and plan.expert == 1 and left != expected):
        raise ValueError(f"rank {rank} did not train {min(expected - left)}")
