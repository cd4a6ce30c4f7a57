"""The command prove: printed and saved results, and rejected options, with a stub of the lab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import scaleproof
from scaleproof.proof.proving.cases import ProvingCase
from scaleproof.simulator.common.errors import RankError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load

# of each strategy, how many times as long a case takes as was predicted; the last one fails
FACTORS = {"ring": 1.25, "tree": 0.8, "servers": None}


class _Drawn:
    """Stub of the cases drawn from a seed."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def cases(self) -> Iterator[ProvingCase]:
        scenario = load("netlab-ring")
        for name in FACTORS:
            own = scenario.model_copy(update={"name": name})
            yield ProvingCase(own, predict(own), "group", name, rate_Bps=25e6)


def _measured(case: ProvingCase) -> Run:
    factor = FACTORS[case.family]
    if factor is None:
        raise RankError("rank 1 died")
    return replace(case.predicted, step_time_s=factor * case.predicted.step_time_s)


@pytest.fixture
def _lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.netlab.lab.require", lambda: None)
    monkeypatch.setattr("scaleproof.proof.proving.lab.calibrated", lambda *arguments: SimpleNamespace(at=None))
    monkeypatch.setattr("scaleproof.proof.proving.cases.Draw", _Drawn)
    monkeypatch.setattr("scaleproof.proof.proving.prove.measured_in_lab", _measured)
    monkeypatch.setattr("scaleproof.proof.proving.prove.Processors", lambda: SimpleNamespace(taken=lambda: 0.0))


def _proved(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    code = scaleproof.main(["prove", "--short", *options])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("_lab")
def test_errors_are_listed_by_family_and_failed_cases_set_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _proved(capsys)
    assert code == 1
    assert "could not be measured: " in err
    assert "rank 1 died" in err
    lines, worst = (part.splitlines() for part in out.split("\nworst 5\n"))
    families = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("ring ", "tree "))}
    assert families == {"ring": ["1", *["-20.0", "%"] * 2], "tree": ["1", *["+25.0", "%"] * 2]}
    assert ["+25.0 %" in worst[0], "-20.0 %" in worst[1]] == [True, True]


@pytest.mark.usefixtures("_lab")
def test_saved_cases_are_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first, _ = _proved(capsys, "--out", str(tmp_path), "--json")

    def never(case: ProvingCase) -> Run:
        assert FACTORS[case.family] is None, "it was measured already"
        raise RankError("rank 1 died again")

    monkeypatch.setattr("scaleproof.proof.proving.prove.measured_in_lab", never)
    code, again, _ = _proved(capsys, "--out", str(tmp_path), "--resume", "--json")
    assert (code, json.loads(again)["paced"]) == (1, json.loads(first)["paced"])
    assert json.loads(first)["paced"]["cases"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hosts", "2"], "--hosts 2: the maximum number of hosts must be 3 or more"),
        (["--resume"], "--resume continues an earlier run; name its folder with --out DIR"),
    ],
)
def test_invalid_options_are_rejected_before_measuring(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = _proved(capsys, *options)
    assert (code, out, err.strip()) == (2, "", message)
