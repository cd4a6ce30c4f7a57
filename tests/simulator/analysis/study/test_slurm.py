"""Jobs of Slurm: what is lost is tried again, what Slurm reports is one line. Without a Slurm, of scripts that have the
names of its commands; at night with the one that may be there, if its nodes see `tmp_path` (pytest's --basetemp chooses it)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scaleproof.simulator.analysis.study import slurm as jobs
from scaleproof.simulator.analysis.study.executors import workers
from scaleproof.simulator.analysis.study.slurm import SlurmJobs, limit_s, slurm
from scaleproof.simulator.analysis.study.sweep import sweep
from scaleproof.simulator.common.errors import InputError, RunError

STUDY = {
    "scenario": "resnet50-ring-p100",
    "axes": {"strategy.workers": [2, 4, 8], "batch.per_worker": {"from": 8, "to": 80, "points": 10}},
}

# A file for each job; others say how Slurm is: down, most (jobs at a time), lost (what the next job is), pending (none starts).
COMMANDS = """\
#!/bin/bash
at=$(dirname "$0")
fail() { echo "$(basename "$0"): error: $1" >&2; exit 1; }
[ "$(basename "$0")" = srun ] || ! [ -e "$at/down" ] || fail "Unable to contact slurm controller (connect failure)"
case $(basename "$0") in
sbatch)
  [ -e "$at/most" ] && [ "$(ls "$at/jobs" | wc -l)" -ge "$(cat "$at/most")" ] && fail "Job violates accounting/QOS policy"
  echo x >> "$at/count"; number=$(wc -l < "$at/count")
  if rm "$at/lost" 2> /dev/null; then echo "Submitted batch job $number"; exit; fi
  touch "$at/jobs/$number"
  if ! [ -e "$at/pending" ]; then
    SLURM_JOB_ID=$number SLURM_PROCID=0 setsid bash -c 'bash "$0"; rm -f "$1"' "$1" "$at/jobs/$number" > /dev/null 2>&1 &
  fi
  echo "Submitted batch job $number" ;;
squeue)
  state="RUNNING|None"; [ -e "$at/pending" ] && state="PENDING|PartitionTimeLimit"
  for job in $(ls "$at/jobs"); do echo "$job|$state"; done ;;
scancel)
  for job in "$@"; do rm -f "$at/jobs/$job"; done ;;
srun)
  while [ "${1#--}" != "$1" ]; do case $1 in --output|--error) shift ;; esac; shift; done
  exec "$@" ;;
esac
"""


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of such a Slurm, which responds at once."""
    at = tmp_path / "slurm"
    (at / "jobs").mkdir(parents=True)
    for name in ("sbatch", "squeue", "scancel", "srun"):
        (at / name).write_text(COMMANDS)
        (at / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(at), prepend=":")
    monkeypatch.delenv("SBATCH_TIMELIMIT", raising=False)
    for name, value in (("_QUEUE_S", 0.2), ("_FILE_S", 0.5)):
        monkeypatch.setattr(jobs, name, value)
    monkeypatch.setattr(SlurmJobs, "poll_s", 0.1)
    monkeypatch.setattr("scaleproof.simulator.analysis.study.executors._JOB_POINTS", 15)
    return at


@pytest.fixture(scope="module")
def expected() -> pd.DataFrame:
    return sweep(STUDY)


def submitted(folder: Path) -> tuple[SlurmJobs, Future[Any]]:
    start, _ = slurm(folder)
    executor = start()
    return executor, executor.submit(len, "four")


def waited(true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "text"),
    [
        pytest.param("lost", "", id="a job is lost"),
        pytest.param("most", "1\n", marks=pytest.mark.full, id="one job at a time"),
    ],
)
def test_rows_equal_those_of_other_executors(
    scripted: Path, tmp_path: Path, expected: pd.DataFrame, file: str, text: str
) -> None:
    (scripted / file).write_text(text)
    found = sweep(STUDY, tmp_path / "out", executor="slurm")
    pd.testing.assert_frame_equal(found, expected)
    assert len((scripted / "count").read_text().splitlines()) == (3 if file == "lost" else 2)


