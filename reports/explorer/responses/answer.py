"""The response to a request of the page, as JSON."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from scaleproof.reports.explorer.controls.form import controls
from scaleproof.reports.explorer.controls.layouts import settings_between
from scaleproof.reports.explorer.question import Question
from scaleproof.reports.explorer.responses import sentences
from scaleproof.reports.explorer.responses.comparison import comparison
from scaleproof.reports.explorer.responses.curves import curves, quick
from scaleproof.reports.explorer.responses.plans import best_plans
from scaleproof.reports.explorer.responses.timeline_columns import timeline_columns
from scaleproof.reports.explorer.worker import Report
from scaleproof.simulator.analysis.evidence import evidence
from scaleproof.simulator.common.errors import FieldError, ScaleproofError, ScenarioError
from scaleproof.simulator.common.units import format_change, format_percent
from scaleproof.simulator.engine import NONE, Timeline, Variation, simulate_steady
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.program import Program
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.gpus import with_gpus
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

# Tasks of a step up to which a first look is the answer itself; above, sharing is taken to be among those that start together
# (within 3 % of events for 3-D parallelism of 175 G parameters, where it takes a quarter of their time).
_SMALL: Final = 500
_MOST_EVIDENCE: Final = 5
# of the GPUs of a scenario that does not fit
_MULTIPLES: Final = (2, 4, 8, 16)
_PLACE: Final = re.compile(r"(?:[^\n]*?:\d+:\d+|scenario): ")
_FIELD: Final = re.compile(r"([a-z_][\w.]*): ")
_SETTING: Final = re.compile(r"\bset ([a-z_.]+=[\w.]+)")
_NUMBER: Final = re.compile(r"\bgive (?:at most |at least |a multiple such as )?(\d+)")
_POSSIBLE: Final = re.compile(r"; nearest possible: ([\d,]+)(?: and ([\d,]+))? GPUs")


def scenario_of(question: Question) -> Scenario:
    """The scenario of a request, on its number of GPUs. Raises NotFoundError, ScenarioError or InputError."""
    scenario = load(question.reference, question.sets)
    return scenario if question.gpus is None else with_gpus(scenario, question.gpus)


def answer(question: Question, report: Report) -> bytes:
    """The response to a request as JSON. Errors are part of it, with the field that they concern. report: for progress."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = _LOOKS[question.look](question, report)
            found["warnings"] = [*found.get("warnings", []), *(str(one.message) for one in caught)]
            return _json(found, question)
        except ScaleproofError as error:
            return _json({"error": _problem(error, question)}, question)
        except Exception as error:
            # numbers of any size can fail anywhere; the page must go on
            said = f"this cannot be predicted ({type(error).__name__}); is a number far too large or too small?"
            return _json({"error": {"message": said, "field": "", "remedies": []}}, question)


def _json(found: dict[str, Any], question: Question) -> bytes:
    sets = tuple(found.get("sets", question.sets))
    shown = replace(question, sets=sets, gpus=None if "sets" in found else question.gpus, pinned=None)
    words = ["scaleproof", "predict", question.reference]
    for one in sets:
        words += ["--set", one]
    shared = {"query": shown.query(), "command": shlex.join(words)}
    return json.dumps(found | shared, separators=(",", ":"), allow_nan=False).encode()


def _answer(question: Question, _: Report) -> dict[str, Any]:
    """The prediction, or what is wrong with the request; controls, except with a first estimate."""
    is_first = question.look == "first"
    try:
        scenario = scenario_of(question)
    except ScaleproofError as error:
        return {"error": _problem(error, question), "controls": _nearest_controls(question)}
    try:
        run, is_exact = _first_look(scenario) if is_first else (predict(scenario), True)
    except ScaleproofError as error:
        return {"error": _problem(error, question), "controls": controls(scenario)}
    found = _response(run, scenario, is_exact)
    if question.has_gpus:
        found |= _resolved(question, scenario)
    if is_first:
        return found
    remedies = _memory_remedies(run, scenario) if run.fits is False else []
    return found | {"controls": controls(scenario), "evidence": _evidence(scenario), "remedies": remedies}


