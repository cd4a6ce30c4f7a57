"""The comparison of a scenario B with a pinned scenario A: throughput, cost and memory, and what was changed."""

from __future__ import annotations

from typing import Any, Final

from scaleproof.simulator.analysis.compare import Comparison, Effect, compare
from scaleproof.simulator.common.units import format_change
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import is_tie

# effects that are shown, and their labels
_SHOWN: Final = {
    "tokens": "Tokens per second",
    "throughput": "Samples per second",
    "step time": "Step time",
    "MFU": "MFU",
    "memory of a rank": "Memory per GPU",
    "cost of a million tokens": "Cost per million tokens",
    "cost of a million samples": "Cost per million samples",
}
# ratios of throughput this near to 1 are equal
_SAME: Final = 1e-9


def comparison(a: Scenario, b: Scenario) -> dict[str, Any]:
    """The comparison as data for the page. Raises what predictions raise."""
    found = compare(a, b)
    return {
        "ratio": found.ratio,
        "low": found.speedup.low,
        "high": found.speedup.high,
        "tie": is_tie(found.speedup.ahead),
        "words": _words(found),
        "changed": _changed(found, (a.total_samples, b.total_samples)),
        "effects": _effects(found),
    }


def _changed(found: Comparison, samples: tuple[int, int]) -> list[dict[str, str]]:
    """The fields that differ; the batch as the global one, however the scenarios give it."""
    rows = [{"field": one.field, "a": one.a, "b": one.b} for one in found.changed if not one.field.startswith("batch.")]
    if samples[0] != samples[1]:
        rows.append({"field": "batch.total", "a": f"{samples[0]:,}", "b": f"{samples[1]:,}"})
    return rows


def _words(found: Comparison) -> str:
    """'B trains 1.24 times as fast as A (90 % interval 1.10 to 1.39).', which is cheaper, and which needs too much memory."""
    unfit = [name for name, run in (("A", found.a), ("B", found.b)) if run.fits is False]
    memory = f" {' and '.join(unfit)} {'needs' if len(unfit) == 1 else 'need'} more memory than a GPU has." if unfit else ""
    if not found.changed:
        return "A and B are the same scenario."
    cost = f" By cost, {found.per_dollar.words('is cheaper')}." if found.per_dollar else ""
    return f"{_speed_words(found)}{cost}{memory}"


def _speed_words(found: Comparison) -> str:
    """'B trains 1.24 times as fast as A (90 % interval 1.10 to 1.39); B is faster than A with a probability of over 98 %.'"""
    interval = f"90 % interval {found.speedup.low:.2f} to {found.speedup.high:.2f}"
    if abs(found.ratio - 1) < _SAME:
        return "A and B are equally fast."
    return f"B trains {found.ratio:.2f} times as fast as A ({interval}); {found.speedup.words()}."


def _effects(found: Comparison) -> list[dict[str, str]]:
    """Rows of the table: the name, both values, the change and its interval."""
    per_token = found.a.tokens is not None and found.b.tokens is not None
    rows = []
    for effect in found.effects:
        is_other_unit = effect.name in (("throughput", "cost of a million samples") if per_token else ("tokens",))
        if effect.name in _SHOWN and not is_other_unit:
            texts = dict(zip("ab", effect.texts(), strict=True))
            rows.append({"name": _SHOWN[effect.name], **texts, **_change(effect)})
    return rows


def _change(effect: Effect) -> dict[str, str]:
    if effect.change is None:
        return {"change": "–", "interval": ""}
    known = effect.low is not None and effect.high is not None
    interval = f"{format_change(effect.low or 0.0)} to {format_change(effect.high or 0.0)}" if known else ""
    return {"change": format_change(effect.change), "interval": interval}
