"""Runs that exceed the machine's ranks or memory are rejected before any rank is started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import parse_bytes
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import memory_error
from scaleproof.validator.launch.refusal import refuse
from scaleproof.validator.measure import measure
from scaleproof.validator.preflight import memory_check
from scaleproof.validator.preflight.checks import check
from scaleproof.validator.preflight.memory_check import MOST_RANKS, check_room, gpu_memory
from scaleproof.validator.record import gpu_facts
from tests.validator.conftest import MakeScenario


def test_too_many_ranks_for_one_machine_are_rejected(make_scenario: MakeScenario) -> None:
    scenario = make_scenario({"kind": "parameter_server", "workers": 64, "servers": 65}, batch=64)
    with pytest.raises(InputError, match=rf"small: 129 ranks; one machine runs at most {MOST_RANKS}, start them on several"):
        measure(scenario)


def test_ranks_that_exceed_free_memory_are_rejected(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ring = make_scenario({"kind": "data_parallel", "workers": 4})
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(memory_check, "_MEMORY", meminfo)
    check_room(ring)
    meminfo.write_text("MemTotal: 1000000 kB\nMemAvailable: 100000 kB\n")
    with pytest.raises(InputError, match=r"small: 4 ranks need about 15\d MiB, and 97\.7 MiB of memory are free here; give"):
        check_room(ring)
    check_room(make_scenario({"kind": "data_parallel", "workers": 2}))


def test_the_memory_check_counts_parameters_and_gradients(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Parameters and gradients of 4 bytes, and nothing of a half of them on each of two stages."""
    big = {"kind": "mlp", "layers": 4, "inputs": 4096, "hidden": 4096, "outputs": 4096}
    parameters_bytes = 4 * 4 * 4096 * 4097
    (tmp_path / "meminfo").write_text(f"MemAvailable: {int(2.5 * 2 * parameters_bytes / 1024)} kB\n")
    monkeypatch.setattr(memory_check, "_MEMORY", tmp_path / "meminfo")
    check_room(make_scenario({"kind": "pipeline", "stages": 2, "microbatches": 2}, big))
    with pytest.raises(InputError, match="4 ranks need about"):
        check_room(make_scenario({"kind": "data_parallel", "workers": 4}, big))


def needed_bytes(scenario: Scenario, monkeypatch: pytest.MonkeyPatch, meminfo: Path) -> float:
    """What a machine without memory says that the ranks need."""
    meminfo.write_text("MemAvailable: 0 kB\n")
    monkeypatch.setattr(memory_check, "_MEMORY", meminfo)
    with pytest.raises(InputError) as error:
        check_room(scenario)
    reported = re.search(r"need about ([\d.]+ \w+),", str(error.value))
    assert reported is not None
    return parse_bytes(reported[1])