def _resolved(question: Question, scenario: Scenario) -> dict[str, Any]:
    """The settings that a number of GPUs stands for; nothing if the scenario is valid on that number alone."""
    sets = question.sets_without_gpus
    try:
        return {"sets": [*sets, *settings_between(load(question.reference, sets), scenario)]}
    except ScaleproofError:
        return {}


def _response(run: Run, scenario: Scenario, is_exact: bool) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "description": scenario.description,
        "exact": is_exact,
        "step_time_s": run.step_time_s,
        "rate": sentences.rate(run)[0] if run.step_time_s > 0 else None,
        "prediction_interval_s": run.prediction_interval_s,
        "samples_per_s": run.samples_per_s if run.step_time_s > 0 else None,
        "ranks": run.ranks,
        "gpus": run.compute_ranks,
        "framework": run.framework,
        "framework_is_default": run.framework_is_default,
        "headline": sentences.headline(run, scenario),
        "subject": sentences.details(run, scenario),
        "bottleneck": sentences.bottleneck(run),
        "numbers": sentences.numbers(run, scenario),
        "breakdown": sentences.breakdown(run),
        "communication": sentences.communication(run),
        "memory": sentences.memory_parts(run),
        "remedies": [],
        "timeline": timeline_columns(run),
        "warnings": list(run.warnings),
    }


def _memory_remedies(run: Run, scenario: Scenario) -> list[dict[str, Any]]:
    """What makes a scenario fit: the settings that are found by a full prediction, and more GPUs."""
    found: list[dict[str, Any]] = []
    if run.fit_by:
        sets = run.fit_by.split()
        gpus = _gpus_with(sets, scenario)
        more = f" (on {gpus:,} GPUs)" if gpus != run.compute_ranks else ""
        note = f"; {run.fit_by_note}" if run.fit_by_note else ""
        found.append({"label": f"Set {', '.join(sets)}{more}{note}", "sets": sets})
    fitting = _gpus_that_fit(scenario)
    return [*found, {"label": f"Use {fitting:,} GPUs", "gpus": fitting}] if fitting else found


def _gpus_that_fit(scenario: Scenario) -> int | None:
    """The smallest multiple of a scenario's GPUs with which it fits at the same global batch; None if none of them suffices."""
    for multiple in _MULTIPLES:
        gpus = multiple * scenario.strategy.training_ranks
        try:
            if memory(with_gpus(scenario, gpus)).fits:
                return gpus
        except ScaleproofError:
            continue
    return None


def _gpus_with(sets: list[str], scenario: Scenario) -> int:
    """Number of GPUs of a scenario with other degrees of model parallelism and as many workers."""
    plan = scenario.strategy.plan
    degrees = {"strategy.tensor": plan.tensor, "strategy.stages": plan.stages}
    gpus = scenario.strategy.training_ranks
    for field, _, value in (one.partition("=") for one in sets):
        if field in degrees:
            gpus = gpus * int(value) // degrees[field]
    return gpus


def _evidence(scenario: Scenario) -> dict[str, Any]:
    """Published runs that are similar to the scenario, and how well they are predicted."""
    found = evidence(scenario)
    if found.median_error is None or found.coverage is None:
        return {"similar": 0, "runs": []}
    step = sentences.step_time
    runs = [
        {
            "id": run.id, "model": run.model, "gpus": f"{run.gpus:,} × {run.device}",
            "layout": run.layout, "framework": run.framework, "measured": step(run.measured_s),
            "predicted": step(run.predicted_s), "error": format_change(run.error), "covered": run.is_covered,
        }
        for run in found.runs[:_MOST_EVIDENCE]
    ]  # fmt: skip
    return {"similar": len(found.runs), "median_error": format_percent(found.median_error),
            "coverage": format_percent(found.coverage, 0), "runs": runs}  # fmt: skip


def _curves(question: Question, _: Report) -> dict[str, Any]:
    return curves(scenario_of(question))


def _comparison(question: Question, _: Report) -> dict[str, Any]:
    """The comparison with the pinned scenario."""
    assert question.pinned is not None, "a comparison has a pinned scenario"
    return comparison(scenario_of(question.pinned), scenario_of(question))


