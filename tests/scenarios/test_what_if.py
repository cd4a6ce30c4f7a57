"""Comparisons of shipped what-if scenarios agree with theory; tests/simulator/test_predict.py predicts all of them."""

from __future__ import annotations

import functools

import pytest

from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load


@functools.cache
def run(name: str, *fields: str, framework: str | None = None) -> Run:
    named = [] if framework is None else [f"framework={framework}"]
    return predict(load(name, [*named, *(f"strategy.{field}" for field in fields)]), interval=False)


def exposed(found: Run) -> float:
    """Exposed communication as a share of the step."""
    return found.breakdown_s["exposed_communication"] / found.step_time_s


@pytest.mark.full
def test_a_slow_worker_delays_synchronous_servers_only() -> None:
    name = "resnet50-async-straggler-p100"
    asynchronous, synchronous = run(name), run(name, "mode=synchronous")
    bounded, spared = run(name, "mode=stale_synchronous", "bound=2"), run(name, "mode=synchronous", "backups=1")
    assert asynchronous.samples_per_s > spared.samples_per_s > 1.1 * synchronous.samples_per_s
    assert bounded.samples_per_s < 1.1 * synchronous.samples_per_s


@pytest.mark.full
def test_a_larger_staleness_bound_absorbs_jitter() -> None:
    rates = [run("resnet50-stale-p100", f"bound={bound}").samples_per_s for bound in (0, 1, 3)]
    assert rates == sorted(rates)
    assert rates[2] > 1.2 * rates[0]


def test_prefetching_hides_what_zero_3_gathers() -> None:
    ahead, not_ahead = run("llama-2-7b-fsdp-a100"), run("llama-2-7b-fsdp-a100", "prefetch=0")
    assert exposed(ahead) < 0.02 < exposed(not_ahead)


def test_interleaving_shrinks_the_bubble_by_the_number_of_chunks() -> None:
    name = "megatron-175b-3d-selene"
    interleaved, plain = (run(name, *fields, framework="ideal") for fields in (("chunks=3",), ("chunks=1", "schedule=1f1b")))
    # (p − 1) / m of what a rank does, and a third of it; messages and the head make it a little more
    assert plain.breakdown_s["bubble"] / plain.breakdown_s["compute"] == pytest.approx(7 / 32, rel=0.25)
    assert interleaved.breakdown_s["bubble"] == pytest.approx(plain.breakdown_s["bubble"] / 3, rel=0.35)


def test_experts_on_their_own_workers_save_memory_and_cost_all_to_alls() -> None:
    name = "mixtral-8x7b-experts-h100"
    shared, together = run(name), run(name, "expert=1")
    assert shared.memory_bytes is not None
    assert together.memory_bytes is not None
    assert shared.memory_bytes["parameters"] < together.memory_bytes["parameters"] / 4
    assert exposed(shared) > exposed(together)


def test_a_ring_hides_the_keys_and_values_of_long_samples() -> None:
    name = "llama-3-8b-long-context-h100"
    assert exposed(run(name)) < exposed(run(name, "context_by=all_gather"))


def test_averaging_every_500_steps_tolerates_a_slow_network() -> None:
    name = "gpt3-1.3b-diloco-wan"
    assert exposed(run(name, "period=1")) > 0.95
    # parameters have 32 bits, as DiLoCo sends them
    assert exposed(run(name)) < 0.15
    assert exposed(run(name, "overlap=true")) == 0.0


def test_compression_pays_on_10_gbit_ethernet() -> None:
    name = "bert-large-power-sgd-10gbe"
    plain, factors, largest = (
        run(name, f"compression={how}") for how in ("null", "{kind: power_sgd, rank: 4}", "{kind: top_k, share: 0.01}")
    )
    assert factors.step_time_s < largest.step_time_s < plain.step_time_s / 2


def test_a_zero_bubble_pipeline_needs_more_memory() -> None:
    name = "llama-2-7b-zero-bubble-a100"
    free, plain = run(name), run(name, "schedule=1f1b")
    assert free.bubble_fraction < plain.bubble_fraction / 3
    assert free.memory_bytes_per_rank is not None
    assert plain.memory_bytes_per_rank is not None
    assert free.memory_bytes_per_rank > 1.1 * plain.memory_bytes_per_rank


@pytest.mark.parametrize(("adapters", "least", "most"), [("lora", 1.9, 2.0), (None, 0.3, 0.9)])
def test_adapters_pass_a_slow_network_that_all_weights_do_not(adapters: str | None, least: float, most: float) -> None:
    """A second machine over 10 Gbit/s Ethernet nearly doubles LoRA, and slows the training of all weights down."""
    fields = {"model": "llama-3.2-1b", "model.sequence": 2048, "optimizer": "adamw_8bit", "training.adapters": adapters}
    one, two = (predict(load("llama-3.1-8b-lora-10gbe", fields | {"gpus": gpus}), interval=False) for gpus in (1, 2))
    assert least < two.samples_per_s / one.samples_per_s < most


def test_four_bits_of_frozen_weights_save_memory_and_take_time() -> None:
    name = "llama-3.1-8b-lora-4090"
    plain, quantised = (predict(load(name, fields), interval=False) for fields in ((), ("training.base_precision=nf4",)))
    assert plain.memory_bytes_per_rank is not None
    assert quantised.memory_bytes_per_rank is not None
    # a byte and a half less for each of 7 billion parameters, and embedding and head in 32 bits
    assert plain.memory_bytes_per_rank - quantised.memory_bytes_per_rank > 5e9
    assert 1 < quantised.step_time_s / plain.step_time_s < 1.2
