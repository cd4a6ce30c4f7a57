"""Plans in words: degrees, ties, optimality, and the headline, as the console and the page print them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.analysis.planner.candidates import MODEL_PARALLEL
from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.common.units import counted, format_percent, format_range, format_short, format_short_range
from scaleproof.simulator.uncertainty.pairwise import SURE, order_words, probability_words

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.planner.bounded_search import PlanChoice
    from scaleproof.simulator.analysis.planner.record import PlanRecord, PlanRow

_ABBREVIATIONS: Final = {"workers": "DP", "tensor": "TP", "stages": "PP", "chunks": "VPP", "context": "CP", "expert": "EP"}
_BETTER: Final[dict[Objective, str]] = {
    "time": "is faster",
    "cost": "is cheaper",
    "energy": "needs less energy",
    "tokens-per-dollar": "gives more tokens per dollar",
}
_LESS: Final[dict[Objective, str]] = {
    "time": "faster", "cost": "cheaper", "energy": "less energy", "tokens-per-dollar": "cheaper",
}  # fmt: skip


def degrees(configuration: Mapping[str, Any]) -> str:
    """Degrees of model parallelism of a configuration, such as 'TP4 PP2'; the data parallelism if there is no other."""
    if "servers" in configuration:
        return f"{configuration['servers']} {configuration['placement']} servers"
    parts = [_degree(configuration, name) for name in _ABBREVIATIONS if name in MODEL_PARALLEL]
    zero = f" ZeRO-{configuration['zero']}" if configuration.get("zero") else ""
    return " ".join(filter(None, parts)) or f"DP{configuration['workers']}{zero}"


def layout(configuration: Mapping[str, Any]) -> str:
    """A configuration such as 'DP4 TP4 PP4 VPP2, MBS 1, GA 32, ZeRO-1, recompute full'."""
    parts = [" ".join(filter(None, (_degree(configuration, name) for name in _ABBREVIATIONS))) or "1 GPU"]
    if "servers" in configuration:
        parts.append(degrees(configuration))
    parts += [f"MBS {configuration['samples']}", f"GA {configuration.get('microbatches', 1)}"]
    parts += [f"ZeRO-{configuration['zero']}"] if configuration.get("zero") else []
    parts += [f"recompute {recompute_words(configuration['recompute'])}"] if configuration["recompute"] != "none" else []
    return ", ".join(parts)


def fits_words(row: PlanRow | PlanChoice) -> str:
    """'92 %', the probability that a configuration fits, or a dash where it is not known."""
    return "–" if row.fits_probability is None else format_percent(row.fits_probability, 0)


def recompute_words(recompute: str) -> str:
    """'full', 'layers: 5' or 'layernorm, mlp' from a form of recomputation as in a scenario."""
    return recompute.strip("{}").removeprefix("modules: ").strip("[]")


def _degree(configuration: Mapping[str, Any], name: str) -> str:
    degree = configuration.get(name, 1)
    return f"{_ABBREVIATIONS[name]}{degree}" if degree > 1 else ""


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


def nodes_note(plan: PlanRecord) -> str:
    """The nodes that a plan added: '512 GPUs: 32 nodes added to the 32 of dgx-h100'."""
    own = plan.nodes - plan.added_nodes
    return f"{plan.gpus:,} GPUs: {counted(plan.added_nodes, 'node')} added to the {own:,} of {plan.cluster}"


def optimality(plan: PlanRecord) -> str:
    """Whether the best plan is proved to be optimal, and by what; or whose time is not modelled."""
    if plan.unmodelled:
        return f"the best as far as times are modelled; {'; '.join(plan.unmodelled)}"
    if not plan.proved:
        counts = f"{counted(plan.replayed, 'replay')} and {counted(plan.predicted, 'prediction')}"
        return f"best found, not proved optimal: after {counts}, another configuration may still be better"
    return f"optimal: no configuration that fits {_BETTER[plan.objective]} (by bounds, replay and prediction)"


def risk(plan: PlanRecord) -> Iterator[str]:
    """Yields sentences on the probability of fitting: that no configuration reaches the wanted one, and a better configuration
    that fits with a lower one."""
    if plan.fits is not None and plan.wanted_fits is not None and plan.fits < plan.wanted_fits:
        wanted, reached = (format_percent(share, 0) for share in (plan.wanted_fits, plan.fits))
        yield f"no configuration fits with a probability of {wanted}; these fit with one of at least {reached}"
    one, best = plan.riskier, plan.best[0]
    if one is not None and one.fits_probability is not None:
        better = f"{_margin(_amount(best, plan), _amount(one, plan))} {_LESS[plan.objective]}"
        yield f"No. 1 would be {better} as {layout(one.configuration)}, which fits with a probability of {fits_words(one)}"


def is_better(objective: Objective) -> str:
    """'is cheaper': how a plan that is better by an objective compares with another."""
    return _BETTER[objective]


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
