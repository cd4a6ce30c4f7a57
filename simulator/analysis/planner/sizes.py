"""Plans of one scenario on several numbers of GPUs, with the global batch kept, and the folder that they are written to.

A size is written when it is finished. Sizes that the folder already has for the same inputs are not planned again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from scaleproof.simulator.analysis.planner.methods import own_method, trained_by
from scaleproof.simulator.analysis.planner.record import MethodRow, PlanRecord, record_of
from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError, one_line
from scaleproof.simulator.common.file_lock import locked_folder
from scaleproof.simulator.model.fine_tuning import parameter_counts
from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.schema import Scenario

_RECORDS: Final = "plan-*.json"
_DIGITS: Final = 16


def plan_sizes(
    scenario: Scenario,
    sizes: Sequence[int],
    options: Mapping[str, Any],
    folder: Path | None = None,
    report_progress: Callable[[str], None] = lambda _: None,
    tokens: float | None = None,
) -> list[PlanRecord]:
    """Plans of a scenario on some numbers of GPUs, for which nodes are added to its cluster where it has too few.

    options: arguments of `plan` by name, and `adapters`: methods of fine-tuning to compare, the scenario's own if None. folder:
    where each plan is written as soon as it is finished, as `plan-N.json` and `best-N.yaml`; plans that it has for the same
    inputs are read. tokens: of a whole training run, whose totals are added. A size without a plan has a record with the
    problem.

    Raises InputError where no size has a plan, or the folder has plans of other inputs.
    """
    key = _digest(scenario, options)
    with nullcontext() if folder is None else locked_folder(folder, "a plan"):
        known = {} if folder is None else {record.gpus: record for record in _of_same_inputs(folder, key)}
        records = []
        for gpus in sizes:
            prefix = f"{gpus:,} GPUs: " if len(sizes) > 1 else ""
            record = known.get(gpus) or _planned(scenario, gpus, options, key, _prefixed(report_progress, prefix))
            record = record.with_totals(tokens, scenario.cluster.electricity.carbon_kg_per_J)
            if folder is not None and record != known.get(gpus):
                _save(record, folder)
            records.append(record)
    if all(record.problem for record in records):
        raise InputError("; ".join(dict.fromkeys(record.problem for record in records)))
    return records


def best_file(gpus: int) -> str:
    """Name of the scenario file of the best plan."""
    return f"best-{gpus}.yaml"


def is_plan_folder(folder: Path) -> bool:
    """Whether `plan_sizes` has written to a folder."""
    return next(folder.glob(_RECORDS), None) is not None


def read_plans(folder: Path) -> tuple[list[PlanRecord], list[str]]:
    """The plans in a folder, by increasing number of GPUs, and a note for each file that cannot be read."""
    records, notes = [], []
    for path in sorted(folder.glob(_RECORDS)):
        try:
            records.append(PlanRecord.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            notes.append(f"{path.name} cannot be read ({one_line(error)})")
    return sorted(records, key=lambda record: record.gpus), notes


def _of_same_inputs(folder: Path, key: str) -> Iterator[PlanRecord]:
    """Yields the plans of a folder. Raises InputError if it has one of other inputs."""
    records, notes = read_plans(folder)
    if notes:
        raise InputError(f"{folder}: {notes[0]}; give another folder")
    for record in records:
        if record.key != key:
            message = "already contains plans for another scenario, other options or another version of scaleproof"
            raise InputError(f"{folder}: {message}; give another folder")
        yield record


def _planned(
    scenario: Scenario, gpus: int, options: Mapping[str, Any], key: str, report_progress: Callable[[str], None]
) -> PlanRecord:
    methods: list[MethodRow] = []
    found: PlanRecord | None = None
    for method in options.get("adapters") or (own_method(scenario),):
        changed = trained_by(scenario, method)
        record = _planned_by(changed, gpus, options, key, report_progress)
        trained, total = parameter_counts(changed.layers(WHOLE))
        best = None if record.problem else record.best[0]
        one = MethodRow(method=method, trained_parameters=trained, parameters=total, best=best, problem=record.problem)
        methods.append(one)
        found = record if found is None or (found.problem and not record.problem) else found
    assert found is not None
    return found.model_copy(update={"methods": methods}) if len(methods) > 1 else found


def _planned_by(
    scenario: Scenario, gpus: int, options: Mapping[str, Any], key: str, report_progress: Callable[[str], None]
) -> PlanRecord:
    """The plan of a scenario with its own method of fine-tuning."""
    added = 0
    try:
        larger = scenario
        if not scenario.cluster.kinds:
            nodes = -(-gpus // scenario.cluster.node.devices) + (options.get("servers") or 0)
            larger = scenario.rebuilt(cluster=scenario.cluster.with_nodes(nodes))
        added = larger.cluster.nodes - scenario.cluster.nodes
        searched = {name: value for name, value in options.items() if name != "adapters"}
        planned = plan(larger, gpus, report_progress=report_progress, **searched)
        return record_of(planned, _version(), added, key)
    except InputError as error:
        return PlanRecord(
            version=_version(),
            key=key,
            gpus=gpus,
            scenario=scenario.name,
            model=scenario.model.name or scenario.name,
            cluster=scenario.cluster.name or "its cluster",
            nodes=scenario.cluster.nodes + added,
            added_nodes=added,
            samples=scenario.total_samples,
            problem=str(error),
        )


def _save(record: PlanRecord, folder: Path) -> None:
    """Writes a plan. Its record comes last, so that what it describes exists."""
    if record.scenario_yaml:
        write_atomically(folder / best_file(record.gpus), record.scenario_yaml.encode())
    write_atomically(folder / f"plan-{record.gpus}.json", record.to_json().encode())


def _digest(scenario: Scenario, options: Mapping[str, Any]) -> str:
    """A digest of everything that the plans of a scenario depend on, except the number of GPUs."""
    inputs = json.dumps([_version(), dump(scenario), {name: repr(options[name]) for name in sorted(options)}])
    return hashlib.sha256(inputs.encode()).hexdigest()[:_DIGITS]


def _prefixed(report_progress: Callable[[str], None], prefix: str) -> Callable[[str], None]:
    return lambda text: report_progress(prefix + text)


def _version() -> str:
    """The installed version of scaleproof."""
    try:
        return version("scaleproof")
    except PackageNotFoundError:
        return ""
