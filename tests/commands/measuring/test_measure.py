"""The commands measure and reconcile, end to end."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

import scaleproof
from scaleproof.commands.measuring.session import Session
from scaleproof.simulator.run.files import load_run, save
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from tests.validator import faults

SCENARIO = """\
model: {kind: mlp, layers: 4, inputs: 32, hidden: 64, outputs: 16}
cluster: cpu-2core
strategy: {kind: pipeline, stages: 2, microbatches: 4}
batch: 16
steps: 4
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(SCENARIO)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "scaleproof", *arguments], capture_output=True, text=True, cwd=folder)


def test_measure_prints_and_saves_the_run(folder: Path) -> None:
    done = run(folder, "measure", "mine.yaml", "--json", "--out", "out", "--set", "steps=3")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["origin"], summary["ranks"], len(summary["step_times_s"])) == ("measured", 2, 3)
    kept = load_run(folder / "out" / "mine" / "measured")
    assert kept.step_time_s == summary["step_time_s"]
    assert kept.spans is not None


@pytest.mark.full
def test_measure_under_torchrun_joins_its_ranks_and_prints_once(folder: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scaleproof"]
    done = subprocess.run(
        [sys.executable, *torchrun, "measure", "mine.yaml", "--json"], capture_output=True, text=True, cwd=folder, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2


def write_second_scenario(folder: Path) -> None:
    """Writes another scenario next to the first."""
    (folder / "other.yaml").write_text(SCENARIO.replace("pipeline, stages: 2, microbatches: 4", "data_parallel, workers: 2"))


@pytest.mark.full
def test_several_scenarios_print_a_line_each_and_resume_skips_measured_ones(folder: Path) -> None:
    write_second_scenario(folder)
    command = ["measure", "mine.yaml", "other.yaml", "--out", "out", "--verify"]
    done = run(folder, *command)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split()[0] == "scenario"
    assert [row.split()[:2] for row in rows] == [["mine", "2"], ["other", "2"]]
    assert all(" local, real " in row and " yes, off by " in row for row in rows)
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.json")}
    changed = run(folder, *command, "--resume", "--json", "--set", "steps=4")
    assert [one["verified"]["rule"] for one in json.loads(changed.stdout)] == ["one process on the whole batch"] * 2
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.json")} == before
    (folder / "other.yaml").write_text((folder / "other.yaml").read_text().replace("steps: 4", "steps: 5"))
    again = run(folder, "measure", "mine.yaml", "--resume", "--out", "out", "other.yaml")
    assert [line.split()[-1] for line in again.stdout.splitlines()] == ["on", "before", "real"], again.stderr


@pytest.mark.full
def test_a_failed_scenario_does_not_stop_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_second_scenario(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.die_in_backward_of_step_4)
    assert scaleproof.main(["measure", "mine.yaml", "other.yaml", "--out", "out"]) == 1
    output, errors = capsys.readouterr()
    assert [line.split()[0] for line in output.splitlines()] == ["scenario", "other"]
    (failure,) = [line for line in errors.splitlines() if not line.startswith("warning: ")]
    assert failure.startswith("mine could not be measured: rank 1 (stage 1) was killed by signal 9 in backward of step 4; ")
    assert scaleproof.main(["runs", "out"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["scenario", "mine", "other"]
    assert "partial, 3 of 4 steps" in rows[1]


def test_a_run_that_fails_verification_is_a_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_second_scenario(folder)
    monkeypatch.chdir(folder)
    wrong = Verification("one process", deviation=0.3, tolerance=0.01)
    monkeypatch.setattr("scaleproof.validator.measure.verdict", lambda *_: wrong)
    assert scaleproof.main(["measure", "other.yaml", "--verify"]) == 1
    output, errors = capsys.readouterr()
    expected = "off by 0.3 of what training changed from training in one process; rounding explains 0.01"
    assert errors == f"other was trained incorrectly: parameters are {expected}\n"
    assert "step time" in output


def test_an_interrupt_keeps_finished_runs_and_prints_how_to_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_second_scenario(folder)
    monkeypatch.chdir(folder)
    arguments = ["measure", "other.yaml", "mine.yaml", "--out", "out"]
    real = Session.measure

    def interrupted(self: Session, scenario: Scenario, path: Path | None) -> Run:
        if scenario.name == "mine":
            raise KeyboardInterrupt
        return real(self, scenario, path)

    monkeypatch.setattr(Session, "measure", interrupted)
    assert scaleproof.main(arguments) == 130
    assert capsys.readouterr().err == "scaleproof measure interrupted; mine was being measured; --out out --resume continues\n"
    monkeypatch.setattr(Session, "measure", real)
    assert scaleproof.main([*arguments, "--resume"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["on", "before", "real"]


def test_a_full_disk_stops_measuring_and_keeps_finished_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_second_scenario(folder)
    (folder / "third.yaml").write_text(SCENARIO)
    monkeypatch.chdir(folder)

    def full(measured: Run, path: Path) -> None:
        if measured.scenario == "mine":
            raise OSError(errno.ENOSPC, "No space left on device")
        save(measured, path)

    monkeypatch.setattr("scaleproof.validator.results.save", full)
    assert scaleproof.main(["measure", "other.yaml", "mine.yaml", "third.yaml", "--out", "out"]) == 1
    output, errors = capsys.readouterr()
    full_disk, left = [line for line in errors.splitlines() if not line.startswith("warning: ")]
    assert full_disk == "out/mine/measured: No space left on device; make room, or choose another --out"
    assert left == "not measured: third"
    assert [line.split()[0] for line in output.splitlines()] == ["scenario", "other", "mine"], "what was measured is printed"
    assert load_run(folder / "out" / "other" / "measured").ranks == 2


@pytest.mark.full
def test_runs_are_listed_as_text_and_as_json(folder: Path) -> None:
    assert run(folder, "measure", "mine.yaml", "--out", "out").returncode == 0
    (folder / "out" / "broken").mkdir()
    (folder / "out" / "broken" / "run.json").write_text("{")
    done = run(folder, "runs", ".")
    assert done.returncode == 0, done.stderr
    _, broken, mine = done.stdout.splitlines()
    assert broken.startswith("out/broken: damaged: ")
    assert mine.split()[:3] == ["mine", "pipeline", "2"]
    plain = json.loads(run(folder, "runs", "out", "--json").stdout)
    assert set(plain[0]) == {"folder", "damaged"}
    assert (plain[1]["on"], plain[1]["compute"], plain[1]["trained_rightly"]) == ("local", "real", None)
    (folder / "empty").mkdir()
    assert "no measured runs" in run(folder, "runs", "empty").stdout


def test_a_scenarios_warning_is_marked_in_the_list_and_printed_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_second_scenario(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("scaleproof.validator.record.assemble._foreign_load", lambda _: ({}, "too loud; be quiet"))
    assert scaleproof.main(["measure", "mine.yaml", "other.yaml", "--out", "out"]) == 0
    output, errors = capsys.readouterr()
    assert errors == "warning: mine: too loud; be quiet\n"
    assert all(" ! local, real" in row for row in output.splitlines()[1:])
    assert scaleproof.main(["runs", "out"]) == 0
    output, errors = capsys.readouterr()
    assert errors == "! has warnings; --json prints them\n"
    assert all(" ! local, real" in row for row in output.splitlines()[1:])
    assert scaleproof.main(["runs", "out", "--json"]) == 0
    assert [one["warnings"] for one in json.loads(capsys.readouterr().out)] == [["too loud; be quiet"]] * 2


@pytest.mark.full
def test_reconcile_resumes_without_measuring_again(folder: Path) -> None:
    command = ["reconcile", "mine.yaml", "--out", "out"]
    assert run(folder, *command).returncode == 0
    file = folder / "out" / "runs" / "mine" / "measured" / "run.json"
    first = json.loads(file.read_text())["step_times_s"]
    assert run(folder, *command, "--resume").returncode == 0
    assert json.loads(file.read_text())["step_times_s"] == first


@pytest.mark.full
def test_an_error_above_the_bound_sets_the_exit_code(folder: Path) -> None:
    slow = "cluster.node.link.latency=100 ms"
    done = run(folder, "reconcile", "mine.yaml", "--set", slow, "--max-error", "25%", "--out", "out")
    assert done.returncode == 1
    assert "mine: error" in done.stderr
    assert "exceeds 25.0 %" in done.stderr
    (case,) = json.loads((folder / "out" / "reconcile.json").read_text())["cases"]
    assert case["error"] > 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reconcile", "mine.yaml", "mine.yaml"], "two scenarios have the same name"),
        (["measure", "mine.yaml", "mine.yaml"], "two scenarios have the same name"),
        (["measure", "mine.yaml", "--out", "mine.yaml/out"], "--out mine.yaml/out: Not a directory; choose a folder"),
        (["measure", "mine.yaml", "--resume"], "--resume continues an earlier run; name its folder with --out DIR"),
        (["measure", "mine.yaml", "--profile"], "--profile writes traces to a folder; name it with --out DIR"),
        (["measure", "mine.yaml", "--interface", "eth77"], "--interface eth77: "),
        (["measure", "mine.yaml", "--interface", "lo", "--on", "netlab"], "netlab's hosts have one interface each"),
        (["measure", "mine.yaml", "--on", "netlab"], "netlab"),
        (
            ["measure", "mine.yaml", "--on", "cluster"],
            "--on cluster joins ranks started by torchrun, accelerate, srun or mpirun",
        ),
        (["runs", "nothing"], "nothing: no such folder"),
        (["calibrate", "--out", "c.yaml", "--groups", "1"], "a group needs at least 2 ranks"),
        (["report", "."], "no results here"),
    ],
)
def test_bad_input_is_reported_before_anything_runs(
    arguments: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    assert scaleproof.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["measure", "mine.yaml", "--timeout", "-1"],
            "expected a positive number of seconds, or a time such as",
        ),
        (
            ["measure", "mine.yaml", "--timeout", "soon"],
            "such as '90 min', got 'soon'",
        ),
        (["reconcile", "mine.yaml", "--max-error", "much"], "expected a share, such as 25% or 0.25"),
    ],
)
def test_arguments_of_the_wrong_form_are_reported(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        scaleproof.main(arguments)
    assert message in capsys.readouterr().err
