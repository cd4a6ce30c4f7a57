"""The whole GPU check as a dry run: its files are readable and marked as dry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.gpu_check import check, probing, training
from scaleproof.validator.calibration.gpu_check.__main__ import main
from scaleproof.validator.calibration.gpu_check.cluster import ProbeResults
from scaleproof.validator.calibration.gpu_check.families import families
from tests.validator.calibration.gpu_check.test_cluster import facts

pytestmark = pytest.mark.full

DRY = "dry run on the CPU, numbers are meaningless"
SCENARIO = """\
model: {kind: mlp, layers: 2, inputs: 8, hidden: 8, outputs: 4}
cluster: cpu-2core
strategy: {kind: data_parallel, workers: 2}
batch: 8
"""


SOME = ("ddp", "servers", "pipeline", "hybrid")


def some_families(ranks: Iterable[int]) -> dict[str, dict[str, Any]]:
    return {name: fields for name, fields in families(ranks).items() if name.rpartition("-")[0] in SOME}


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a dry run over some families."""
    out = tmp_path_factory.mktemp("gpu-check")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "families", some_families)
        # a loaded machine may take longer to make a page
        patch.setattr(check, "_PAGE_S", 600.0)
        assert main(["--dry-run", "--limit", "3000", "--out", str(out)]) == 0, (out / "results.json").read_text()
    return out


def check_parts(out: Path) -> None:
    results = json.loads((out / "results.json").read_text())
    assert results["label"] == DRY
    assert {part["state"] for part in results["parts"]} == {"done"}


def test_no_part_of_a_dry_run_fails(dry: Path) -> None:
    check_parts(dry)


@pytest.mark.nightly
def test_no_part_of_a_dry_run_of_all_families_fails(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "scaleproof.validator.calibration.gpu_check",
        "--dry-run",
        "--limit",
        "3000",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert DRY in done.stdout
    check_parts(tmp_path)


def test_the_cluster_file_is_accepted_by_scenarios(dry: Path, tmp_path: Path) -> None:
    path = dry / "cluster.yaml"
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    cluster = load_cluster(path)
    assert DRY in cluster.name
    assert cluster.node.devices == 2
    assert cluster.collectives.exactly("all_reduce", 2, 1) is not None
    assert predict(load(tmp_path / "mine.yaml", [f"cluster={path}"])).step_time_s > 0


def test_the_page_compares_runs_and_is_marked_as_dry_run(dry: Path) -> None:
    page = (dry / "index.html").read_text()
    cases = json.loads((dry / "reconcile.json").read_text())["cases"]
    assert DRY in page
    assert {case["family"] for case in cases} == {"data_parallel", "parameter_server", "pipeline"}
    assert all(case["measured"] and case["scenario"] in page for case in cases)


def test_ranks_sharing_a_device_are_a_functional_check_only(dry: Path) -> None:
    page = (dry / "functional" / "index.html").read_text()
    assert "functional check, not accuracy" in page
    assert DRY in page
    assert "agree within" not in page
    parts = json.loads((dry / "results.json").read_text())["parts"]
    shared = {part["part"]: part["result"] for part in parts if part["part"].startswith("sharing ")}
    assert set(shared) == {f"sharing {name}" for name in some_families([4])}
    assert all(result["verified"]["deviation"] < result["verified"]["tolerance"] for result in shared.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_only_a_dry_run_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == ("torch finds no GPU; run this on a machine with one, or a dry run with --dry-run\n")


def test_no_part_begins_after_the_time_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--dry-run", "--limit", "0"]) == 1
    assert capsys.readouterr().err == "not run: out of time\n"


def test_a_failed_part_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(probing, "probe", lambda *_: ProbeResults(facts("Unheard Of"), 3))
    monkeypatch.setattr(training, "shared", lambda _, devices, *__: begun.append(devices))

    assert check.check(tmp_path, True, 60.0, None) == 1

    reported = capsys.readouterr()
    assert begun == [3]
    assert "failed: no matrix product was timed" in reported.out
    assert reported.err == "failed: cluster file\n"
