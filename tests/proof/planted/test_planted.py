"""Planted faults are named, on artificial runs and in a lab; runs without a fault name none."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaleproof.proof.planted import detection
from scaleproof.proof.planted.detection import PlantedRuns, figures, find_faults, planted
from scaleproof.proof.planted.kinds import KINDS, PlantedFault, drawn
from scaleproof.proof.planted.plant import measured, spinning
from scaleproof.simulator.cluster.network.links import EndpointLink
from scaleproof.simulator.cluster.perturbations import Perturbations
from scaleproof.simulator.run.run import Run
from scaleproof.validator.preflight.checks import check
from tests.validator.netlabs import needs_netlab
from tests.validator.reconciliation.runs import as_measured

SEEDS = (1, 2, 3)
# Those that a prediction can imitate.
IMITATED = ("slow link", "wrong description", "busy core", "slow server")
each_kind = pytest.mark.parametrize("kind", KINDS)


def made_up(fault: PlantedFault, with_fault: bool) -> Run:
    """A run with the fault, by prediction."""
    scenario = fault.scenario
    if not with_fault:
        return as_measured(scenario)
    network = scenario.cluster.network
    assert network is not None
    slow_Bps = fault.rate * network.bandwidth_Bps
    if fault.host is None:
        network = network.model_copy(update={"bandwidth_Bps": slow_Bps})
    else:
        slow = EndpointLink.model_validate({"at": [fault.host], "bandwidth": f"{slow_Bps} B/s"})
        network = network.model_copy(update={"exceptions": (slow,)})
    busy = {"stragglers": [{"ranks": fault.busy or 0, "slowdown": 4.0}]}
    changes = {
        "cluster": scenario.cluster.model_copy(update={"network": network}),
        "unevenness": fault.unevenness if fault.busy is None else Perturbations.model_validate(busy),
    }
    return as_measured(scenario.model_copy(update=changes))


def quiet(monkeypatch: pytest.MonkeyPatch, *taken: float) -> None:
    """Shares of the cores' time that others take, one for each attempt."""
    left = list(taken)
    monkeypatch.setattr(detection, "Processors", lambda: SimpleNamespace(taken=lambda: left.pop(0)))


@each_kind
def test_a_seed_draws_the_same_fault_which_can_be_measured(kind: str) -> None:
    for seed in SEEDS:
        fault = drawn(kind, seed)
        check(fault.scenario, "netlab", None)
        assert fault == drawn(kind, seed)
        assert (fault.kind, fault.seed) == (kind, seed)
    assert len({drawn(kind, seed).scenario.model_dump_json(exclude={"name"}) + drawn(kind, seed).words for seed in SEEDS}) > 1


@pytest.mark.parametrize("kind", IMITATED)
def test_faults_are_named_and_none_is_named_without_a_fault(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch, 0.0)
    result = planted(drawn(kind, 1), made_up)
    assert result.named.startswith(result.expected)
    assert (result.wrong, result.attempts, result.disturbed) == ((), 1, False)


def test_disturbed_runs_are_repeated_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = drawn("slow link", 1)
    quiet(monkeypatch, 0.5, 0.0)
    assert planted(fault, made_up).attempts == 2
    quiet(monkeypatch, 0.5, 0.5, 0.5)
    result = planted(fault, made_up)
    assert (result.attempts, result.disturbed) == (3, True)


def test_sentences_about_others_are_wrong() -> None:
    expected = "messages from stage 1 run at"
    right, other = f"{expected} 50 % of the rate of the others", "compute of stage 2 takes 1.6 times as long as of its peers"
    result = PlantedRuns("slow upload", 1, "pipeline", expected, (other, right), (other,), 1, False)
    assert result.named == right
    assert result.wrong == (other, other)
    unnamed = replace(result, found=(), healthy=())
    totals = figures([result, unnamed])
    assert (totals["faults"], totals["named"], totals["wrong"]) == (2, 1, 2)


def test_every_kind_is_planted_with_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch, *[0.0] * 16)
    run = as_measured(drawn("slow link", 1).scenario)
    reported: list[PlantedRuns] = []
    found = find_faults((1, 2), lambda fault, with_fault: run, reported.append)
    assert found == reported
    assert [(one.kind, one.seed) for one in found] == [(kind, seed) for kind in KINDS for seed in (1, 2)]


@pytest.mark.parametrize("on_s", [None, (0.01, 0.02)])
def test_the_spinning_process_stays_on_its_core_and_ends_with_the_context(on_s: tuple[float, float] | None) -> None:
    core = max(os.sched_getaffinity(0))
    with spinning(core, on_s) as process:
        until_s = time.monotonic() + 10
        while os.sched_getaffinity(process) != {core} and time.monotonic() < until_s:
            time.sleep(0.01)
        assert os.sched_getaffinity(process) == {core}
    assert not Path(f"/proc/{process}").exists()


@needs_netlab
@pytest.mark.nightly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="planting a busy core needs a second core")
@each_kind
def test_a_planted_fault_in_a_lab_is_named(kind: str) -> None:
    found = planted(drawn(kind, 1), measured)
    assert found.named, found
    assert not found.wrong, found
