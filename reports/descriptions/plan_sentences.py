"""Sentences about plans: the headline, how sure it is, how plans compare, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.analysis.planner.words import degrees, fits_words, layout
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_change_s,
    format_percent,
    format_range,
    format_short,
    format_short_range,
    format_time_s,
)
from scaleproof.simulator.run.bottleneck import WAITING_FOR_INPUT
from scaleproof.simulator.uncertainty.pairwise import SURE, order_words, probability_words

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.planner.record import PlanRecord, PlanRow

# Number of points of the Pareto front that are named, and minimum share of a difference from which a cause is.
_MOST_POINTS: Final = 6
_MIN_SHARE: Final = 0.01
_BETTER: Final[dict[Objective, str]] = {
    "time": "is faster",
    "cost": "is cheaper",
    "energy": "needs less energy",
    "tokens-per-dollar": "gives more tokens per dollar",
}
_LESS: Final[dict[Objective, str]] = {
    "time": "faster", "cost": "cheaper", "energy": "less energy", "tokens-per-dollar": "cheaper",
}  # fmt: skip


def headline(plans: Sequence[PlanRecord]) -> str:
    """The answer at the largest size: '256 GPUs: 308k tokens/s (261–364k), 3.99x of 64 GPUs; TP4 PP2 beats TP8 by 39 %.'"""
    planned = [plan for plan in plans if not plan.problem]
    if not planned:
        return f"No plan fits on {' or '.join(f'{plan.gpus:,}' for plan in plans)} GPUs."
    first, last = planned[0], planned[-1]
    best = last.best[0]
    rate, low, high = (last.per_second(time_s) for time_s in (best.step_time_s, best.high_s, best.low_s))
    sentence = f"{last.gpus:,} GPUs: {format_short(rate)} {last.unit}/s ({format_short_range(low, high)})"
    if len(planned) > 1:
        sentence += f", {rate / first.per_second(first.best[0].step_time_s):.2f}x of {counted(first.gpus, 'GPU')}"
    if is_risky(last, best):
        sentence += f", but it fits with a probability of {fits_words(best.fits_probability)} only"
    margin = against_runner_up(last)
    return sentence + (f"; {margin}." if margin else ".")


def against_runner_up(plan: PlanRecord) -> str:
    """'TP4 PP2 beats TP8 by 39 %', 'TP4 PP2 is faster than TP8 with a probability of 72 %', or "" if all configurations have
    the same degrees."""
    best, other = plan.best[0], plan.runner_up
    if other is None:
        return ""
    names = degrees(best.configuration), degrees(other.configuration)
    if other.best_is_better is not None and other.best_is_better < SURE:
        return order_words(names, other.best_is_better, _BETTER[plan.objective])
    margin = _margin(_amount(other, plan), _amount(best, plan))
    if plan.objective == "time":
        return f"{names[0]} beats {names[1]} by {margin}"
    if plan.objective == "energy":
        return f"{names[1]} needs {margin} more energy than {names[0]}"
    return f"{names[1]} costs {margin} more than {names[0]}"


def _amount(row: PlanRow, plan: PlanRecord) -> float:
    """Seconds, joules or US dollars of a step, by the objective, of which they are known."""
    if plan.objective == "time":
        return row.step_time_s
    amounts = row.energy_J if plan.objective == "energy" else row.cost_USD
    assert amounts is not None
    return amounts["per_step"]


def _margin(larger: float, smaller: float) -> str:
    share = larger / smaller - 1
    return format_percent(share, 0 if share >= 0.0995 else 1)


def search(plan: PlanRecord) -> str:
    """How many configurations were estimated and fit, how many were replayed and predicted, and for how long."""
    sure = "" if plan.fits is None else f" with a probability of {format_percent(plan.fits, 0)}"
    room = f"up to {format_bytes(plan.capacity_bytes)} of {format_bytes(plan.device_bytes)}"
    estimated = f"{plan.configurations:,} configurations estimated in {format_time_s(plan.estimate_seconds)}"
    simulated = f"{plan.replayed} replayed and {plan.predicted} predicted in {format_time_s(plan.search_seconds)}"
    return f"{estimated}, {plan.fitting:,} fit{sure} ({room}); {simulated}"


def frameworks(plan: PlanRecord) -> str:
    """'pytorch-ddp, torchtitan, by default': the frameworks that were considered."""
    return ", ".join(plan.frameworks) + (", by default" if plan.framework_is_default else "")


def nodes_note(plan: PlanRecord) -> str:
    """The nodes that a plan added: '512 GPUs: 32 nodes added to the 32 of dgx-h100'."""
    own = plan.nodes - plan.added_nodes
    return f"{plan.gpus:,} GPUs: {counted(plan.added_nodes, 'node')} added to the {own:,} of {plan.cluster}"


def input_bound(plan: PlanRecord) -> str:
    """What the best plan waits for: '8 GPUs: input-bound, No. 1 waits for samples in 45 % of a step; limited by …'."""
    row = plan.best[0]
    share = format_percent(row.breakdown_s[WAITING_FOR_INPUT] / row.step_time_s, 0)
    return f"{plan.gpus:,} GPUs: input-bound, No. 1 waits for samples in {share} of a step; {plan.input}"


def optimality(plan: PlanRecord) -> str:
    """Whether the best plan is proved to be optimal, and by what; or whose time is not modelled."""
    if plan.unmodelled:
        return f"the best as far as times are modelled; {'; '.join(plan.unmodelled)}"
    if not plan.proved:
        counts = f"{counted(plan.replayed, 'replay')} and {counted(plan.predicted, 'prediction')}"
        return f"best found, not proved optimal: after {counts}, another configuration may still be better"
    if is_risky(plan, plan.best[0]):
        fits = fits_words(plan.best[0].fits_probability)
        none = f"none that fits as surely {_BETTER[plan.objective]} (by bounds, replay and prediction)"
        return f"not called optimal, as No. 1 fits with a probability of {fits} only; {none}"
    return f"optimal: no configuration that fits {_BETTER[plan.objective]} (by bounds, replay and prediction)"


def is_risky(plan: PlanRecord, row: PlanRow) -> bool:
    """Whether a configuration fits with a lower probability than was wanted."""
    return row.fits_probability is not None and row.fits_probability < (plan.wanted_fits or 0.0)


def risk(plan: PlanRecord) -> Iterator[str]:
    """Yields sentences on the probability of fitting: that no configuration reaches the wanted one, and a better configuration
    that fits with a lower one."""
    if plan.fits is not None and plan.wanted_fits is not None and plan.fits < plan.wanted_fits:
        wanted, reached = (format_percent(share, 0) for share in (plan.wanted_fits, plan.fits))
        yield f"no configuration fits with a probability of {wanted}; these fit with one of at least {reached}"
    one, best = plan.riskier, plan.best[0]
    if one is not None and one.fits_probability is not None:
        better = f"{_margin(_amount(best, plan), _amount(one, plan))} {_LESS[plan.objective]}"
        fits = fits_words(one.fits_probability)
        yield f"No. 1 would be {better} as {layout(one.configuration)}, which fits with a probability of {fits}"


def left_out(plan: PlanRecord) -> Iterator[str]:
    """Yields that the best plan leaves nodes out, and how much longer the best on most devices takes."""
    if not plan.by_nodes:
        return
    best, most = plan.best[0], max(plan.by_nodes, key=lambda row: row.gpus)
    if best.gpus < most.gpus:
        margin = _margin(_amount(most, plan), _amount(best, plan))
        other = f"on {most.configuration['nodes']} the best takes {format_time_s(most.step_time_s)}"
        yield f"No. 1 leaves nodes out, on {best.configuration['nodes']}: {other}, {margin} more by {plan.objective}"


def is_better(objective: Objective) -> str:
    """'is cheaper': how a plan that is better by an objective compares with another."""
    return _BETTER[objective]


def comparisons(plan: PlanRecord) -> Iterator[str]:
    """Yields why No. 2 is slower, what is a tie, and how the best other degrees compare."""
    if len(plan.best) > 1:
        first, second = plan.best[:2]
        more_s = second.step_time_s - first.step_time_s
        parts = {cause: second.breakdown_s[cause] - seconds for cause, seconds in first.breakdown_s.items()}
        causes = [
            f"{cause.replace('_', ' ')} {format_change_s(seconds)}"
            for cause, seconds in sorted(parts.items(), key=lambda part: -abs(part[1]))
            if abs(seconds) >= _MIN_SHARE * abs(more_s)
        ]
        # a difference that two decimals show
        if more_s >= 5e-5 * first.step_time_s:
            yield f"No. 2 takes {format_percent(more_s / first.step_time_s, 2)} longer: {', '.join(causes)}"
        assert second.best_is_better is not None
        probability = format_percent(second.best_is_better, 0)
        yield f"No. 1 {is_better(plan.objective)} than No. 2 with a probability of {probability}"
    yield from tie_sentence(plan)
    if margin := against_runner_up(plan):
        yield margin


def front(plan: PlanRecord) -> Iterator[str]:
    """Yields points of the Pareto front of estimated step time and memory."""
    points = plan.front
    if len(points) < 2:
        return
    step = max(1, -(-len(points) // _MOST_POINTS))
    shown = [*points[::step], *([points[-1]] if (len(points) - 1) % step else [])]
    parts = [f"{format_time_s(point.estimated_s)} with {format_bytes(point.memory_bytes)}" for point in shown]
    yield f"Pareto front, estimated time vs. memory ({len(points)}): {', '.join(parts)}"


def too_large(plan: PlanRecord) -> Iterator[str]:
    """Yields the fastest configuration that does not fit."""
    if plan.too_large:
        one = plan.too_large[0]
        holder = max(one.holders_bytes, key=lambda name: one.holders_bytes[name])
        yield (
            f"does not fit: {degrees(one.configuration)} would take {format_time_s(one.estimated_s)} (estimated) but needs "
            f"{format_bytes(one.memory_bytes)}, {format_bytes(one.holders_bytes[holder])} of it {holder.replace('_', ' ')}"
        )


def server_counts(plan: PlanRecord) -> Iterator[str]:
    """Yields the shortest estimated step time by number of servers, for each placement."""
    counts = sorted(plan.server_counts, key=lambda count: count.placement, reverse=True)
    for placement, group in groupby(counts, key=lambda count: count.placement):
        steps = ", ".join(f"{format_time_s(count.estimated_s)} with {count.servers}" for count in group)
        yield f"a step by number of {placement} servers (estimated): {steps}"


def tie_sentence(plan: PlanRecord) -> Iterator[str]:
    """Yields 'Nos. 2 to 10 are a tie with No. 1: it is cheaper with a probability of 51 to 62 %', if any are."""
    if plan.ties:
        sure = sorted(plan.best[number - 1].best_is_better or 0.5 for number in plan.ties)
        share = format_range(*(probability_words(one) for one in (sure[0], sure[-1])))
        which = f"No. {plan.ties[0]} is" if len(plan.ties) == 1 else f"Nos. {_listed(plan.ties)} are"
        yield f"{which} a tie with No. 1: it {_BETTER[plan.objective]} with a probability of {share}"


def _listed(numbers: Sequence[int]) -> str:
    """'2 to 5, 7 and 9' from sorted numbers."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
