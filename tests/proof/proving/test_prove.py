"""Proving: cases are measured in turn, repeated if disturbed, and saved."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.proving import prove
from scaleproof.proof.proving.cases import ProvingCase
from scaleproof.proof.proving.figures import CaseOutcome
from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.record.provenance import load_entry
from tests.validator.netlabs import needs_netlab


def _case(name: str = "netlab-ring") -> ProvingCase:
    scenario = load(name)
    return ProvingCase(scenario, predict(scenario), "group", "ring", rate_Bps=25e6)


def _slower(factor: float) -> Callable[[ProvingCase], Run]:
    return lambda case: replace(case.predicted, step_time_s=factor * case.predicted.step_time_s)


class _FakeProcessors:
    """Stub of the machine's processors, of which other processes take a given share each time."""

    shares: list[float]

    def __init__(self) -> None:
        self.share = self.shares.pop(0)

    def taken(self) -> float:
        return self.share


def _set_foreign_loads(monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
    monkeypatch.setattr(_FakeProcessors, "shares", list(shares), raising=False)
    monkeypatch.setattr(prove, "Processors", _FakeProcessors)


def test_each_case_is_reported_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_foreign_loads(monkeypatch, 0.0)
    reported: list[CaseOutcome] = []
    (outcome,) = prove.prove([_case()], {}, _slower(1.25), reported.append)
    assert reported == [outcome]
    assert outcome.error == pytest.approx(-0.2)
    assert outcome.hosts == 4
    assert outcome.low_s < outcome.predicted_s < outcome.high_s


def test_disturbed_runs_are_repeated_later_and_the_least_disturbed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_foreign_loads(monkeypatch, 0.5, 0.0, 0.2, 0.3, 0.04)
    monkeypatch.setattr(prove, "_is_quiet", lambda: True)
    measured: list[str] = []
    reported: list[CaseOutcome] = []

    def measure(case: ProvingCase) -> Run:
        measured.append(case.scenario.name)
        return _slower(float(len(measured)))(case)

    ring, ddp = prove.prove([_case(), _case("netlab-ddp")], {}, measure, reported.append, patience_s=60.0)
    assert measured == ["netlab-ring", "netlab-ddp", "netlab-ring", "netlab-ring", "netlab-ring"]
    assert [one.taken for one in reported] == [0.5, 0.0, 0.2, 0.04]  # runs disturbed more than before are not reported
    assert (ring.taken, ring.measured_s) == (0.04, pytest.approx(5 * ring.predicted_s))
    assert not ring.is_disturbed
    assert not ddp.is_disturbed


def test_a_disturbed_run_is_accepted_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_foreign_loads(monkeypatch, 0.5)
    monkeypatch.setattr(prove, "_is_quiet", lambda: False)
    monkeypatch.setattr(prove, "_PAUSE_S", 0.01)
    (outcome,) = prove.prove([_case()], {}, _slower(2.0), lambda _: None, patience_s=0.1)
    assert outcome.is_disturbed
    assert outcome.error == pytest.approx(-0.5)


def test_a_run_with_concurrent_other_work_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_foreign_loads(monkeypatch, 0.0, 0.0)
    monkeypatch.setattr(prove, "_is_quiet", lambda: True)
    loads = [0.52, 0.1]

    def measure(case: ProvingCase) -> Run:
        return replace(case.predicted, provenance=load_entry(loads.pop(0)))

    reported: list[CaseOutcome] = []
    (outcome,) = prove.prove([_case()], {}, measure, reported.append, patience_s=60.0)
    assert [(one.foreign, one.is_disturbed) for one in reported] == [(0.52, True), (0.1, False)]
    assert outcome == reported[-1]


@pytest.mark.parametrize(("busy", "quiet"), [(0.5, True), (0.9, False)])
def test_a_machine_with_other_work_is_not_quiet(busy: float, quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_foreign_loads(monkeypatch, 0.0)
    monkeypatch.setattr(_FakeProcessors, "busy", lambda _: busy, raising=False)
    monkeypatch.setattr(prove, "usable", lambda: [0, 1])
    assert prove._is_quiet() is quiet


def test_failed_cases_are_reported_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_foreign_loads(monkeypatch, 0.0, 0.0)

    def measure(case: ProvingCase) -> Run:
        if case.scenario.name == "netlab-ring":
            raise RankError("rank 1 died")
        return case.predicted

    failed, fine = prove.prove([_case(), _case("netlab-ddp")], {}, measure, lambda _: None)
    assert (failed.measured_s, failed.failure) == (None, "rank 1 died")
    assert fine.error == 0.0


def test_saved_cases_are_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _set_foreign_loads(monkeypatch, 0.0)
    done = prove.prove([_case()], {}, _slower(1.5), lambda _: None)
    prove.write(done, tmp_path)
    again = prove.prove([_case()], prove.read(tmp_path), _slower(9.0), lambda _: pytest.fail("measured again"))
    assert again == done


def test_files_of_another_kind_are_rejected(tmp_path: Path) -> None:
    (tmp_path / prove.OUTCOMES_FILE).write_text('{"name": 3}\n')
    with pytest.raises(InputError, match=r"outcomes.jsonl:1: not an outcome of a case; remove the file, or give another --out"):
        prove.read(tmp_path)


@needs_netlab
@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_short_form_has_sixteen_cases(tmp_path: Path) -> None:
    program = shutil.which("scaleproof", path=str(Path(sys.executable).parent))
    assert program is not None
    command = [program, "prove", "--on", "netlab", "--short", "--json", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1180, check=False)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert set(reported) == {"paced", "real", "ranking", "undisturbed"}
    assert reported["paced"]["cases"] + reported["real"]["cases"] == 16
    assert reported["ranking"]["groups"] == 4
    # how far off it is depends on what else the machine does, but not where nothing else does much
    if reported["undisturbed"]["paced"]["cases"] >= 6:
        assert reported["undisturbed"]["paced"]["median"] < 0.1
    assert (tmp_path / "out" / "calibrated.yaml").exists()
