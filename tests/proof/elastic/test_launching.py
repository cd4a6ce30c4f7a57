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
from scaleproof.proof.elastic.events.experiment import Experiment
from scaleproof.proof.elastic.events.injector import train_along
from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launchers import Torchrun
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.netlab.compatibility import lab_cluster as cluster_of
from scaleproof.validator.netlab.lab import Netlab
from tests.proof.elastic import made
from tests.validator.netlabs import lab_cluster, needs_netlab
from tests.validator.processes import children, descendants, is_running, kill, wait_until

pytestmark = pytest.mark.full

# Of agents, trainers, and the processes that hold the lab and start ranks.
_PROCESSES = 8


@needs_netlab
def test_a_process_that_cannot_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "write", lambda job: job.folder.mkdir())
    job = replace(made.job(), folder=tmp_path / "job")
    with Netlab(cluster_of(job.scenario)) as lab, pytest.raises(RunError, match="cannot start: FileNotFoundError"):
        launching.alone(job, lab, 0)


@needs_netlab
def test_a_torchrun_timeout_is_reported_and_leaves_no_process(tmp_path: Path) -> None:
    job = replace(made.job(), folder=tmp_path / "job", patience_s=0.05)
    before = children(os.getpid())
    with (
        Netlab(cluster_of(job.scenario)) as lab,
        pytest.raises(RunError, match=r"torchrun cannot be started on host \d: .*; try: "),
    ):
        train_along(job, lab, Torchrun(Settings(hosts=(2, 3))), job.ranks)
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
@pytest.mark.parametrize("name", ["netlab-rank-killed", "netlab-host-lost", "netlab-server-killed", "netlab-link-slowed"])
def test_training_goes_on_rightly_after_one_event(name: str, tmp_path: Path) -> None:
    outcome = Experiment(load(name), "netlab").run(tmp_path, lambda _: None)
    assert outcome.state.right, outcome.state.words
    assert outcome.follows
    (change,), (before, after) = outcome.measured.changes, outcome.measured.stretches
    if "link" in name:
        assert after.step_s > 1.3 * before.step_s, "the link is at two fifths of its rate"
        assert (change.pause_s, change.resumed_step) == (0, 7)
    else:
        assert change.resumed_step == 8
        assert change.pause_s > 1


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
