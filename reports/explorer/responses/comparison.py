"""The comparison of a scenario B with a pinned scenario A: throughput, cost and memory, and what was changed."""

from __future__ import annotations

from typing import Any, Final

from scaleproof.reports.descriptions.comparisons import effect_texts, finding
from scaleproof.simulator.analysis.compare import Comparison, compare
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
    """Which scenario is faster, which is cheaper, and which needs too much memory."""
    unfit = [name for name, run in (("A", found.a), ("B", found.b)) if run.fits is False]
    memory = f" {' and '.join(unfit)} {'needs' if len(unfit) == 1 else 'need'} more memory than a GPU has." if unfit else ""
    if not found.changed:
        return "A and B are the same scenario."
    cost = f" By cost, {found.per_dollar.words('is cheaper')}." if found.per_dollar else ""
    return f"{finding(found)}.{cost}{memory}"


def _effects(found: Comparison) -> list[dict[str, str]]:
    """Rows of the table: the name, both values, the change and its interval."""
    per_token = found.a.tokens is not None and found.b.tokens is not None
    rows = []
    for effect in found.effects:
        is_other_unit = effect.name in (("throughput", "cost of a million samples") if per_token else ("tokens",))
        if effect.name in _SHOWN and not is_other_unit:
            _, *texts = effect_texts(effect)
            rows.append({"name": _SHOWN[effect.name], **dict(zip(("a", "b", "change", "interval"), texts, strict=True))})
    return rows
