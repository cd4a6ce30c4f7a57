"""Planted faults are named, on artificial runs and in a lab; runs without a fault name none."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.simulator.predict import predict
from scaleproof.simulator.program.perturbations import Perturbations
from scaleproof.simulator.run.run import Run
from scaleproof.validator.experiments.proving import faults
from scaleproof.validator.experiments.proving.faults import FAULTS, PlantedFault, expected, measured, planted, spinning
from scaleproof.validator.launch.job import needed_nodes
from scaleproof.validator.netlab.wiring import plan
from tests.validator.netlabs import needs_netlab
from tests.validator.reconciliation.runs import as_measured

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)


def made_up(fault: PlantedFault, with_fault: bool) -> Run:
    """A run with the fault, by prediction."""
    scenario = fault.scenario(with_fault)
    if with_fault and fault.busy is not None:
        slow = Perturbations.model_validate({"stragglers": [{"ranks": fault.busy, "slowdown": 4}]})
        scenario = scenario.model_copy(update={"unevenness": slow})
    return as_measured(scenario)


@each_fault
def test_planted_faults_are_named_and_none_is_named_without_a_fault(fault: PlantedFault) -> None:
    found = planted(fault, made_up)
    assert found.name == fault.name
    assert found.attempts == 1
    assert expected(fault) in found.named
    assert [(one.kind, one.who) for one in found.explanation.faults] == [(fault.kind, (fault.who,))]
    assert found.healthy.faults == ()


@each_fault
def test_undistinguished_faults_are_retried_a_limited_number_of_times(fault: PlantedFault) -> None:
    for always in (True, False):
        found = planted(fault, lambda fault, _, always=always: made_up(fault, always))
        assert (found.named, found.attempts) == ("", 3)


@each_fault
def test_naming_another_rank_does_not_count_as_found(fault: PlantedFault) -> None:
    found = planted(fault, made_up)
    assert replace(found, expected=found.expected.replace("1", "0")).named == ""


@each_fault
def test_faults_are_planted_on_few_hosts(fault: PlantedFault) -> None:
    assert 3 <= needed_nodes(fault.scenario()) <= 4
    assert predict(fault.scenario()).step_time_s < 1.0


def test_a_slow_link_is_slow_in_the_lab_and_not_in_the_prediction() -> None:
    (link,) = (fault for fault in FAULTS if fault.slow_rate)
    healthy, broken = (plan(link.scenario(with_fault).cluster).hosts for with_fault in (False, True))
    assert [one.rate_Bps / other.rate_Bps for one, other in zip(broken, healthy, strict=True)] == [1.0, 0.5, 1.0, 1.0]


def test_the_spinning_process_stays_on_its_core_and_ends_with_the_context() -> None:
    core = max(os.sched_getaffinity(0))
    with spinning(core) as process:
        until_s = time.monotonic() + 10
        while os.sched_getaffinity(process) != {core} and time.monotonic() < until_s:
            time.sleep(0.01)
        assert os.sched_getaffinity(process) == {core}
    assert not Path(f"/proc/{process}").exists()


def test_all_planted_faults_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "require", lambda: None)
    monkeypatch.setattr(faults, "measured", made_up)
    reported: list[str] = []
    found = faults.find_faults(reported.append)
    assert all(one.named for one in found)
    assert reported == [f"planting {fault.name}" for fault in FAULTS]


@needs_netlab
@pytest.mark.nightly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="planting a busy core needs a second core")
@each_fault
def test_a_planted_fault_in_a_lab_is_named(fault: PlantedFault) -> None:
    found = planted(fault, measured)
    assert expected(fault) in found.named, (found.explanation.sentences, found.healthy.sentences)
