"""The result of a study in words: a headline, and the key figures below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scaleproof.reports.pages.text import cause_words, milliseconds, percent, rate
from scaleproof.reports.read.chosen_points import Chosen
from scaleproof.reports.read.study import Studied
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_bytes, format_range, format_USD

if TYPE_CHECKING:
    import pandas as pd

    from scaleproof.simulator.analysis.sensitivity.sensitivity import Sensitivity

# throughputs that differ by at most this share count as equal
_TIE: Final = 0.01
_SURE: Final = 0.98


def headline(study: Studied, chosen: Sequence[Chosen]) -> str:
    """'Ring trains resnet50 on 32 GPUs at 6,639 images/s (90 % interval 5,529 to 7,969), 99 % efficient; …'"""
    best = study.best
    if best is None:
        if len(study.points) == 0:
            return "Nothing to show yet: this folder holds no point of a study that could be read"
        return _no_fit(study) or f"None of {len(study.points):,} points can be predicted: the errors are below"
    where = f" on {best['gpus']:,.0f} GPU{'s' if best['gpus'] != 1 else ''}" if best["gpus"] == best["gpus"] else ""
    subject = best["line"] if study.strategies else study.found.strategy_name
    efficient = f", {percent(best['efficiency'])} efficient" if best["efficiency"] == best["efficiency"] else ""
    sentence = f"{subject} trains {study.found.model_name}{where} at {rate(best['rate'])} {study.unit}/s"
    sentence += f"{_interval(best, chosen)}{efficient}"
    ahead = _against(study, best)
    return f"{sentence[:1].upper()}{sentence[1:]}{f'; {ahead.words}' if ahead else ''}"


def _no_fit(study: Studied) -> str:
    """'Out of memory: none of 3 points fits; the least is 98 GiB of 80 GiB a rank …', or "" if that is not why."""
    unfit = study.points[study.points["fits"].eq(False)].sort_values("memory_bytes", kind="stable")
    if unfit.empty:
        return ""
    least = unfit.iloc[0]
    gpus = f" on {least['gpus']:,.0f} GPU{'s' if least['gpus'] != 1 else ''}" if least["gpus"] == least["gpus"] else ""
    memory = f"{format_bytes(least['memory_bytes'])} of {format_bytes(least['capacity_bytes'])}"
    return f"Out of memory: none of {len(study.points):,} points fits; the least is {memory} a rank, by {least['line']}{gpus}"


def lede(study: Studied, chosen: Sequence[Chosen]) -> str:
    """The circumstances of the result, and the confidence of the comparison."""
    best = study.best
    if best is None:
        return ""
    at = [f"{one.name} {words}" for one, words in zip(study.circumstances, best["choices"], strict=True)]
    if study.across != "GPUs":
        at.insert(0, f"{study.across} {best['x_words']}")
    if not study.strategies and len(study.lines) > 1:
        at.insert(0, best["line"])
    under = f", with {', '.join(at)}" if at else ""
    sentences = [f"This is the fastest of {len(study.good):,} configurations that can be trained{under}"]
    ahead = _against(study, best)
    if ahead and ahead.leads:
        sentences.append(
            f"{best['line']} is {format_range(*map(percent, ahead.leads))} faster than {ahead.second}{_surely(chosen, ahead)}"
        )
    return " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences)


def _interval(best: pd.Series[Any], chosen: Sequence[Chosen]) -> str:
    """The interval of the table, or of the new prediction."""
    low, high = best["rate_low"], best["rate_high"]
    if low != low and chosen and chosen[0].run.prediction_interval_s:
        ends_s = chosen[0].run.prediction_interval_s
        low, high = (best["rate"] * best["step_time_s"] / end_s for end_s in reversed(ends_s))
    return f" (90 % interval {rate(low)} to {rate(high)})" if low == low else ""


class _Ahead(NamedTuple):
    """The best strategy's lead. second: the next strategy. leads: smallest and largest relative lead over it at the sizes from
    which on it is always beaten. gpus: the largest of these sizes."""

    words: str
    second: str
    leads: tuple[float, float] | None
    gpus: float


def _against(study: Studied, best: pd.Series[Any]) -> _Ahead | None:
    """The sizes from which on the best strategy beats the second, under the circumstances of the best point."""
    if not study.strategies or study.across != "GPUs":
        return None
    good = study.good
    good = good[[one == best["choices"] for one in good["choices"]]]
    fastest = good.groupby("line")["rate"].max().sort_values(ascending=False).drop(best["line"])
    tied = [str(line) for line in fastest.index if fastest[line] >= best["rate"] * (1 - _TIE)]
    if len(tied) == len(fastest):
        return _Ahead(f"as fast as {' and '.join(tied)}", tied[0], None, best["gpus"]) if tied else None
    second = str(fastest.index[len(tied)])
    also = f"as fast as {' and '.join(tied)}, " if tied else ""
    ours, theirs = (good[good["line"] == line].groupby("gpus")["rate"].max() for line in (best["line"], second))
    both = ours.index.intersection(theirs.index).sort_values()
    if both.empty or not ours[both[-1]] > theirs[both[-1]]:
        return _Ahead(f"{also}the next is {second}, at {rate(theirs.max())} {study.unit}/s", second, None, best["gpus"])
    behind = [gpus for gpus in both if ours[gpus] <= theirs[gpus]]
    since = both[both > max(behind)] if behind else both
    lead = ours[since] / theirs[since] - 1
    words = f"from {since[0]:,.0f} GPUs on it beats {second}" if behind else f"it beats {second} at every size"
    return _Ahead(also + words, second, (lead.min(), lead.max()), float(both[-1]))


def _surely(chosen: Sequence[Chosen], ahead: _Ahead) -> str:
    """The probability that the best strategy is ahead at the largest size, with errors shared by both."""
    from scaleproof.simulator.uncertainty.pairwise import speedup_interval

    theirs = next((one for one in chosen if one.line == ahead.second), None)
    if theirs is None or {theirs.point["gpus"], chosen[0].point["gpus"]} != {ahead.gpus}:
        return ""
    try:
        found = speedup_interval(chosen[0].scenario, theirs.scenario, theirs.run.samples_per_s / chosen[0].run.samples_per_s)
    except ScaleproofError:
        return ""
    if not found.is_distinguishable:
        return f"; on {ahead.gpus:,.0f} GPUs the two are not distinguishable by prediction"
    sure = 1 - found.faster
    probability = f"over {percent(_SURE)}" if sure > _SURE else percent(sure)
    return f"; that it is so on {ahead.gpus:,.0f} GPUs has a probability of {probability}"


def facts(study: Studied, chosen: Sequence[Chosen], sensitivity: Sensitivity | None) -> list[tuple[str, str]]:
    """The key figures below the headline, as (number, description)."""
    best = study.best
    if best is None:
        return []
    found = [(f"{milliseconds(best['step_time_s'])} ms", f"a step of {best['samples']:,.0f} samples")]
    if best["mfu"] == best["mfu"]:
        found.append((percent(best["mfu"]), "of the GPUs' peak FLOP/s goes into the model (MFU)"))
    if chosen:
        parts_s = {name: seconds for name, seconds in chosen[0].run.breakdown_s.items() if name != "compute"}
        most = max(parts_s, key=lambda name: parts_s[name])
        share = parts_s[most] / chosen[0].run.step_time_s
        found.append((percent(share), f"of a step goes to {cause_words(most)}, the most that is not compute"))
    if best["memory_bytes"] == best["memory_bytes"]:
        of = f" of {format_bytes(best['capacity_bytes'])}" if best["capacity_bytes"] == best["capacity_bytes"] else ""
        found.append((format_bytes(best["memory_bytes"]), f"memory a rank{of}"))
    if best["cost_USD_per_million_samples"] == best["cost_USD_per_million_samples"]:
        found.append((format_USD(best["cost_USD_per_million_samples"]), "for a million samples"))
    if sensitivity and sensitivity.bottleneck and sensitivity.bottleneck.value:
        one = sensitivity.bottleneck
        found.append((f"{one.value:+.2f} %", f"throughput for 1 % more {one.name}, which matters most"))
    return found


def counts(study: Studied) -> str:
    """'30 points; 2 do not fit into memory, 3 are not valid.'"""
    points = study.points
    unfit, wrong = int(points["fits"].eq(False).sum()), int(points["error"].notna().sum())
    problems = [f"{unfit:,} do not fit into memory"] if unfit else []
    problems += [f"{wrong:,} cannot be predicted"] if wrong else []
    return f"{len(points):,} point{'s' if len(points) != 1 else ''}" + (f"; {' and '.join(problems)}" if problems else "") + "."
