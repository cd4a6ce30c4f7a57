"""The whole GPU check as a dry run: its files are readable and marked as dry. test_on_fake_gpus.py runs it by day."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from scaleproof.proof.gpu_check import check
from scaleproof.proof.gpu_check.__main__ import main
from scaleproof.proof.gpu_check.ledger import Ledger
from scaleproof.proof.gpu_check.scenarios import families
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.files import load_run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration import gpu_sizes
from scaleproof.validator.calibration.cluster_file.files import points_path, write
from scaleproof.validator.calibration.fit.gpu import machine
from scaleproof.validator.kernels.from_points import kernels_path
from scaleproof.validator.kernels.table import check as check_rows
from scaleproof.validator.kernels.table import read
from scaleproof.validator.probe import points as tables
from tests.proof.gpu_check.unpacked import unpacked
from tests.validator.calibration.fit.test_gpu import facts

DRY = "dry run on the CPU, numbers are meaningless"
FAMILIES, SHARED, REST = "reconcile every family", "measure on shared devices", "reconcile the rest"
# In their order.
STEPS = ["calibrate", "kernels", "reconcile first models", FAMILIES, SHARED, REST, "page", "functional page"]
SCENARIO = """\
model: {kind: mlp, layers: 2, inputs: 8, hidden: 8, outputs: 4}
cluster: cpu-2core
strategy: {kind: data_parallel, workers: 2}
batch: 8
"""


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a dry run over all families."""
    out = tmp_path_factory.mktemp("gpu-check")
    command = [sys.executable, "-m", "scaleproof.proof.gpu_check", "--dry-run", "--limit", "3000", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert DRY in done.stdout
    return out


def kept(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


@pytest.mark.nightly
def test_no_command_fails(dry: Path) -> None:
    results = kept(dry)
    assert results["label"] == DRY
    assert list(results["steps"]) == STEPS
    assert {step["state"] for step in results["steps"].values()} == {"done"}
    assert not results["left_out"]


@pytest.mark.nightly
def test_the_cluster_file_is_accepted_by_scenarios(dry: Path, tmp_path: Path) -> None:
    path = dry / "cluster.yaml"
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    cluster = load_cluster(path)
    assert DRY in cluster.name
    assert cluster.node.devices == 2
    assert cluster.device.measured_layers
    assert cluster.device.measured_optimizers
    probes = {point.probe for point in tables.read(points_path(path))}
    assert probes >= {"matmul", "attention", "memory", "launch", "message", "collective"}
    kernels = read(kernels_path(path))
    check_rows(kernels)
    assert set(kernels.kind.tolist()) == {"gemm", "attention_forward"}
    assert predict(load(tmp_path / "mine.yaml", [f"cluster={path}"])).step_time_s > 0


@pytest.mark.nightly
def test_the_page_compares_runs_and_is_marked_as_dry_run(dry: Path) -> None:
    page = (dry / "index.html").read_text()
    cases = json.loads((dry / "reconcile.json").read_text())["cases"]
    assert DRY in page
    assert {case["family"] for case in cases} >= {"data_parallel", "parameter_server", "pipeline"}
    assert all(case["measured"] and case["scenario"] in page for case in cases)


@pytest.mark.nightly
def test_ranks_sharing_a_device_are_a_functional_check_only(dry: Path) -> None:
    page = (dry / "functional" / "index.html").read_text()
    assert "functional check, not accuracy; dry run" in page
    assert DRY in page
    assert "agree within" not in page
    shared = {
        file.parents[1].name.partition(" ")[0]: load_run(file.parent) for file in dry.glob("functional/*/measured/run.json")
    }
    assert set(shared) == set(families([4]))
    assert all(run.verified and run.verified.is_right for run in shared.values())


@pytest.mark.nightly
def test_the_archive_has_everything_that_was_measured(dry: Path, tmp_path: Path) -> None:
    (archive,) = dry.glob("gpu-check-*.tar.gz")
    found = unpacked(archive, tmp_path)
    assert list(found.steps) == STEPS
    assert DRY in found.cluster.name
    assert found.provenance["devices"].startswith("1 × CPU")
    assert {"scaleproof", "command", "date", "torch", "cpu", "backend"} <= set(found.provenance)
    assert {name for name, run in found.reconciled.items() if run.spans is not None} == {
        path.parent.name for path in dry.glob("runs/*/measured")
    }
    assert len(found.shared) == len(families([4]))
    names = [path.relative_to(found.folder) for path in found.folder.rglob("*") if path.is_file()]
    assert len(names) > 50
    assert all((dry / name).read_bytes() == (found.folder / name).read_bytes() for name in names)


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_only_a_dry_run_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path)]) == 2
    assert capfd.readouterr().err == "torch finds no GPU; run this on a machine with one, or in tiny sizes as a dry run\n"


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is known without a rank on it."""
    monkeypatch.setattr(check, "described", lambda: {"device": facts("CPU", (0, 0)), "provenance": {"host": "here"}})


@pytest.mark.usefixtures("on_cpu")
def test_no_part_begins_after_the_time_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--dry-run", "--limit", "1e-6"]) == 1
    assert capsys.readouterr().err == "calibrate: not run: out of time\n"


def test_a_limit_is_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--dry-run", "--limit", "0"]) == 2
    assert capsys.readouterr().err == "--limit 0: give a number of seconds above 0, or leave it out\n"


@pytest.fixture
def begun(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """The commands that a check begins, by step; they do nothing, and that of families does not complete."""
    commands: dict[str, tuple[Any, ...]] = {}

    def run(ledger: Ledger, step: str, *arguments: Any, least_s: float = 0.0) -> int:
        commands[step] = arguments
        state = "out of time" if step == FAMILIES else "failed" if step == "calibrate" else "done"
        ledger._record(step, list(map(str, arguments)), state, 0.0)
        return 1

    monkeypatch.setattr(Ledger, "run", run)
    return commands


def files_of(arguments: Iterable[Any]) -> list[str]:
    """The scenarios that a command names."""
    return [path.stem for path in arguments if isinstance(path, Path) and path.suffix == ".yaml"]


def test_a_command_that_fails_does_not_end_the_rest(
    tmp_path: Path, begun: dict[str, tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.check(tmp_path, True, 60.0, None) == 1
    assert list(begun) == ["calibrate", SHARED]
    assert len(files_of(begun[SHARED])) == len(families([4]))
    assert capsys.readouterr().err == "failed: calibrate\n"


@pytest.fixture
def calibrated(tmp_path: Path) -> Path:
    """The files of a check that was interrupted after calibrating."""
    Ledger(tmp_path, DRY, 0.0)._record("calibrate", [], "done", 1.0)
    write(machine(facts("CPU", (0, 0)), gpu_sizes.TINY), tmp_path / "cluster.yaml")
    return tmp_path


def test_what_is_most_valuable_comes_first(calibrated: Path, begun: dict[str, tuple[Any, ...]]) -> None:
    assert check.check(calibrated, True, 60.0, None) == 0
    assert list(begun) == ["reconcile first models", FAMILIES, SHARED, REST]
    first, every, rest = (files_of(begun[step]) for step in ("reconcile first models", FAMILIES, REST))
    assert first == ["gpt-tiny-fp32", "resnet50-tiny-fp32"]
    # those before are on the page of each part, and are not measured again
    assert every == [*first, *(f"gpt-tiny-{name}" for name in families([2]))]
    assert rest == [*every, "gpt-tiny-alone"]
    assert all("--resume" in arguments for arguments in begun.values())


def test_a_check_that_was_interrupted_continues(
    calibrated: Path, begun: dict[str, tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.check(calibrated, True, 60.0, None) == 0
    begun.clear()
    capsys.readouterr()
    assert check.check(calibrated, True, 60.0, None) == 0
    assert list(begun) == [FAMILIES]
    plan = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in plan if line.endswith("done")] == ["calibrate", "reconcile", "measure", "reconcile"]


@pytest.mark.parametrize("kept", ['{"version": 2, "label": "", "complete": false, "steps": {}}', "of another program", None])
@pytest.mark.parametrize("name", ["runs", "functional", "cluster.yaml"])
def test_measured_results_that_cannot_be_continued_are_not_removed(tmp_path: Path, name: str, kept: str | None) -> None:
    (tmp_path / name).mkdir()
    if kept is not None:
        (tmp_path / "results.json").write_text(kept)
    with pytest.raises(InputError, match=f"has {name} of a check of another version, or of a dry run.*give another --out, or"):
        Ledger.opened(tmp_path, "", 0.0)
    assert (tmp_path / name).exists()


def test_results_of_another_version_are_replaced_only_on_request(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "gpu-check-2x-any-2026-01-02.tar.gz").touch()
    (tmp_path / "history.sqlite").touch()
    (tmp_path / "mine.txt").touch()
    (tmp_path / "results.json").write_text('{"version": 2, "label": "", "complete": false, "steps": {"calibrate": {}}}')
    assert not Ledger.opened(tmp_path, "", 0.0, again=True).steps
    assert {path.name for path in tmp_path.iterdir()} == {"history.sqlite", "mine.txt"}


def test_a_complete_check_is_kept_unless_it_is_to_be_done_again(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    ledger = Ledger(tmp_path, "", 0.0)
    ledger._record("calibrate", [], "done", 1.0)
    assert Ledger.opened(tmp_path, "", 0.0).steps == ledger.steps
    assert (tmp_path / "runs").exists()
    assert ledger.verdict() == 0
    with pytest.raises(InputError, match="finished check; give another --out, or replace them with --again"):
        Ledger.opened(tmp_path, "", 0.0)
    assert (tmp_path / "runs").exists()
    assert not Ledger.opened(tmp_path, "", 0.0, again=True).steps
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_commands_are_kept_with_their_outcomes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(tmp_path, "a label", time.monotonic() + 60.0)
    assert ledger.run("first", "list") == 0
    assert ledger.run("second", "predict", tmp_path / "nowhere.yaml") == 2
    ledger.until_s = time.monotonic() + 0.05
    assert ledger.run("third", "list") is None
    ledger.until_s = 0.0
    assert ledger.run("fourth", "list") is None
    assert kept(tmp_path)["label"] == "a label"
    steps = {name: step["state"] for name, step in kept(tmp_path)["steps"].items()}
    assert steps == {"first": "done", "second": "failed", "third": "out of time", "fourth": "not run"}
    assert kept(tmp_path)["steps"]["first"]["command"] == "scaleproof list"
    assert ledger.verdict() == 1
    out, err = capfd.readouterr()
    assert "4 commands: 1 failed, 2 not completed; run it again to continue" in out
    assert err.splitlines()[-1] == "failed: second"