def test_the_memory_check_counts_server_shards_and_pushes(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    big = {"kind": "mlp", "layers": 4, "inputs": 4096, "hidden": 4096, "outputs": 4096}
    parameters_bytes = 4 * 4 * 4096 * 4097
    few, many = (
        needed_bytes(
            make_scenario({"kind": "parameter_server", "workers": workers, "servers": 1}, big), monkeypatch, tmp_path / "m"
        )
        for workers in (2, 8)
    )
    # of each worker more: its parameters and gradients, and what the server receives from it
    assert (many - few) / 6 == pytest.approx(3 * parameters_bytes + 40e6, rel=0.1)
    assert few == pytest.approx(2 * 2 * parameters_bytes + 3 * parameters_bytes + 3 * 40e6, rel=0.1)


def test_emulated_layers_need_memory_for_their_activations(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wide = {"kind": "mlp", "layers": 2, "inputs": 8, "hidden": 100_000, "outputs": 8}
    plain = make_scenario({"kind": "data_parallel", "workers": 2}, wide, batch=2048).model_copy(update={"compute": "paced"})
    fewer = make_scenario({"kind": "data_parallel", "workers": 2}, wide, batch=1024).model_copy(update={"compute": "paced"})
    reported = [needed_bytes(scenario, monkeypatch, tmp_path / "m") for scenario in (plain, fewer)]
    assert reported[0] - reported[1] == pytest.approx(2 * 2 * 512 * 100_000 * 4, rel=0.05)


H100_BYTES = 79.6 * 2**30
GPT_13B = {"kind": "gpt", "layers": 40, "hidden": 5120, "heads": 40, "vocabulary": 50_257, "sequence": 1024}
WORKERS = {"kind": "data_parallel", "workers": 8}
ON_GPUS = {
    "node": {"devices": 8, "link": {"bandwidth": "450 GB/s", "latency": "3 us"}},
    "device": {"name": "gpu", "peak": {"bf16": "900 TFLOP/s"}, "memory": "80 GiB", "memory_bandwidth": "3 TB/s"},
}


def on_gpus(
    make_scenario: MakeScenario, strategy: dict[str, Any], model: dict[str, Any] = GPT_13B, **training: Any
) -> Scenario:
    return make_scenario(strategy, model, batch=8, cluster=ON_GPUS, precision="bf16", autocast=False, **training)


def check_gpus(scenario: Scenario, gpus_bytes: Sequence[float], ranks: int) -> None:
    refuse(scenario, gpu_memory(scenario, gpus_bytes, ranks))


def test_a_model_larger_than_a_gpu_is_rejected_unless_it_is_sharded(make_scenario: MakeScenario) -> None:
    """Parameters and gradients of 13e9 in bf16, and Adam's states, are 102 GB on a rank, and an eighth of that if sharded."""
    whole = on_gpus(make_scenario, WORKERS, optimizer="adam")
    with pytest.raises(
        InputError, match=r"small: .* needs about 1\d\d GiB, and a GPU here has 79\.6 GiB; give a smaller model"
    ):
        check_gpus(whole, [H100_BYTES] * 8, ranks=8)
    check_gpus(on_gpus(make_scenario, WORKERS, optimizer="adam", zero=3), [H100_BYTES] * 8, ranks=8)
    check_gpus(whole, [], ranks=8)


def test_the_smallest_gpu_decides_and_ranks_that_share_one_share_its_memory(make_scenario: MakeScenario) -> None:
    sharded = on_gpus(make_scenario, WORKERS, optimizer="adam", zero=3)
    with pytest.raises(InputError, match=r"a GPU here has 8\.00 GiB"):
        check_gpus(sharded, [H100_BYTES] * 7 + [8 * 2**30], ranks=8)
    with pytest.raises(InputError, match=r"a GPU here that 8 ranks share has 79\.6 GiB"):
        check_gpus(sharded, [H100_BYTES], ranks=8)


def test_only_what_most_probably_does_not_fit_is_rejected(make_scenario: MakeScenario) -> None:
    """Nine in ten published runs need at least 0.81 of the predicted memory."""
    small = on_gpus(make_scenario, WORKERS, GPT_13B | {"layers": 4})
    error, predicted = memory_error(small), max(memory_check._gpu_ranks_bytes(small).values())
    assert error is not None
    least_bytes = error.factor_below(0.1) * predicted
    assert 0.7 * predicted < least_bytes < 0.9 * predicted

    check_gpus(small, [1.001 * least_bytes], ranks=1)
    with pytest.raises(InputError, match="needs about"):
        check_gpus(small, [0.999 * least_bytes], ranks=1)


def test_a_layer_that_is_built_as_a_whole_counts(make_scenario: MakeScenario) -> None:
    """An eighth of the words' embedding is left of it, but before that it is on the GPU as a whole."""
    wide = GPT_13B | {"layers": 1, "hidden": 512, "heads": 8, "vocabulary": 20_000_000, "sequence": 8}
    scenario = on_gpus(make_scenario, {"kind": "hybrid", "tensor": 8}, wide)
    with pytest.raises(InputError, match="needs about"):
        check_gpus(scenario, [0.5 * 2 * 20e6 * 512], ranks=8)


def test_ranks_on_gpus_need_host_memory_for_the_layers_that_they_build(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = on_gpus(make_scenario, WORKERS, optimizer="adam", zero=3)
    monkeypatch.setattr(memory_check, "_MEMORY", tmp_path / "meminfo")
    block_bytes = 4 * 12 * 5120**2
    (tmp_path / "meminfo").write_text(f"MemAvailable: {int(8 * (2.2 * block_bytes + 40e6) / 1024)} kB\n")
    check_room(scenario, [H100_BYTES] * 8)
    (tmp_path / "meminfo").write_text(f"MemAvailable: {int(8 * (1.8 * block_bytes + 40e6) / 1024)} kB\n")
    with pytest.raises(InputError, match=r"8 ranks need about \d+"):
        check_room(scenario, [H100_BYTES] * 8)


def test_a_machine_of_several_needs_memory_for_its_own_ranks(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    big = {"kind": "mlp", "layers": 4, "inputs": 4096, "hidden": 4096, "outputs": 4096}
    workers = make_scenario({"kind": "data_parallel", "workers": 4}, big)
    # parameters, gradients and buckets
    rank_bytes = 3 * 4 * 4 * 4096 * 4097 + 40e6
    monkeypatch.setattr(memory_check, "_MEMORY", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(f"MemAvailable: {int(2.5 * rank_bytes / 1024)} kB\n")

    check_room(workers, started=2)
    with pytest.raises(InputError, match=r"3 ranks need about .*; give a smaller model or fewer ranks, or start fewer of them"):
        check_room(workers, started=3)


def test_measuring_rejects_what_exceeds_the_gpus_here_before_ranks_start(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_facts, "memories_bytes", lambda _: [H100_BYTES] * 8)
    whole = on_gpus(make_scenario, WORKERS, optimizer="adam")
    with pytest.raises(InputError, match="a GPU here has"):
        measure(whole)
    monkeypatch.setenv("RANK", "0")
    for name, value in (("LOCAL_RANK", "0"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="a GPU here has"):
        check(whole, "cluster", None)
