"""What diagnose prints and writes, and how reconcile and import name the same causes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from scaleproof.commands.main import main
from tests.validator.calibration.imports.logs import nccl_log
from tests.validator.diagnosis.jobs import Job, megatron_log


def _slow_log(folder: Path) -> Path:
    return megatron_log(folder / "train.log", [0.6 if number < 60 else 0.75 for number in range(120)])


def _pairs(folder: Path) -> list[Path]:
    """Logs of nccl-tests on pairs of nodes; gpu004 is slow."""
    logs = [folder / f"{one}.log" for one in range(1, 6)]
    for one, log in enumerate(logs, start=1):
        hosts = [f"gpu{one:03}"] * 2 + [f"gpu{one + 1:03}"] * 2
        log.write_text(nccl_log("all_reduce", hosts, 2e-5, 2.3e10 if one in (3, 4) else 4.6e10))
    return logs


def test_the_first_line_is_the_answer_and_the_page_is_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job").mkdir()
    Job(ranks=24, compute=lambda rank, _: 1.25 if rank == 19 else 1.0).write(tmp_path / "job")
    _slow_log(tmp_path / "job")
    assert main(["diagnose", str(tmp_path / "job"), "--out", str(tmp_path / "out")]) == 4
    text = capsys.readouterr().out
    assert text.startswith("rank 19 (gpu002, GPU 3) computes 2")
    assert "since iteration 61" in text
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Rank 19 (gpu002, GPU 3) computes" in page
    assert 'src="http' not in page
    run = json.loads((tmp_path / "out" / "job" / "run.json").read_text())
    # of many ranks, the timeline has the slow one
    assert len(run["rank_names"]) == 16
    assert "rank 19" in run["rank_names"]
    head, first, *_ = (tmp_path / "out" / "tables" / "findings.csv").read_text().splitlines()
    assert head.startswith("cause,words,share,")
    assert first.startswith("slow device,")


def test_the_first_line_names_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slow rank among traces of all, a job that became slow, and a node in the slow ones of pairwise tests."""
    folders = [tmp_path / name for name in ("traces", "log", "pairs")]
    for folder in folders:
        folder.mkdir()
    Job(compute=lambda rank, _: 1.25 if rank == 11 else 1.0).write(folders[0])
    _slow_log(folders[1])
    _pairs(folders[2])
    first_lines = (
        r"rank 11 \(gpu001, GPU 3\) computes 2\d\.\d % slower than its peers; it costs \d+\.\d ms, \d+\.\d % of each step",
        r"since iteration 61 \(10:00:36\) steps take 750 ms, before 600 ms \(\+25\.0 %\)",
        r"gpu004 is in all 2 slow pairs of 5 logs: all-reduce reaches [\d.]+ GB/s there, [\d.]+ GB/s elsewhere",
    )
    for folder, answer in zip(folders, first_lines, strict=True):
        assert main(["diagnose", str(folder)]) == 4
        lines = capsys.readouterr().out.split("\ndiagnosed from ")[0].split("\n")
        assert re.match(answer, " ".join(line.strip() for line in lines))


def test_a_page_keeps_letters_of_hosts_and_has_no_empty_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *map(str, _pairs(tmp_path)), "--out", str(tmp_path / "out")]) == 4
    capsys.readouterr()
    page = (tmp_path / "out" / "index.html").read_text()
    assert "gpu004 is in all 2 slow pairs of 5 logs" in page
    assert "Gpu004" not in page
    assert "median step" not in page
    assert sorted(path.name for path in (tmp_path / "out" / "tables").iterdir()) == ["findings.csv", "hosts.csv"]


def test_the_exit_code_follows_the_threshold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(_slow_log(tmp_path))
    assert main(["diagnose", log]) == 4
    assert main(["diagnose", log, "--threshold", "30%"]) == 0
    capsys.readouterr()
    assert main(["diagnose", log, "--json"]) == 4
    printed = json.loads(capsys.readouterr().out)
    (finding,) = printed["findings"]
    assert printed["headline"] == finding["words"]
    assert finding["is_fault"]
    assert (finding["cause"], finding["first"], finding["last"]) == ("slower since", 61, 120)
    quiet = megatron_log(tmp_path / "quiet.log", list(0.6 + 0.003 * np.random.default_rng(0).standard_normal(100)))
    assert main(["diagnose", str(quiet)]) == 0
    assert capsys.readouterr().out.startswith("nothing is slower than its peers")


def test_the_prediction_of_the_job_says_whether_it_is_normal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = _slow_log(tmp_path)
    even = megatron_log(tmp_path / "even.log", [2.0 + 0.01 * (number % 3) for number in range(60)])
    for log in (slow, even):
        # the batch of the scenario
        log.write_text(log.read_text().replace("batch size:   256", "batch size:    24"))
    assert main(["diagnose", str(slow), "--scenario", "ring-2"]) == 4
    text = capsys.readouterr().out
    assert "slower than this software usually is" in text
    assert "as before: since iteration 61" in text
    assert main(["diagnose", str(even), "--scenario", "ring-2"]) == 0
    assert capsys.readouterr().out.startswith("slower than this software usually is: ")


def test_files_that_cannot_be_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.log").write_text("")
    assert main(["diagnose", str(tmp_path / "empty.log"), str(tmp_path / "missing.log")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path}/empty.log:1: the file is empty; copy it again",
        f"{tmp_path}/missing.log: No such file or directory; give a readable file",
    ]


def test_reconcile_begins_with_the_change_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reconcile", "ring-2", "--log", str(_slow_log(tmp_path)), "--set", "batch.total=256"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("since iteration 61 (10:00:36) steps take 750 ms, before 600 ms (+25.0 %)\n")
    assert text.count("since iteration 61") == 1


def test_import_names_the_host_that_slow_pairs_have_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = _pairs(tmp_path)
    assert main(["import", "nccl-tests", *map(str, logs)]) == 2
    assert capsys.readouterr().err.startswith("gpu004 is in all 2 slow pairs of 5 logs")
    assert main(["import", "nccl-tests", *map(str, logs), "--median"]) == 0
    assert capsys.readouterr().err.startswith("gpu004 is in all 2 slow pairs of 5 logs")
