"""What reconcile prints and writes for jobs that ran elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scaleproof.commands.main import main
from scaleproof.validator.reconciliation.jobs.log_formats import FORMATS
from scaleproof.validator.reconciliation.jobs.logs import CSV, names


def _log(folder: Path, ms: float = 180.0) -> Path:
    path = folder / "train.log"
    line = " iteration {:4}/ 20 | elapsed time per iteration (ms): {} | global batch size: 24 | lm loss: 1.0 |\n"
    path.write_text("".join(line.format(number, ms + number % 3) for number in range(1, 21)))
    return path


def test_a_log_is_compared_kept_and_reported_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reconcile", "ring-2", "--log", str(_log(tmp_path)), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    text = capsys.readouterr()
    assert re.search(r"^step time .* [+-][\d.]+ %$", text.out, re.MULTILINE)
    assert "MFU" in text.out
    assert "a log has no phases" in " ".join(text.out.split())
    assert "20 records of Megatron-LM; the first 1 (to iteration 1) left out as warm-up" in text.err
    assert max(map(len, text.out.splitlines())) <= 100
    kept = json.loads((tmp_path / "out" / "reconcile.json").read_text())
    assert kept["cases"][0]["measured"]["provenance"]["files"] == "--log train.log"
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["measured"]["step_time_s"] == pytest.approx(0.181, abs=1e-3)


def test_an_error_above_the_limit_gives_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reconcile", "ring-2", "--log", str(_log(tmp_path, 400.0)), "--max-error", "10%"]) == 1
    assert "exceeds 10.0 %" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["pipeline-2"], ["--update", "cluster.yaml"]])
def test_files_of_a_job_are_those_of_one_scenario(more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reconcile", "ring-2", *more, "--log", str(_log(tmp_path))]) == 2
    assert "--log" in capsys.readouterr().err


def test_the_command_line_names_every_format() -> None:
    from scaleproof.commands.measuring.reconcile import _LOG_FORMATS

    assert list(_LOG_FORMATS) == names() == [*(one.key for one in FORMATS), CSV]
