"""Text about plans for the console and the page: differing and equal settings, ties, optimality, and the headline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from scaleproof.simulator.analysis.planner.objectives import Objective
from scaleproof.simulator.analysis.planner.words import degrees, layout, recompute_words
from scaleproof.simulator.common.units import counted, format_percent, format_range, format_short, format_short_range
from scaleproof.simulator.uncertainty.pairwise import SURE, order_words, probability_words

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.planner.record import PlanRecord, PlanRow
    from scaleproof.simulator.analysis.planner.search import PlanChoice

_BETTER: Final[dict[Objective, str]] = {
    "time": "is faster",
    "cost": "is cheaper",
    "energy": "needs less energy",
    "tokens-per-dollar": "gives more tokens per dollar",
}
_LESS: Final[dict[Objective, str]] = {
    "time": "faster", "cost": "cheaper", "energy": "less energy", "tokens-per-dollar": "cheaper",
}  # fmt: skip
_NONE: Final = "–"
# Schedules that follow from the number of virtual stages.
_IMPLIED: Final = ("1f1b", "interleaved_1f1b")


def _number(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: str(row.get(name, 1))


def _expert_tensor(row: Mapping[str, Any]) -> str:
    """Tensor-parallel size of the experts; by default that of the other layers."""
    return str(row["expert_tensor"] or row["tensor"]) if row.get("expert", 1) > 1 else "1"


def _servers(row: Mapping[str, Any]) -> str:
    """'8 dedicated, by node': number, placement, and whether workers of a node push aggregated gradients."""
    if "servers" not in row:
        return _NONE
    return f"{row['servers']} {row['placement']}" + (", by node" if row["two_level"] else "")


# Settings of a configuration by the heads of their columns.
SETTINGS: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "DP": _number("workers"),
    "TP": _number("tensor"),
    "PP": _number("stages"),
    "VPP": _number("chunks"),
    "CP": _number("context"),
    "EP": _number("expert"),
    "ETP": _expert_tensor,
    "MBS": _number("samples"),
    "GA": _number("microbatches"),
    "ZeRO": lambda row: str(row.get("zero", 0)),
    "recompute": lambda row: recompute_words(row["recompute"]),
    "schedule": lambda row: _NONE if row.get("schedule") in _IMPLIED else str(row.get("schedule", _NONE)),
    "SP": lambda row: "yes" if row.get("sequence_parallel") else "no",
    "servers": _servers,
    "framework": lambda row: str(row["framework"]),
}
# Settings that are only mentioned where they are used.
_SILENT: Final = {"schedule": _NONE, "SP": "no", "servers": _NONE, "ETP": "1"}


class Settings(NamedTuple):
    """The settings of several configurations. differing: columns by their heads. equal: values that all rows share."""

    differing: Mapping[str, list[str]]
    equal: Mapping[str, str]

    @classmethod
    def of(cls, configurations: Sequence[Mapping[str, Any]]) -> Self:
        """The settings of configurations, each given as the values of scenario fields by name."""
        columns = {name: [value(row) for row in configurations] for name, value in SETTINGS.items()}
        same = {name for name, column in columns.items() if len(set(column)) == 1}
        equal = {name: columns[name][0] for name in same if columns[name][0] != _SILENT.get(name)}
        return cls(
            {name: column for name, column in columns.items() if name not in same},
            {name: equal[name] for name in columns if name in equal and name != "framework"},
        )

    @property
    def equal_words(self) -> str:
        """'CP 1, EP 1, recompute none'."""
        return ", ".join(f"{name} {value}" for name, value in self.equal.items())


def fits_words(row: PlanRow | PlanChoice) -> str:
    """'92 %', the probability that a configuration fits, or a dash where it is not known."""
    return "–" if row.fits_probability is None else format_percent(row.fits_probability, 0)


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
