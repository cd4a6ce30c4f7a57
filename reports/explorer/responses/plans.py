"""The best plans for a scenario's model, GPUs and global batch, with the settings that lead to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from scaleproof.reports.explorer.controls.layouts import settings_between
from scaleproof.reports.explorer.responses.sentences import layout, rate
from scaleproof.simulator.analysis.planner.search import PlanChoice, plan
from scaleproof.simulator.analysis.planner.words import fits_words
from scaleproof.simulator.common.units import format_bytes, format_number
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import is_tie, ratio_interval

_SHOWN: Final = 5
# searched, since several may differ in nothing that is shown
_SEARCHED: Final = 20


def best_plans(scenario: Scenario, gpus: int, report: Callable[[str], None]) -> dict[str, Any]:
    """The best plans on N GPUs, the fastest first: what each is, its throughput, its memory, whether it ties with the first;
    and whether the first beats the scenario itself.

    report: called with progress messages. Raises FieldError or InputError where no plan is valid or fits.
    """
    nodes = -(-gpus // scenario.cluster.node.devices)
    room = scenario.copied(cluster=scenario.cluster.with_nodes(nodes))
    found = plan(room, gpus, top=_SEARCHED, report_progress=report)
    choices = list(_different(found.best))[:_SHOWN]
    report("comparing the best plans")
    return {
        "gpus": gpus,
        "beaten": not _is_as_fast(scenario, gpus, choices[0]),
        "considered": len(found.expected_s),
        "proved": found.proved,
        "unit": rate(choices[0].run)[1],
        "plans": [_plan(scenario, choice, choices[0]) for choice in choices],
    }


def _is_as_fast(scenario: Scenario, gpus: int, best: PlanChoice) -> bool:
    """Whether the scenario itself runs on these GPUs, fits, and is as fast as the best plan."""
    if scenario.strategy.training_ranks != gpus or not memory(scenario).fits:
        return False
    return timed(scenario).step_time_s <= best.run.step_time_s


def _different(choices: tuple[PlanChoice, ...]) -> Iterator[PlanChoice]:
    """The plans that differ in what is shown of them; the others differ in bucket size or rank order."""
    seen = set()
    for choice in choices:
        text = layout(choice.scenario)
        if text not in seen:
            seen.add(text)
            yield choice


def _plan(scenario: Scenario, choice: PlanChoice, best: PlanChoice) -> dict[str, Any]:
    ratio = choice.run.samples_per_s / best.run.samples_per_s
    tied = choice is best or is_tie(ratio_interval(best.scenario, choice.scenario, ratio).ahead)
    fits = "" if choice.fits_probability is None else f", fits with {fits_words(choice.fits_probability)}"
    return {
        "label": layout(choice.scenario),
        "rate": format_number(rate(choice.run)[0]),
        "ratio": ratio,
        "tie": tied,
        "memory": format_bytes(choice.memory_bytes) + fits,
        "sets": settings_between(scenario, choice.scenario),
    }
