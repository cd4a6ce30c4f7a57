"""Processes of a job are started on a lab's hosts and killed on request, and none is left when the job ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.elastic import launching
from scaleproof.proof.elastic.faults import KINDS, inject_faults, workers_job
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.netlab.compatibility import lab_cluster as cluster_of
from scaleproof.validator.netlab.lab import Netlab
from tests.validator.netlabs import lab_cluster, needs_netlab
from tests.validator.processes import children, descendants, is_running, kill, wait_until

pytestmark = pytest.mark.full

# Of agents, trainers, and the processes that hold the lab and start ranks.
_PROCESSES = 8


@needs_netlab
def test_a_process_that_cannot_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "write", lambda job: job.folder.mkdir())
    job = workers_job(tmp_path / "job")
    with Netlab(cluster_of(job.scenario)) as lab, pytest.raises(RunError, match="cannot start: FileNotFoundError"):
        launching.alone(job, lab, 0)


@needs_netlab
def test_a_torchrun_timeout_is_reported_and_leaves_no_process(tmp_path: Path) -> None:
    job = replace(workers_job(tmp_path / "job"), patience_s=0.05)
    before = children(os.getpid())
    with (
        Netlab(cluster_of(job.scenario)) as lab,
        pytest.raises(RunError, match=r"torchrun cannot be started on host \d: .*; try: "),
    ):
        launching.under_torchrun(job, lab, Settings(hosts=(2, 3)))
    assert children(os.getpid()) == before


@needs_netlab
def test_a_slowed_link_has_less_bandwidth() -> None:
    with Netlab(lab_cluster(3, "200 Mbit/s")) as lab:
        lab.limit(1, 40e6 / 8)
        into, out, between = (link.measured_Bps * 8 for link in sorted(lab.self_test().alone, key=lambda link: link.name))
    assert into < 60e6, "host 0 to host 1"
    assert out < 60e6, "host 1 to host 2"
    assert between > into, "host 2 to host 0"


def test_links_of_a_closed_lab_cannot_be_slowed() -> None:
    with pytest.raises(RunError, match="the lab is not up"):
        Netlab(lab_cluster(2)).limit(0, 1e6)


@needs_netlab
@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_cost_of_each_fault_is_the_sum_of_its_parts(kind: str, tmp_path: Path) -> None:
    reported: list[str] = []
    (outcome,) = inject_faults([kind], tmp_path, reported.append)
    assert outcome.right, outcome.state
    assert reported
    rows = {row.name.strip(): row.measured_s for row in outcome.rows}
    assert rows["step before"] > 0
    if kind == "link":
        assert rows["step after"] > 1.3 * rows["step before"], "the link is at two fifths of its rate"
        return
    assert rows["lost in all"] == pytest.approx(rows["detection"] + rows["restart"] + rows["lost work"])
    assert rows["whole run"] > rows["lost in all"]
    if kind != "node":
        assert outcome.state == "the same to the last bit as without the fault"


@needs_netlab
@pytest.mark.nightly
@pytest.mark.parametrize("end", [kill, lambda pid: os.kill(pid, 2)], ids=["killed", "interrupted"])
def test_an_interrupted_command_leaves_no_process(end: Callable[[int], None], tmp_path: Path) -> None:
    arguments = ["-m", "scaleproof", "faults", "--only", "rank", "--out", str(tmp_path)]
    command = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: len(descendants(command.pid)) >= _PROCESSES, 400.0)
    started = descendants(command.pid)
    end(command.pid)
    command.wait(60)
    assert wait_until(lambda: not any(map(is_running, started)), 20.0)
    assert not list(tmp_path.iterdir()), "nothing half-done is kept"
