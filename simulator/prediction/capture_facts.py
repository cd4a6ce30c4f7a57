"""Prediction intervals of captured scripts: kernels of unknown cost make them wider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.run.records import CaptureFacts
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

# The time of an operator of unknown cost may be this many times that of the bytes which it moves, or as much less; assumed.
_UNKNOWN: Final = 3.0
# Modules and lines that are reported.
_MOST: Final = 12


def with_capture_facts(run: Run, strategy: CapturedStrategy, scenario: Scenario) -> Run:
    """A run of a captured script with what is known of its kernels and its memory, and an interval that kernels of unknown cost
    make wider."""
    # other runs need neither the allocator nor the reading of captures
    from scaleproof.simulator.memory.captured import classes_memory

    known = strategy.script.coverage(scenario.cluster.device, scenario.framework)
    fullest = max(classes_memory(scenario), key=lambda one: one.served.reserved_bytes).live.peak
    facts = CaptureFacts(
        known.measured, known.extrapolated, known.unknown, known.unknown_names,
        modules_bytes=dict(list(fullest.modules_bytes.items())[:_MOST]),
        lines_bytes=dict(list(fullest.lines_bytes.items())[:_MOST]),
        samples_known=strategy.script.samples_known or strategy.samples_ is not None,
    )  # fmt: skip
    compute_s = run.breakdown_s["compute"] + run.breakdown_s["slowest_rank"]
    unknown = known.unknown * compute_s / run.step_time_s if run.step_time_s else 0.0
    interval_s = run.prediction_interval_s and widened(run.prediction_interval_s, run.step_time_s, unknown)
    warnings = list[str]()
    if known.unknown:
        names = ", ".join(name.removeprefix("aten::") for name in known.unknown_names[:_MOST])
        share = f"{format_percent(known.unknown)} of the time of kernels is of those whose cost is not known: {names}"
        warnings.append(f"{share}; counted by the bytes moved, and the interval is wider; strategy.kernels takes a file "
                        "that says what they compute")  # fmt: skip
    if strategy.script.samples_conflict and strategy.samples_ is None:
        warnings.append(
            f"{strategy.script.samples_conflict}; if that is wrong, set strategy.samples, of a step of all captured ranks"
        )
    warnings += strategy.script.warnings
    if not facts.samples_known:
        warnings.append(f"samples of a step are not known, since {strategy.script.samples_rule}")
        run = replace(run, energy_J=_without_samples(run.energy_J), cost_USD=_without_samples(run.cost_USD))
    return replace(run, capture=facts, prediction_interval_s=interval_s).warned(*warnings)


def _without_samples(bill: Mapping[str, float] | None) -> Mapping[str, float] | None:
    """A bill without what a million samples cost."""
    return bill and {unit: amount for unit, amount in bill.items() if unit != "per_million_samples"}


def widened(interval_s: tuple[float, float], step_s: float, unknown: float) -> tuple[float, float]:
    """The interval of a step of which a share takes an unknown time: that share may be three times as long, or a third."""
    low_s, high_s = interval_s
    return low_s - unknown * step_s * (1 - 1 / _UNKNOWN), high_s + unknown * step_s * (_UNKNOWN - 1)