def _plan(question: Question, report: Report) -> dict[str, Any]:
    """The best plans, on the request's number of GPUs even where the scenario's own degrees do not divide it."""
    scenario = load(question.reference, question.sets)
    return best_plans(scenario, question.gpus or scenario.strategy.training_ranks, report)


_LOOKS: Final = {"first": _answer, "full": _answer, "curves": _curves, "comparison": _comparison, "plan": _plan}


def _first_look(scenario: Scenario) -> tuple[Run, bool]:
    """A run without the slow parts (interval, efficiency, remedies), and whether it is exact nevertheless."""
    looks: list[bool] = []

    def simulate(program: Program, steps: int, variation: Variation = NONE) -> Timeline:
        if len(program) <= _SMALL and program.is_static:
            looks.append(True)
            return simulate_steady(program, steps, variation)
        timeline = quick(program, steps, variation)
        looks.append(False)
        return timeline

    run = accounted(timed(scenario, simulate=simulate), scenario)
    use = memory(scenario)
    run = replace(
        run,
        memory_bytes_per_rank=use.worst.total_bytes,
        memory_bytes=use.worst.holders_bytes,
        capacity_bytes=use.capacity_bytes,
        fits=use.fits,
    )
    return run, all(looks)


def _nearest_controls(question: Question) -> list[dict[str, Any]]:
    """The controls of the scenario with the longest valid prefix of the settings."""
    for end in range(len(question.sets), -1, -1):
        try:
            return controls(load(question.reference, question.sets[:end]))
        except ScaleproofError:
            continue
    return []


def _problem(error: BaseException, question: Question) -> dict[str, Any]:
    """What is wrong: `message`, the `field` it belongs to, and `remedies`, each with a label and what it sets or does."""
    field, message = "", str(error)
    if isinstance(error, FieldError):
        field, message = ".".join(map(str, error.field)), error.message
    elif isinstance(error, ScenarioError):
        field, message = _placed(error.problems[0], question.sets)
    elif question.gpus is not None:
        field = "gpus"
    remedies = [{"label": f"Set {one}", "sets": [one]} for one in _remedies(field, message)]
    if field == "gpus":
        remedies += _other_gpus(message, question)
        message = _POSSIBLE.sub("", message)
    return {"field": field, "message": message, "remedies": remedies}


def _other_gpus(message: str, question: Question) -> list[dict[str, Any]]:
    """The nearest numbers of GPUs that the degrees divide, and a plan with other degrees."""
    found = _POSSIBLE.search(message)
    numbers = [int(one.replace(",", "")) for one in found.groups() if one] if found else []
    offers: list[dict[str, Any]] = [{"label": f"Use {number:,} GPUs", "gpus": number} for number in numbers]
    return [*offers, {"label": f"Find the best plan on {question.gpus:,} GPUs", "plan": question.gpus}]


def _placed(problem: str, sets: tuple[str, ...]) -> tuple[str, str]:
    """The field of a problem and its message, without its place in a file."""
    field = ""
    for one in sets:
        if problem.startswith(start := f"--set {one}: "):
            field, problem = one.partition("=")[0], problem.removeprefix(start)
            break
    else:
        problem = _PLACE.sub("", problem, count=1)
    found = _FIELD.match(problem)
    return (found[1], problem[found.end() :]) if found else (field, problem)


def _remedies(field: str, message: str) -> list[str]:
    """The remedies in a message, as `field=value`."""
    found = _SETTING.findall(message)
    if not found and field and (number := _NUMBER.search(message)):
        found = [f"{'batch.total' if field == 'batch' else field}={number[1]}"]
    return [one for one in dict.fromkeys(found) if not one.startswith("strategy=")]


def as_yaml(question: Question) -> str:
    """A scenario file with which `scaleproof predict` gives the same result. Raises NotFoundError or ScenarioError."""
    scenario = scenario_of(question)
    head = f"# {shlex.join(['scaleproof', 'predict', f'{Path(scenario.name).stem}.yaml'])}\n"
    return head + dump.dump(scenario, by_name=True)
