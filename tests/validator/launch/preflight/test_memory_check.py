"""Runs that exceed the machine's ranks or memory are rejected before any rank is started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import parse_bytes
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.preflight import memory_check
from scaleproof.validator.launch.preflight.memory_check import MOST_RANKS, check_room
from scaleproof.validator.measure import measure
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


def test_the_memory_check_counts_no_more_than_its_part_of_a_server(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    big = {"kind": "mlp", "layers": 4, "inputs": 4096, "hidden": 4096, "outputs": 4096}
    one, four = (
        needed_bytes(
            make_scenario({"kind": "parameter_server", "workers": 1, "servers": servers}, big), monkeypatch, tmp_path / "m"
        )
        for servers in (1, 4)
    )
    assert four - one == pytest.approx(3 * 40e6, rel=0.05), "of processes alone"


def test_emulated_layers_need_memory_for_their_activations(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wide = {"kind": "mlp", "layers": 2, "inputs": 8, "hidden": 100_000, "outputs": 8}
    plain = make_scenario({"kind": "data_parallel", "workers": 2}, wide, batch=2048).model_copy(update={"compute": "paced"})
    fewer = make_scenario({"kind": "data_parallel", "workers": 2}, wide, batch=1024).model_copy(update={"compute": "paced"})
    reported = [needed_bytes(scenario, monkeypatch, tmp_path / "m") for scenario in (plain, fewer)]
    assert reported[0] - reported[1] == pytest.approx(2 * 2 * 512 * 100_000 * 4, rel=0.05)