def test_failing_slurm_commands_give_a_one_line_error(scripted: Path, tmp_path: Path) -> None:
    (scripted / "down").touch()
    with pytest.raises(InputError) as caught:
        workers("slurm", None, tmp_path)
    assert "Unable to contact slurm controller" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_slurm_commands_without_response_time_out(scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scripted / "squeue").write_text("#!/bin/bash\nexec sleep 60\n")
    monkeypatch.setattr(jobs, "_TIMEOUT_S", 0.3)
    with pytest.raises(InputError, match="squeue: no response from Slurm within"):
        workers("slurm", None, tmp_path)


def test_jobs_that_sbatch_rejects_are_reported_and_make_no_rows(
    scripted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (scripted / "most").write_text("0\n")
    with pytest.raises(RunError, match=r"Slurm rejects jobs \(sbatch: error: Job violates accounting/QOS policy\)"):
        sweep(STUDY, tmp_path / "out", executor="slurm")
    assert not list((tmp_path / "out").glob("*.parquet"))
    assert capsys.readouterr().err == ""


def test_jobs_that_do_not_start_are_reported_and_cancelled(
    scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scripted / "pending").touch()
    executor, future = submitted(tmp_path)

    def long_ago() -> None:
        monkeypatch.setattr(jobs, "_PENDING_S", 0.0)
        waited(lambda: executor._any_started)

    with pytest.warns(UserWarning, match=r"none of 1 jobs has started yet \(PartitionTimeLimit\)"):
        long_ago()
    executor.shutdown(wait=False, cancel_futures=True)
    assert future.cancelled()
    assert not list((scripted / "jobs").iterdir())


def test_a_slurm_outage_is_tolerated_for_a_limited_time(
    scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scripted / "pending").touch()
    executor, future = submitted(tmp_path)

    def gone(result: pytest.WarningsRecorder) -> None:
        (scripted / "down").touch()
        waited(lambda: len(result) > 0)
        assert not future.done()
        monkeypatch.setattr(jobs, "_UNRESPONSIVE_S", 0.0)
        with pytest.raises(RuntimeError, match="Slurm has not responded"):
            future.result(60)
        executor.shutdown(wait=False, cancel_futures=True)

    with pytest.warns(UserWarning, match="Unable to contact slurm controller") as result:
        gone(result)


def test_jobs_that_cannot_be_cancelled_are_reported(scripted: Path, tmp_path: Path) -> None:
    (scripted / "pending").touch()
    executor, future = submitted(tmp_path)
    (scripted / "down").touch()
    with pytest.warns(UserWarning, match="cancel jobs with 'scancel"):
        executor.shutdown(wait=False, cancel_futures=True)
    assert future.cancelled()


def test_a_job_ends_on_a_termination_signal() -> None:
    code = """if True:
        import os, signal
        from scaleproof.simulator.analysis.study.slurm import run_until_signalled
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        run_until_signalled(os.kill, os.getpid(), signal.SIGTERM)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("", None), ("infinite", None), ("30", 1800.0), ("30:15", 1815.0), ("2:00:00", 7200.0),
        ("1-0", 86_400.0), ("1-12:30", 131_400.0), ("1-12:30:10", 131_410.0), ("1:2:3:4", None), ("-3", None),
    ],
)  # fmt: skip
def test_time_limits_are_parsed_like_sbatch(text: str, limit: float | None) -> None:
    assert limit_s(text) == limit


def test_a_job_saves_its_results_before_its_time_limit(scripted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert workers("slurm", None, tmp_path).task_s == 1800
    monkeypatch.setenv("SBATCH_TIMELIMIT", "10")
    assert workers("slurm", None, tmp_path).task_s == 300
