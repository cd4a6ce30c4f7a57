"""verify: whether ranks came to the parameters that one process comes to which follows the same rule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.scenario import Scenario
from validator.launch import run_on_ranks

# One process trains on all samples by itself, and tells no progress.
LONGEST_S: Final = 300.0
# Largest difference of a tensor, relative to what training changed in it, that rounding explains: sums are made in another
# order, and of parameters in bf16 most of a small update is rounded away. Wrong training is off by 0.1 and more.
TOLERANCES: Final = {"fp64": 1e-9, "fp32": 1e-2, "bf16": 0.5}
# What did not change by more than this share of itself did not change, and may differ by as much.
_UNCHANGED: Final = 1e-7
_SMALLEST: Final = 1e-30


def verdict(scenario: Scenario, folder: Path, notes: Sequence[Mapping[str, Any]], timeout_s: float) -> dict[str, Any]:
    """What `verify_here` finds, in a process of its own. Raises RankError where that fails."""
    found: dict[str, Any] = run_on_ranks(verify_here, 1, scenario, folder, notes, timeout_s=max(timeout_s, LONGEST_S))[0]
    return found


def verify_here(scenario: Scenario, folder: Path, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Follows the scenario's rule in this process and compares with the parameters that ranks left in `folder`.

    Returns `rule`, in words, `deviation`, the largest over all parameters and ranks relative to
    what training changed, and `tolerance`.
    """
    import torch

    from validator.reference import rule_of
    from validator.reference.replica import Replica

    rule, initial = rule_of(scenario), Replica.of(scenario).parameters()
    expected = rule.train(scenario, notes)
    missing = set(expected)
    deviation = 0.0
    for path in sorted(folder.glob("rank*.pt")):
        for name, value in torch.load(path).items():
            if name in expected:
                missing.discard(name)
                changed = float((expected[name] - initial[name]).norm())
                off = float((value.cpu().double() - expected[name].double()).norm())
                share = off / max(changed, _UNCHANGED * float(initial[name].norm()), _SMALLEST)
                # what is not a number compares with nothing
                deviation = max(deviation, math.inf if math.isnan(share) else share)
    if missing:
        raise ValueError(f"no rank trained {', '.join(sorted(missing)[:3])}")
    return {
        "rule": rule.words,
        "deviation": deviation,
        "tolerance": max(rule.tolerance, TOLERANCES[scenario.training.precision]),
    }
