"""Records of measured claims: a file next to the claims with date, machine and all values.

Verdicts are not stored: they are computed from the values and the claim's test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scaleproof.proof.claims.claim import Claim, Place
from scaleproof.proof.claims.evaluate import ExperimentResult, evaluate, point_of
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_file
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

FILE: Final = "measured.json"
# of a run's provenance, what the numbers may depend on and what is nobody's secret
_MACHINE: Final = ("cpu", "cores", "system", "python", "torch", "backend")


@dataclass(frozen=True)
class ClaimRecord:
    """A measured claim. date: of the first run. machine: hardware and software. points: values of each line by axis value.
    runs: strategy, step time with interval, and warnings of each scenario."""

    date: str
    machine: Mapping[str, str]
    points: tuple[Mapping[str, Any], ...]
    runs: tuple[Mapping[str, Any], ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the runs, each once."""
        return tuple(dict.fromkeys(line for run in self.runs for line in run["warnings"]))

    def found(self, claim: Claim) -> ExperimentResult | None:
        """The result of the claim's experiment; None if the record is of another one."""
        experiment = claim.netlab
        if experiment is None or [_plain(place) for place in experiment.axis.places] != [point["x"] for point in self.points]:
            return None
        if any(set(point["values"]) != set(experiment.lines) for point in self.points):
            return None
        points = zip(experiment.axis.places, self.points, strict=True)
        return ExperimentResult(
            experiment, tuple(point_of(experiment, place, point["values"]) for place, point in points), None
        )


def _plain(place: Place) -> Any:
    """A record as data for JSON."""
    return list(place) if isinstance(place, tuple) else place


def read_all(folder: Path) -> dict[str, ClaimRecord]:
    """Reads the records of the claims in a folder, by name. Raises InputError for an invalid file."""
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: ClaimRecord(one["date"], one["machine"], tuple(one["points"]), tuple(one["runs"]))
            for name, one in plain.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"{path}: no record of measured claims; remove it, and measure again with --on netlab") from None


def keep(folder: Path, name: str, record: ClaimRecord) -> None:
    """Adds a claim's record to the file of its folder."""
    with locked_file(folder / FILE, "claims", PATIENCE_S):
        records = read_all(folder) | {name: record}
        plain = {one: asdict(records[one]) for one in sorted(records)}
        write_atomically(folder / FILE, (json.dumps(plain, indent=1) + "\n").encode())


def measured(claim: Claim, measure: Callable[[Scenario], Run]) -> ClaimRecord:
    """Measures all scenarios of the claim's experiment in netlab, each once. measure: trains one.

    Raises InputError for a claim without such an experiment.
    """
    if claim.netlab is None:
        raise InputError(f"{claim.name}: there is nothing to measure; give the claim an experiment called netlab")
    runs: list[tuple[Scenario, Run]] = []

    def train(scenario: Scenario) -> Run:
        runs.append((scenario, measure(scenario)))
        return runs[-1][1]

    found = evaluate(claim, claim.netlab, train)
    first = runs[0][1].provenance
    return ClaimRecord(
        date=first["date"],
        machine={name: first[name] for name in _MACHINE if name in first},
        points=tuple({"x": _plain(point.x), "values": dict(point.values)} for point in found.points),
        runs=tuple(_run_data(scenario, run) for scenario, run in runs),
    )


def _run_data(scenario: Scenario, run: Run) -> dict[str, Any]:
    """The data of a run that a record has in addition to its value."""
    strategy = scenario.strategy.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {
        "strategy": {"kind": run.strategy} | strategy,
        "samples": run.samples,
        "step_time_s": run.step_time_s,
        "step_time_interval_s": run.step_time_interval_s,
        "warnings": list(run.warnings),
    }
