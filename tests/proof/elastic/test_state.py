"""Saved training state is restored bit-identically, optimizer included, and training continues as if undisturbed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.elastic import job as jobs
from scaleproof.proof.elastic.job import Job
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.launch import run_on_ranks
from tests.proof.elastic import saving
from tests.validator.verdicts import in_bulk

SMALL = ("model={kind: mlp, layers: 3, inputs: 16, hidden: 16, outputs: 4}", "batch={total: 8}", "steps=4", "compute=real")
STRATEGIES = {
    "everybody has all": "{kind: data_parallel, workers: 2, overlap: false}",
    "overlapped with the backward pass": "{kind: data_parallel, workers: 2}",
    "one server": "{kind: parameter_server, workers: 2, servers: 1}",
    "two servers": "{kind: parameter_server, workers: 2, servers: 2}",
}


def scenario(strategy: str, *overrides: str) -> Scenario:
    return load("netlab-ddp-after", [*SMALL, "training={optimizer: adam}", f"strategy={strategy}", *overrides])


def job(folder: Path, strategy: str) -> Job:
    one = scenario(strategy)
    return Job(folder, {one.strategy.ranks: one}, every=4)


@pytest.mark.parametrize("strategy", ["overlapped with the backward pass", "two servers", *in_bulk("everybody has all")])
def test_resumed_training_equals_uninterrupted_training(tmp_path: Path, strategy: str) -> None:
    own = job(tmp_path, STRATEGIES[strategy])
    reported = run_on_ranks(saving.save_and_go_on, own.ranks, own)
    for rank, one in enumerate(reported):
        assert (one["began"], one["resumed"]) == (0, saving.SAVED_AFTER)
        assert len(set(one["digests"])) == 3, "training changes parameters"
        assert one["restored"][0] == one["digests"][1]
        if "overlapped" not in strategy:
            assert one["restored"][1] == one["digests"][2], f"rank {rank} has the optimizer's state as well"
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"


def test_servers_resume_from_the_last_step_saved_by_all(tmp_path: Path) -> None:
    own = job(tmp_path, STRATEGIES["two servers"])
    reported = run_on_ranks(saving.save_often, own.ranks, own)
    assert [own.holders.start, own.holders.stop] == [2, 4]
    assert reported == [[4], [4], [4, 5, 4], [3, 4, 4]]


def test_invalid_checkpoints_are_rejected(tmp_path: Path) -> None:
    refused = {
        "{kind: pipeline, stages: 2, schedule: gpipe}": "this pipeline cannot be restored",
        "{kind: parameter_server, workers: 2, servers: 1, mode: asynchronous}": "without backups",
        "{kind: parameter_server, workers: 2, servers: 1, overlap: true}": "overlap",
        "{kind: data_parallel, workers: 2, compression: {kind: fp16}}": "without ZeRO and compression",
    }
    for strategy, why in refused.items():
        with pytest.raises(InputError, match=why):
            jobs.check(job(tmp_path, strategy))
    jobs.check(job(tmp_path, STRATEGIES["two servers"]))


def test_jobs_with_copies_of_parameters_are_rejected(tmp_path: Path) -> None:
    one = scenario(STRATEGIES["everybody has all"], "training.offload=[optimizer]")

    with pytest.raises(InputError, match=r"training.offload, whose copies of the parameters are not saved"):
        jobs.check(Job(tmp_path, {one.strategy.ranks: one}, every=4))


@pytest.mark.parametrize("field", ["unevenness={stragglers: [{ranks: 1, slowdown: 2}]}", "input={decode: 8 ms}"])
def test_perturbations_and_input_are_not_imposed_on_jobs(tmp_path: Path, field: str) -> None:
    one = scenario(STRATEGIES["two servers"], field)
    with pytest.raises(InputError, match=rf"{field.partition('=')[0]} is not imposed on elastic jobs; leave it out"):
        jobs.check(Job(tmp_path, {one.strategy.ranks: one}, every=4))


def test_a_saved_job_is_read_back_unchanged(tmp_path: Path) -> None:
    own = replace(job(tmp_path / "new", STRATEGIES["one server"]), silence_s=7.0)
    own.write()
    assert jobs.read_job(own.folder) == own
    assert (own.ranks, own.steps, own.warmup) == (3, 7, 3)
