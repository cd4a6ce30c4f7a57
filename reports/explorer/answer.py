"""The response to a request of the page, as JSON."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from scaleproof.reports.explorer import sentences
from scaleproof.reports.explorer.controls import controls
from scaleproof.reports.explorer.question import Question
from scaleproof.reports.explorer.timeline_columns import timeline_columns
from scaleproof.simulator.common.errors import FieldError, ScaleproofError, ScenarioError
from scaleproof.simulator.engine import NONE, Timeline, Variation, events, replay, simulate_steady
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.program import Program
from scaleproof.simulator.run.accounting import accounted
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

# Tasks of a step up to which a first look is the answer itself; above, sharing is taken to be among those that start together
# (within 3 % of events for 3-D parallelism of 175 G parameters, where it takes a quarter of their time).
_SMALL: Final = 500
# steps of a first look where ranks do not go in step
_FEW_STEPS: Final = 8
_PLACE: Final = re.compile(r"(?:[^\n]*?:\d+:\d+|scenario): ")
_FIELD: Final = re.compile(r"([a-z_][\w.]*): ")
_SETTING: Final = re.compile(r"\bset ([a-z_.]+=[\w.]+)")
_NUMBER: Final = re.compile(r"\bgive (?:at most |at least |a multiple such as )?(\d+)")


def scenario_of(question: Question) -> Scenario:
    """The scenario of a request. Raises NotFoundError or ScenarioError."""
    return load(question.reference, question.sets)


def answer(question: Question) -> bytes:
    """The response to a request as JSON. Errors are part of it, with the field that they concern."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = _answer(question)
            found["warnings"] = [*found.get("warnings", []), *(str(one.message) for one in caught)]
            return _json(found, question)
        except Exception as error:
            # numbers beyond all sense lead anywhere; the page lives on
            said = f"that cannot be predicted ({type(error).__name__}); is one of the numbers beyond all sense?"
            return _json({"error": {"message": said, "field": "", "remedies": []}}, question)


def _json(found: dict[str, Any], question: Question) -> bytes:
    return json.dumps(found | _shared(question), separators=(",", ":"), allow_nan=False).encode()


def _shared(question: Question) -> dict[str, Any]:
    """The request as a command line and as the page's address."""
    words = ["scaleproof", "predict", question.reference]
    for one in question.sets:
        words += ["--set", one]
    return {"query": question.query(), "command": shlex.join(words)}


def _answer(question: Question) -> dict[str, Any]:
    try:
        scenario = scenario_of(question)
    except ScaleproofError as error:
        return {"error": _problem(error, question.sets), "controls": _nearest_controls(question)}
    try:
        run, is_exact = _first_look(scenario) if question.first else (predict(scenario), True)
    except ScaleproofError as error:
        return {"error": _problem(error, question.sets), "controls": controls(scenario)}
    return _response(run, scenario, is_exact) | ({} if question.first else {"controls": controls(scenario)})


def _response(run: Run, scenario: Scenario, is_exact: bool) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "description": scenario.description,
        "exact": is_exact,
        "step_time_s": run.step_time_s,
        "samples_per_s": run.samples_per_s if run.step_time_s > 0 else None,
        "ranks": run.ranks,
        "framework": run.framework,
        "framework_is_default": run.framework_is_default,
        "headline": sentences.headline(run, scenario),
        "bottleneck": sentences.bottleneck(run),
        "numbers": sentences.numbers(run),
        "breakdown": sentences.breakdown(run),
        "memory": sentences.memory_parts(run),
        "timeline": timeline_columns(run),
        "warnings": list(run.warnings),
    }


def _first_look(scenario: Scenario) -> tuple[Run, bool]:
    """A run without the slow parts (interval, efficiency, remedies), and whether it is exact nevertheless."""
    looks: list[bool] = []

    def simulate(program: Program, steps: int, variation: Variation = NONE) -> Timeline:
        is_small = len(program) <= _SMALL
        looks.append(is_small and (program.is_static or steps <= _FEW_STEPS + 1))
        if is_small and program.is_static:
            return simulate_steady(program, steps, variation)
        if program.is_static:
            return replay.simulate_concurrent(program, steps, variation)
        return events.simulate(program, min(steps, _FEW_STEPS + 1), variation)

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
    for end in range(len(question.sets) - 1, -1, -1):
        try:
            return controls(scenario_of(replace(question, sets=question.sets[:end])))
        except ScaleproofError:
            continue
    return []


def _problem(error: BaseException, sets: tuple[str, ...]) -> dict[str, Any]:
    """What is wrong: `message`, the `field` it belongs to, and `remedies`, settings that may fix it."""
    field, message = "", str(error)
    if isinstance(error, FieldError):
        field, message = ".".join(map(str, error.field)), error.message
    elif isinstance(error, ScenarioError):
        field, message = _placed(error.problems[0], sets)
    return {"field": field, "message": message, "remedies": _remedies(field, message)}


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
