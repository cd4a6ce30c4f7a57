"""prove: predicts and measures cases that nothing was calibrated on, one after the other, and keeps what came of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, RunError
from simulator.run import Run, write_aside
from validator.hosts import needed_nodes
from validator.measure import Watch, measure
from validator.processors import Processors
from validator.proving.cases import Case
from validator.proving.figures import Outcome

OUTCOMES_FILE: Final = "outcomes.jsonl"
# A run is measured again while the machine's host takes more than this share of the cores' time: what is proved is the
# forecast, not the neighbours. The attempt that they disturbed least counts.
_DISTURBED: Final = 0.02
_TIMEOUT_S: Final = 60.0

Measure = Callable[[Case], Run]


def measured_in_lab(case: Case) -> Run:
    """Trains a case on hosts of its own, as its cluster describes them nominally."""
    return measure(case.scenario, "netlab", Watch(_TIMEOUT_S))


def prove(
    cases: Iterable[Case],
    known: Mapping[str, Outcome],
    measure_case: Measure,
    tell: Callable[[Outcome], None],
    attempts: int = 3,
) -> list[Outcome]:
    """The outcomes of all cases. known: of those that need not be measured again. tell: is called with each that is. attempts:
    at a run that others disturb."""
    outcomes = []
    for case in cases:
        outcome = known.get(case.scenario.name)
        if outcome is None or outcome.predicted_s != case.predicted.step_time_s:
            outcome = _outcome(case, measure_case, attempts)
            tell(outcome)
        outcomes.append(outcome)
    return outcomes


def _outcome(case: Case, measure_case: Measure, attempts: int) -> Outcome:
    predicted = case.predicted
    low_s, high_s = predicted.prediction_interval_s or (predicted.step_time_s,) * 2
    told: dict[str, Any] = {
        "name": case.scenario.name,
        "group": case.group,
        "family": case.family,
        "compute": case.scenario.compute,
        "hosts": needed_nodes(case.scenario),
        "predicted_s": predicted.step_time_s,
        "low_s": low_s,
        "high_s": high_s,
    }
    try:
        run, taken = _least_disturbed(case, measure_case, attempts)
    except RunError as error:
        return Outcome(**told, measured_s=None, failure=str(error))
    return Outcome(**told, measured_s=run.step_time_s, taken=taken)


def _least_disturbed(case: Case, measure_case: Measure, attempts: int) -> tuple[Run, float]:
    """The run during which the machine's host took least, and how much."""
    runs: list[tuple[float, Run]] = []
    while not runs or (len(runs) < attempts and min(taken for taken, _ in runs) > _DISTURBED):
        meanwhile = Processors()
        run = measure_case(case)
        runs.append((meanwhile.taken(), run))
    taken, run = min(runs, key=lambda attempt: attempt[0])
    return run, taken


def write(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Writes what came of the cases so far, a line each."""
    text = "".join(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
    write_aside(folder / OUTCOMES_FILE, text.encode())


def read(folder: Path) -> dict[str, Outcome]:
    """What came of cases in an earlier run, by name; nothing where there was none. Raises InputError."""
    path = folder / OUTCOMES_FILE
    if not path.exists():
        return {}
    names = {field.name for field in fields(Outcome)}
    found: dict[str, Outcome] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row: dict[str, Any] = json.loads(line)
            outcome = Outcome(**{name: value for name, value in row.items() if name in names})
        except (ValueError, TypeError, AttributeError):
            raise InputError(f"{path}:{number}: no outcome of a case; remove the file, or give another --out") from None
        if outcome.measured_s is not None:
            found[outcome.name] = outcome
    return found
