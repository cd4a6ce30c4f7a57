"""Scenarios on another number of GPUs."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.gpus import gpus_note, with_gpus
from scaleproof.simulator.scenario.load import load

MEGATRON = "megatron-175b-3d-selene"
PIPELINE = "llama-2-7b-zero-bubble-a100"


@pytest.mark.parametrize(("name", "gpus"), [(MEGATRON, 128), (MEGATRON, 2048), ("resnet50-servers-p100", 64), ("elastic", 48)])
def test_the_batch_the_microbatch_and_the_division_of_the_model_stay(name: str, gpus: int) -> None:
    before = load(name)
    after = with_gpus(before, gpus)
    assert after.strategy.training_ranks == gpus
    assert after.total_samples == before.total_samples
    assert after.strategy.plan.shard == before.strategy.plan.shard
    assert (after.strategy.stages, after.strategy.servers) == (before.strategy.stages, before.strategy.servers)
    if before.strategy.microbatches > 1:
        per_microbatch = [one.samples_per_worker / one.strategy.microbatches for one in (before, after)]
        assert per_microbatch[0] == per_microbatch[1]


def test_a_batch_per_worker_becomes_the_global_batch() -> None:
    before = load(MEGATRON, {"batch.per_worker": 32})
    assert with_gpus(before, 1024).total_samples == before.total_samples == 8 * 32


@pytest.mark.parametrize("batch", ["batch={per_worker: 32}", "batch.per_worker=32"])
def test_a_batch_per_worker_that_is_given_with_gpus_stays(batch: str) -> None:
    assert load(MEGATRON, [batch, "gpus=1024"]).samples_per_worker == 32


def test_added_nodes_are_reported() -> None:
    before = load("resnet50-ring-p100")
    assert with_gpus(before, before.strategy.training_ranks) is before
    note = gpus_note(before, with_gpus(before, 1024))
    assert "cluster.nodes 256 (was 16)" in note
    assert "p100-25gbe has 64 GPUs, 240 nodes are added" in note
    assert gpus_note(before, before) == ""


@pytest.mark.parametrize(
    ("name", "gpus", "message"),
    [
        (
            MEGATRON,
            100,
            "100 GPUs: not a multiple of the 64 GPUs of a worker (tensor 8 × stages 8); nearest possible: 64 and 128",
        ),
        (MEGATRON, 192, "3 workers do not divide the global batch of 256 samples; give another number, or set batch.total=255"),
        (PIPELINE, 64, "64 GPUs: a pipeline is one worker on 4 GPUs; set strategy.kind=hybrid"),
        ("resnet50-hybrid-dgx1", 64, "cluster.network: missing between several nodes"),
    ],
)
def test_impossible_numbers_are_refused_with_the_nearest_possible_ones(name: str, gpus: int, message: str) -> None:
    with pytest.raises(InputError) as error:
        with_gpus(load(name), gpus)
    assert message in str(error.value)


def test_a_number_of_gpus_in_a_file_is_hinted_at() -> None:
    fields = {"model": "llama-3-8b", "cluster": "dgx-h100", "strategy": "data_parallel", "batch": 64, "gpus": 64}
    with pytest.raises(InputError, match=r"gpus: unknown key; a scenario has strategy.workers; .* --gpus N"):
        load(fields)
    assert load({name: value for name, value in fields.items() if name != "gpus"}, {"gpus": 64}).strategy.workers == 64


def test_a_number_of_gpus_may_confirm_the_workers_that_are_given() -> None:
    given = ["strategy.tensor=4", "strategy.workers=16", "strategy.microbatches=16", "batch=256"]
    assert load(MEGATRON, [*given, "gpus=512"]) == load(MEGATRON, given)
    assert load(PIPELINE, ["gpus=4"]) == load(PIPELINE)
    with pytest.raises(InputError, match=r"64 GPUs contradict strategy.workers, which is also given \(16 workers of 32\)"):
        load(MEGATRON, [*given, "gpus=64"])
