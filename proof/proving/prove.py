"""Proof of the predictor: predicts and measures cases on which nothing was calibrated, and saves each outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from scaleproof.proof.proving.cases import ProvingCase
from scaleproof.proof.proving.figures import DISTURBED, CaseOutcome
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError, RunError
from scaleproof.simulator.run.run import Run
from scaleproof.validator.launch.job import needed_nodes
from scaleproof.validator.launch.launch import LocalRanks
from scaleproof.validator.measure import MeasureOptions, measure_on
from scaleproof.validator.netlab.compatibility import lab_cluster
from scaleproof.validator.netlab.lab import Netlab
from scaleproof.validator.netlab.tenants import tenants_traffic
from scaleproof.validator.record.cpu_usage import Processors, usable
from scaleproof.validator.record.provenance import NOTICED_LOAD, load_of

OUTCOMES_FILE: Final = "outcomes.jsonl"
_TIMEOUT_S: Final = 60.0
# Seconds for which a core works to see whether the machine is quiet, and the pause before the next look.
_LOOK_S: Final = 0.2
_PAUSE_S: Final = 2.0

Measure = Callable[[ProvingCase], Run]


def measured_in_lab(case: ProvingCase) -> Run:
    """Trains a case on hosts of its own, with links of its rate and other traffic on them, and verifies what was trained."""
    scenario = case.scenario
    with Netlab(limited_cluster(case)) as lab, tenants_traffic(lab, scenario.unevenness):
        return measure_on(scenario, LocalRanks(lab.ranks_hosts(scenario)), MeasureOptions(_TIMEOUT_S, verify=True), "netlab")


def limited_cluster(case: ProvingCase) -> Cluster:
    """The nodes of a case with links of the rates to which the lab limits them, which are more than their payload."""
    cluster = lab_cluster(case.scenario)
    assert cluster.network is not None
    more = case.rate_Bps / cluster.network.bandwidth_Bps
    links = tuple(one.model_copy(update={"bandwidth_Bps": more * one.bandwidth_Bps}) for one in cluster.network.exceptions)
    network = cluster.network.model_copy(update={"bandwidth_Bps": case.rate_Bps, "exceptions": links})
    return cluster.model_copy(update={"network": network})


def prove(
    cases: Iterable[ProvingCase],
    known: Mapping[str, CaseOutcome],
    measure_case: Measure,
    report: Callable[[CaseOutcome], None],
    patience_s: float = 0.0,
) -> list[CaseOutcome]:
    """Outcomes of all cases. known: outcomes that need not be measured again. report: called with each measured outcome.

    Cases whose runs were disturbed are measured again, in turn and when the machine is quiet, for `patience_s` seconds in
    total; the least disturbed run of a case counts, because predictions are tested, not the machine's other load.
    """
    outcomes: list[CaseOutcome] = []
    drawn: list[ProvingCase] = []
    for case in cases:
        outcome = known.get(case.scenario.name)
        if outcome is None or outcome.predicted_s != case.predicted.step_time_s:
            outcome = _outcome(case, measure_case)
            report(outcome)
        drawn.append(case)
        outcomes.append(outcome)
    until_s = time.monotonic() + patience_s
    for number in _disturbed(outcomes, until_s):
        again = _outcome(drawn[number], measure_case)
        if again.measured_s is not None and again.disturbance < outcomes[number].disturbance:
            outcomes[number] = again
            report(again)
    return outcomes


def _disturbed(outcomes: Sequence[CaseOutcome], until_s: float) -> Iterator[int]:
    """Indices of the cases to measure again, each yielded when the machine is quiet, until none is left or time is up."""
    while disturbed := [number for number, outcome in enumerate(outcomes) if outcome.is_disturbed]:
        for number in disturbed:
            while time.monotonic() < until_s and not _is_quiet():
                time.sleep(_PAUSE_S)
            if time.monotonic() >= until_s:
                return
            yield number


def _is_quiet() -> bool:
    """Whether the virtual machine's host and other processes leave the cores to a process that works."""
    meanwhile, end_s = Processors(), time.monotonic() + _LOOK_S
    while time.monotonic() < end_s:
        pass
    return meanwhile.taken() <= DISTURBED and meanwhile.busy() <= 1 / len(usable()) + NOTICED_LOAD


def _outcome(case: ProvingCase, measure_case: Measure) -> CaseOutcome:
    predicted = case.predicted
    low_s, high_s = predicted.prediction_interval_s or (predicted.step_time_s,) * 2
    facts: dict[str, Any] = {
        "name": case.scenario.name,
        "group": case.group,
        "family": case.family,
        "model": case.model,
        "network": case.network,
        "compute": case.scenario.compute,
        "hosts": needed_nodes(case.scenario),
        "predicted_s": predicted.step_time_s,
        "low_s": low_s,
        "high_s": high_s,
    }
    meanwhile = Processors()
    try:
        run = measure_case(case)
    except RunError as error:
        return CaseOutcome(**facts, measured_s=None, failure=str(error))
    wrong = run.verified is not None and run.verified.is_decided and not run.verified.is_right
    facts |= {"taken": meanwhile.taken(), "foreign": load_of(run.provenance), "trained_wrongly": wrong}
    return CaseOutcome(**facts, measured_s=run.step_time_s)


def write(outcomes: Sequence[CaseOutcome], folder: Path) -> None:
    """Writes the outcomes so far, a line each."""
    text = "".join(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
    write_atomically(folder / OUTCOMES_FILE, text.encode())


def read(folder: Path) -> dict[str, CaseOutcome]:
    """Outcomes of an earlier run's measured cases, by name; empty without one. Raises InputError."""
    path = folder / OUTCOMES_FILE
    if not path.exists():
        return {}
    names = {field.name for field in fields(CaseOutcome)}
    outcomes: dict[str, CaseOutcome] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row: dict[str, Any] = json.loads(line)
            outcome = CaseOutcome(**{name: value for name, value in row.items() if name in names})
        except (ValueError, TypeError, AttributeError):
            raise InputError(f"{path}:{number}: not an outcome of a case; remove the file, or give another --out") from None
        if outcome.measured_s is not None:
            outcomes[outcome.name] = outcome
    return outcomes
