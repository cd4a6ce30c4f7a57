"""The public API and the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

import scaleproof
from tests.conftest import SMALL


class Done(NamedTuple):
    """What a command returned and printed."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Done:
    """A command, run in this process."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = scaleproof.main(list(arguments))
    return Done(code, out.getvalue(), err.getvalue())


def test_only_public_names_are_importable() -> None:
    from scaleproof import load, predict

    assert predict(load("resnet50-ring-p100")).samples_per_s > 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = scaleproof.nothing


def test_importing_scaleproof_imports_no_heavy_package() -> None:
    code = "import sys, scaleproof; sys.exit(bool({'numpy', 'pydantic', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_lists_every_command_without_importing_numpy() -> None:
    code = "import sys, scaleproof\ntry: scaleproof.main(['--help'])\nexcept SystemExit: sys.exit('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    for command in ("predict", "measure", "calibrate", "reconcile", "report", "schema", "list", "show"):
        assert re.search(rf"^ +{command}\s", done.stdout, re.MULTILINE)


def test_a_prediction_imports_no_other_command_and_nothing_that_it_does_not_need() -> None:
    code = "import sys, scaleproof; scaleproof.main(['predict', 'ring-2']); print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = set(printed.splitlines()[-1].split())
    assert {name for name in modules if name.startswith("scaleproof.commands.predicting.")} == {
        "scaleproof.commands.predicting.predict"
    }
    assert not modules & {"rich", "scipy", "scaleproof.simulator.analysis.evidence", "scaleproof.simulator.memory.allocator"}
    unneeded = "scaleproof.simulator.captured.", "scaleproof.simulator.model.tracing"
    assert [name for name in modules if name.startswith(unneeded)] == ["scaleproof.simulator.captured.strategy"]


def test_predict_prints_text_and_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scaleproof", "predict", "resnet50-ring-p100"]
    people = subprocess.run(command, capture_output=True, text=True)
    assert people.returncode == 0
    assert "step time" in people.stdout
    assert re.search(r"weak scaling [\d.]+ % \([\d.]+x of 1 GPU\)", people.stdout)
    out, trace = tmp_path / "out", tmp_path / "trace.json"
    programs = run(
        "predict", "resnet50-ring-p100", "--json", "--out", str(out), "--trace", str(trace), "--set", "strategy.workers=8"
    )
    summary = json.loads(programs.stdout)
    for key in ("step_time_s", "samples_per_s", "efficiency", "baseline", "breakdown_s", "memory_bytes_per_rank"):
        assert key in summary
    assert summary["ranks"] == 8
    kept = json.loads((out / "predicted" / "run.json").read_text())
    # saved runs also identify their spans
    assert kept.pop("spans_digest")
    assert kept == summary
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL.replace("workers: 4", "workers: 4, stages: 2"), "scenario.yaml:7:45: strategy.stages: unknown key"),
        (SMALL.replace("batch: 48", "batch: 47"), "scenario.yaml:8:1: batch: 4 workers do not divide 47 samples"),
        ("model: [", "scenario.yaml:2:1: not valid YAML"),
    ],
)
def test_bad_input_gives_a_one_line_error_and_writes_no_files(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scenario.yaml").write_text(text)
    done = run("predict", "scenario.yaml", "--out", "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("predict", "resnet50-ring-p100", "--out", str(tmp_path / "file" / "out"))
    assert done.returncode == 1
    assert done.stderr.endswith("Not a directory; choose another path\n")
    assert len(done.stderr.splitlines()) == 1


def test_list_and_show_print_shipped_parts() -> None:
    listed = run("list").stdout
    for name in ("resnet50-ring-p100", "gpt3-175b", "p100-25gbe", "ring-4"):
        assert f"  {name} " in listed
    titles = [line for line in listed.splitlines() if not line.startswith(" ")]
    assert titles[1] == "scenarios: named systems"
    kinds = [
        "studies", "claims", "models", "clusters", "frameworks", "devices", "failures and recovery, for goodput",
        "sources of samples, for input",
    ]  # fmt: skip
    assert titles[5:] == kinds
    assert re.search(r"^  one-server-is-full +One parameter server is the bottleneck\.$", listed, re.MULTILINE)
    assert run("show", "one-server-is-full").stdout.startswith("claim: One parameter server is the bottleneck.")
    assert "kind: resnet" in run("show", "resnet50").stdout
    unknown = run("show", "resnet5")
    assert unknown.returncode == 2
    assert "did you mean" in unknown.stderr


def test_schema_prints_json() -> None:
    assert json.loads(run("schema").stdout)["title"] == "scaleproof scenario"


def test_a_closed_pipe_gives_no_error() -> None:
    done = subprocess.run(f"{sys.executable} -m scaleproof schema | head -1", shell=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_only_scenarios_may_follow_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["measure", "nothing", "--on", "local", "no-more"]) == 2
    with pytest.raises(SystemExit):
        scaleproof.main(["measure", "nothing", "--no-option", "no-more"])
    with pytest.raises(SystemExit):
        scaleproof.main(["predict", "nothing", "no-more"])
    assert capsys.readouterr().err.count("unrecognized arguments: ") == 2
