"""The result of a study in words: a headline, and the key figures below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scaleproof.reports.read.fastest_points import FastestPoint
from scaleproof.reports.read.ranking import NOTHING, Lead, Ranking
from scaleproof.reports.read.study import StudyTable
from scaleproof.reports.text import percent, percent_range, ratio, with_narrow_spaces
from scaleproof.simulator.common.units import format_bytes, format_short, format_short_range, format_time_s, format_USD

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from scaleproof.simulator.analysis.sensitivity.sensitivity import Sensitivity

# alternatives out of memory that are named
_MOST_NAMED: Final = 3
# speed-ups below this share of the smallest size are not worth a word
_LEAST_SPEED_UP: Final = 1.01


def headline(study: StudyTable, chosen: Sequence[FastestPoint], ranks: Ranking) -> str:
    """'256 GPUs: 308k tokens/s (261–364k), 3.99x of 64 GPUs; TP4 beats TP8 by 39 %'"""
    best = study.best
    if best is None:
        if len(study.points) == 0:
            return "Nothing to show yet: this folder has no point of a study that can be read"
        return _no_fit(study) or f"None of {len(study.points):,} points can be predicted: the errors are below"
    size = f"{gpus_words(best['gpus'])}: " if best["gpus"] == best["gpus"] else ""
    speed = f"{size}{format_short(best['rate'])} {study.unit}/s{_interval(best, chosen)}{_speed_up(study, best)}"
    return "; ".join([speed, *_leads(ranks)])


def gpus_words(count: float) -> str:
    """'1 GPU', '256 GPUs'."""
    return f"{count:,.0f} GPU{'s' if count != 1 else ''}"


def _interval(best: pd.Series[Any], chosen: Sequence[FastestPoint]) -> str:
    """The interval of the table, or of the new prediction."""
    low, high = best["rate_low"], best["rate_high"]
    if low != low and chosen and chosen[0].run.prediction_interval_s:
        ends_s = chosen[0].run.prediction_interval_s
        low, high = (best["rate"] * best["step_time_s"] / end_s for end_s in reversed(ends_s))
    return f" ({format_short_range(low, high)})" if low == low else ""


def _speed_up(study: StudyTable, best: pd.Series[Any]) -> str:
    """', 3.99x of 64 GPUs': the throughput relative to that of the same alternative on the smallest number of GPUs."""
    good = study.under(best["choices"])
    same = good[good["line"] == best["line"]]
    fewest = same[same["gpus"] == same["gpus"].min()]
    if study.across != "GPUs" or fewest.empty or best["rate"] < _LEAST_SPEED_UP * fewest["rate"].max():
        return ""
    return f", {ratio(best['rate'] / fewest['rate'].max())} of {gpus_words(fewest['gpus'].iloc[0])}"


def _leads(ranks: Ranking) -> list[str]:
    """The lead in throughput; and per dollar, if prices differ."""
    speed, cost = ranks
    words = [lead_words(speed)] if speed else []
    if cost and not (speed and cost.first == speed.first and abs(cost.share - speed.share) < NOTHING):
        words.append(_cost_words(cost))
    return words


def lead_words(lead: Lead) -> str:
    """'TP4 beats TP8 by 39 %', 'ring is faster per GPU than servers with a probability of 87 % (predicted lead 49 %)'."""
    per_gpu = " per GPU" if lead.per_gpu else ""
    if lead.share < NOTHING:
        return f"no difference{per_gpu} between {lead.first} and {lead.second}"
    if lead.is_sure or lead.probability is None:
        return f"{lead.first} beats {lead.second} {_by(lead.share)}{per_gpu}"
    return _order(lead, f"is faster{per_gpu}", lead.probability)


def _order(lead: Lead, better: str, probability: float) -> str:
    """The order of two alternatives with its probability, with the spaces of pages."""
    from scaleproof.simulator.uncertainty.pairwise import order_words

    return with_narrow_spaces(order_words((lead.first, lead.second), probability, better, lead.share))


def _by(share: float) -> str:
    """'by 39 %', 'by a factor of 4.4'"""
    return f"by {percent(share)}" if share < 1 else f"by a factor of {share + 1:.2g}"


def _cost_words(lead: Lead) -> str:
    """'H100 is cheaper than B200 with a probability of 97 % (predicted lead 20 %)'"""
    if lead.probability is None:
        return f"per dollar, {lead.first} beats {lead.second} {_by(lead.share)}"
    return _order(lead, "is cheaper", lead.probability)


def _no_fit(study: StudyTable) -> str:
    """'Out of memory: none of 3 points fits; the least is 98 GiB of 80 GiB a rank …', or "" if that is not why."""
    unfit = study.points[study.points["fits"].eq(False)].sort_values("memory_bytes", kind="stable")
    if unfit.empty:
        return ""
    least = unfit.iloc[0]
    gpus = f" on {gpus_words(least['gpus'])}" if least["gpus"] == least["gpus"] else ""
    memory = f"{format_bytes(least['memory_bytes'])} of {format_bytes(least['capacity_bytes'])}"
    return f"Out of memory: none of {len(study.points):,} points fits; the least is {memory} a rank, by {least['line']}{gpus}"


def lede(study: StudyTable, ranks: Ranking) -> list[str]:
    """The circumstances of the result, and the confidence of the comparison."""
    best = study.best
    if best is None:
        return []
    at = [best["line"]] if len(study.lines) > 1 else []
    at += [f"{study.across} {best['x_words']}"] if study.across != "GPUs" else []
    at += [_circumstance(one.name, words) for one, words in zip(study.circumstances, best["choices"], strict=True)]
    of = f"the fastest of {len(study.good):,} configurations that fit" if len(study.good) > 1 else "the configuration"
    sentences = [f"{of}: {study.found.model_name} with {', '.join(at) or study.found.strategy_name}"]
    if ranks.speed and ranks.speed.is_sure:
        sentences += _confidence(study, best, ranks.speed)
    sentences += _without_fit(study)
    if best["rate_low"] == best["rate_low"] or ranks.speed:
        sentences.append("in parentheses: 90 % prediction intervals")
    return sentences


def _without_fit(study: StudyTable) -> list[str]:
    """'TP8 does not fit into memory', of alternatives without a point that does."""
    unfit = study.points[study.points["fits"].eq(False)]["line"]
    lines = [line for line in dict.fromkeys(unfit) if line not in set(study.good["line"])]
    named = lines if len(lines) <= _MOST_NAMED else [*lines[:_MOST_NAMED], f"{len(lines) - _MOST_NAMED} more"]
    return [f"{' and '.join(named)} {'does' if len(lines) == 1 else 'do'} not fit into memory"] if lines else []


def _circumstance(name: str, words: str) -> str:
    """'network bandwidth 100 Gbit/s'; 'recompute full', which has its name in it."""
    return words if name in words else f"{name} {words}"


def _confidence(study: StudyTable, best: pd.Series[Any], lead: Lead) -> list[str]:
    """'the lead of TP4 over TP8 is 10–39 % from 16 GPUs on and has a probability of over 98 %'"""
    from scaleproof.simulator.uncertainty.pairwise import probability_words

    since = _since(study, best, lead)
    sure = "" if lead.probability is None else f"has a probability of {with_narrow_spaces(probability_words(lead.probability))}"
    parts = [part for part in (since, sure) if part]
    return [f"the lead of {lead.first} over {lead.second} {' and '.join(parts)}"] if parts else []


def _since(study: StudyTable, best: pd.Series[Any], lead: Lead) -> str:
    """The sizes from which on the best alternative leads the second, under the circumstances of the best point."""
    good = study.under(best["choices"])
    ours, theirs = (good[good["line"] == line].groupby("gpus")["rate"].max() for line in (lead.first, lead.second))
    both = ours.index.intersection(theirs.index).sort_values()
    behind = [gpus for gpus in both if ours[gpus] <= theirs[gpus]]
    since = both[both > max(behind)] if behind else both
    if study.across != "GPUs" or lead.per_gpu or len(both) < 2 or since.empty:
        return ""
    leads = ours[since] / theirs[since] - 1
    where = f"from {since[0]:,.0f} GPUs on" if behind else "at all sizes"
    return f"is {percent_range(leads.min(), leads.max())} {where}"


def facts(study: StudyTable, sensitivity: Sensitivity | None) -> list[tuple[str, str]]:
    """The key figures below the headline, as (number, description)."""
    best = study.best
    if best is None:
        return []
    found = [(format_time_s(best["step_time_s"]), f"step time, batch {best['samples']:,.0f}")]
    if best["gpus"] == best["gpus"] and best["gpus"] > 1:
        found.append((format_short(best["rate"] / best["gpus"]), f"{study.unit}/s per GPU"))
    if best["mfu"] == best["mfu"]:
        found.append((percent(best["mfu"]), "MFU"))
    if best["memory_bytes"] == best["memory_bytes"]:
        of = f" of {format_bytes(best['capacity_bytes'])}" if best["capacity_bytes"] == best["capacity_bytes"] else ""
        found.append((format_bytes(best["memory_bytes"]), f"memory per GPU{of}"))
    if best["cost_USD"] == best["cost_USD"]:
        found.append((format_USD(best["cost_USD"]), f"per million {study.unit}"))
    if sensitivity and (one := sensitivity.largest) and one.value:
        found.append((f"{one.value:+.2f} %", f"for 1 % more {one.name}, the bottleneck"))
    return found


def counts(study: StudyTable) -> str:
    """'30 points; 2 do not fit into memory, 3 are not valid.'"""
    points = study.points
    unfit, wrong = int(points["fits"].eq(False).sum()), int(points["error"].notna().sum())
    problems = [f"{unfit:,} {'does' if unfit == 1 else 'do'} not fit into memory"] if unfit else []
    problems += [f"{wrong:,} cannot be predicted"] if wrong else []
    return f"{len(points):,} point{'s' if len(points) != 1 else ''}" + (f"; {' and '.join(problems)}" if problems else "") + "."
