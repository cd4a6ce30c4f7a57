"""verify: whether ranks came to the parameters that one process comes to which follows the same rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.scenario import Scenario

# Largest difference of a tensor, relative to what training changed in it, that rounding explains: sums are made in another
# order, and of parameters in bf16 most of a small update is rounded away. Wrong training is off by 0.1 and more.
TOLERANCES: Final = {"fp64": 1e-9, "fp32": 1e-2, "bf16": 0.5}
# What did not change by more than this share of itself did not change, and may differ by as much.
_UNCHANGED: Final = 1e-7
_SMALLEST: Final = 1e-30


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
                deviation = max(deviation, off / max(changed, _UNCHANGED * float(initial[name].norm()), _SMALLEST))
    if missing:
        raise ValueError(f"no rank trained {', '.join(sorted(missing)[:3])}")
    return {"rule": rule.words, "deviation": deviation, "tolerance": TOLERANCES[scenario.training.precision]}
