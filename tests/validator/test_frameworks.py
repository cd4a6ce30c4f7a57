"""Frameworks: what they make of a layer's kernels, by theory."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from simulator import library
from simulator.cluster.cost import processors_taken
from simulator.cluster.device import Device
from simulator.collective import collective_time
from simulator.errors import InputError
from simulator.model import Gpt, Layer, Llama
from simulator.model.layers import Shard
from simulator.scenario import Scenario, load_cluster, load_device
from validator.framework_exchanges import Beside, beside
from validator.framework_times import Work, device_for, slowest, written
from validator.frameworks import CHECKPOINT, FLASH, Constants, Framework, framework_of

LLAMA = Llama(layers=2, hidden=4096, heads=32, key_heads=8, feedforward=14336, vocabulary=32000, sequence=4096)
SMALL = Gpt(layers=2, hidden=64, heads=4, vocabulary=128, sequence=16, tied=True)
WORK = Work(ranks=1, samples=1, precision="bf16", optimizer="adam", recompute="none")


def device(name: str = "h100-80gb-sxm") -> Device:
    return load_device(library.ROOT / "devices" / f"{name}.yaml")


def block_s(
    framework: Framework, work: Work = WORK, on: str = "h100-80gb-sxm", model: Llama | Gpt = LLAMA
) -> tuple[float, float]:
    """Seconds of a block's passes, as the framework's device has them."""
    layers = model.build_layers()
    return device_for(device(on), framework, layers, work).layer_s(layers[1], work.samples, work.precision)


def test_every_software_of_the_table_is_known_and_none_by_chance() -> None:
    with (library.ROOT / "published" / "transformer_training.csv").open(newline="", encoding="utf-8") as file:
        named = {row["software"] for row in csv.DictReader(file)}
    families = {framework_of(software).family for software in named}
    assert families == {
        "Megatron-LM 2021", "Megatron-LM 2022", "Megatron-DeepSpeed", "Megatron-DeepSpeed 2022", "llm-foundry", "torchtitan",
        "Megatron-Core", "NeMo",
    }  # fmt: skip
    for unknown in ("", "MaxText"):
        with pytest.raises(InputError, match="unknown software"):
            framework_of(unknown)


def test_a_compiler_saves_memory_traffic_and_host_time_alone() -> None:
    eager, compiled = framework_of("torchtitan compile=False"), framework_of("torchtitan compile=True")
    assert eager.family == compiled.family
    assert sum(block_s(compiled)) < sum(block_s(eager)) < 1.6 * sum(block_s(compiled))
    assert sum(block_s(compiled, model=SMALL)) < 0.5 * sum(block_s(eager, model=SMALL))


def test_small_layers_take_as_long_as_the_host_issues_their_kernels() -> None:
    framework = framework_of("Megatron-DeepSpeed")
    forward_s, backward_s = block_s(framework, on="a100-80gb-sxm", model=SMALL)
    assert forward_s == pytest.approx(framework.block_kernels.forward * framework.kernel_host_s, rel=0.05)
    assert backward_s == pytest.approx(framework.block_kernels.backward * framework.kernel_host_s, rel=0.05)
    twice_s, _ = block_s(framework.with_constants(Constants(host=2.0)), on="a100-80gb-sxm", model=SMALL)
    assert twice_s == pytest.approx(2 * forward_s, rel=0.05)


def test_a_host_that_waits_for_kernels_adds_its_time_to_theirs() -> None:
    framework, large = framework_of("Megatron-DeepSpeed"), replace(WORK, samples=4)
    host_s = framework.block_kernels.forward * framework.kernel_host_s
    added_s = block_s(replace(framework, blocking=True), large)[0] - block_s(framework, large)[0]
    assert added_s == pytest.approx(host_s, rel=0.1)


def test_constants_scale_kernels_of_large_layers() -> None:
    framework = framework_of("llm-foundry FSDP")
    once, twice = (block_s(framework.with_constants(Constants(kernels=k)), replace(WORK, samples=8)) for k in (1.0, 2.0))
    assert twice == pytest.approx((2 * once[0], 2 * once[1]), rel=0.01)


def test_the_time_of_a_microbatch_goes_with_the_ends_of_the_model() -> None:
    framework, layers = framework_of("llm-foundry FSDP"), LLAMA.build_layers()
    plain, later = (
        device_for(device(), framework.with_constants(Constants(microbatch_s=s)), layers, WORK) for s in (0.0, 0.01)
    )
    more_s = [sum(later.layer_s(layer, 1, "bf16")) - sum(plain.layer_s(layer, 1, "bf16")) for layer in layers]
    assert more_s == pytest.approx([0.005, 0.0, 0.0, 0.005])


def test_full_recomputation_adds_a_forward_pass_and_the_host_hides_behind_it() -> None:
    framework, full = framework_of("Megatron-LM 2022"), replace(WORK, recompute="full")
    forward_s, backward_s = block_s(framework)
    again_forward_s, again_backward_s = block_s(framework, full)
    # strategies add the forward pass to this
    assert (again_forward_s, again_backward_s) == pytest.approx((forward_s, backward_s), rel=0.001)


def test_full_recomputation_has_the_host_read_and_set_states_of_random_numbers() -> None:
    framework, full = framework_of("Megatron-LM 2022"), replace(WORK, recompute="full")
    none_s, full_s = (block_s(framework, work, model=SMALL) for work in (WORK, full))
    more_s = [after - before for before, after in zip(none_s, full_s, strict=True)]
    assert more_s == pytest.approx([calls * framework.kernel_host_s for calls in CHECKPOINT], rel=0.05)


def test_softmax_of_other_than_four_heads_at_a_time_is_not_fused() -> None:
    """Heads of all samples count; other frameworks' softmax does not mind."""
    framework, model = framework_of("Megatron-DeepSpeed"), SMALL.model_copy(update={"sequence": 1024, "flash": False})
    for heads, samples, unfused in ((4, 1, False), (2, 1, True), (2, 2, False), (2, 3, True)):
        work, few = replace(WORK, samples=samples), model.model_copy(update={"heads": heads})
        found, fused = (block_s(one, work, model=few) for one in (framework, replace(framework, fused_softmax=False)))
        assert (found > fused) == unfused


def test_selective_recomputation_by_operator_is_between_none_and_all() -> None:
    framework = framework_of("torchtitan compile=True")
    (forward_s, none_s), (_, some_s) = (block_s(framework, replace(WORK, recompute=kind)) for kind in ("none", "selective"))
    assert none_s + 0.2 * forward_s < some_s < none_s + 0.8 * forward_s


def test_what_is_gathered_again_is_waited_for() -> None:
    framework, layers = framework_of("torchtitan compile=True"), LLAMA.build_layers(Shard(8, True))
    selective = replace(WORK, samples=16, recompute="selective")
    plain, gathering = (
        device_for(device(), framework, layers, selective, gathers)
        for gathers in ({}, {layers[1].signature: Beside(again_s=1e-3)})
    )
    passes = [on.layer_s(layers[1], 16, "bf16") for on in (plain, gathering)]
    assert passes[1][0] == passes[0][0]
    assert passes[1][1] == pytest.approx(passes[0][1] + 1e-3, rel=0.02)


def test_eight_bits_are_faster_and_scaling_by_row_saves_less() -> None:
    framework, large = framework_of("torchtitan compile=True"), replace(WORK, samples=8)
    recipes = (large, replace(large, fp8=True, fp8_recipe="rowwise"), replace(large, fp8=True, fp8_recipe="tensorwise"))
    none_s, row_s, tensor_s = (sum(block_s(framework, work)) for work in recipes)
    assert 0.5 * none_s < tensor_s < row_s < none_s


def test_more_devices_wait_for_a_slower_one() -> None:
    counts = [slowest(ranks) for ranks in (1, 2, 8, 64, 512, 4096)]
    assert counts[0] == 1
    assert counts == sorted(set(counts))
    # the range of a few hundred normal speeds is six deviations
    assert counts[-1] < 1.08


def test_later_attention_is_faster() -> None:
    for generation in ("ampere", "hopper", "blackwell"):
        shares = [FLASH[version][generation] for version in ("flash 1 triton", "flash 2", "flash 3")]
        assert all(a <= b for pair in pairwise(shares) for a, b in zip(*pair, strict=True))
        assert all(0 < share < 1 for pair in shares for share in pair)


def test_a_device_that_reaches_one_efficiency_stays_as_it_is() -> None:
    flat = device().model_copy(update={"efficiency": 0.5})
    assert device_for(flat, framework_of("NeMo"), LLAMA.build_layers(), WORK) is flat


def test_the_optimizer_is_bound_by_the_bytes_that_it_moves() -> None:
    framework, on = framework_of("Megatron-LM 2021"), device("a100-80gb-sxm")
    assert on.kernels is not None
    step_s = device_for(on, framework, LLAMA.build_layers(), WORK).optimizer_s(1e9, "adam", "bf16")
    assert step_s == pytest.approx(62e9 / (on.memory_bandwidth_Bps * on.kernels.memory_share))


def test_what_operators_write() -> None:
    block: Layer = LLAMA.build_layers()[1]
    elements = {operator.name: written(operator) for operator in block.operators}
    assert elements["projection"] == elements["attention"] == elements["norm"] == 4096 * 4096
    assert elements["qkv"] == 4096 * (4096 + 2 * 1024)


def test_collectives_beside_a_pass_take_processors_from_it() -> None:
    """As long as the device has channels that move data, of the processors that compute."""
    cluster = load_cluster(library.find_part("cluster", "selene-a100", Path()))
    plain = {"model": LLAMA, "cluster": cluster, "batch": {"total": 64}, "training": {"precision": "bf16", "optimizer": "adam"}}
    shared = plain | {"training": plain["training"] | {"zero": 3}}  # type: ignore[operator]
    strategy = {"kind": "hybrid", "workers": 16, "microbatches": 2, "overlap": True}
    found = {}
    for name, fields, changes in (
        ("one", plain, {"workers": 1}), ("after", plain, {"overlap": False}), ("sums", plain, {}), ("gathers", shared, {}),
    ):  # fmt: skip
        scenario = Scenario.model_validate({**fields, "strategy": strategy | changes})
        job = scenario.job()
        found[name] = beside(scenario.strategy.plan, job)[job.layers[1].signature]
    assert found["one"] == found["after"] == Beside()
    assert found["sums"].forward_s == 0 < found["sums"].backward_s
    # parameters are gathered for either pass, and of every microbatch gradients are scattered
    assert found["gathers"].backward_s > 2 * found["gathers"].forward_s * 0.99
    assert found["gathers"].backward_s > found["sums"].backward_s
    assert cluster.device.kernels is not None
    longest_s = processors_taken(cluster) * collective_time("all_reduce", job.layers[1].parameters * 2, 16, cluster)
    assert found["sums"].backward_s == pytest.approx(longest_s / 2, rel=0.01)
