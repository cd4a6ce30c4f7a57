"""More ranks than a machine can hold are refused before any is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import InputError
from tests.validator.conftest import MakeScenario
from validator import room
from validator.measure import measure
from validator.room import MOST_RANKS, check_room


def test_more_ranks_than_a_machine_is_given(make_scenario: MakeScenario) -> None:
    scenario = make_scenario({"kind": "parameter_server", "workers": 64, "servers": 65}, batch=64)
    with pytest.raises(
        InputError, match=rf"small: 129 ranks; one machine is given at most {MOST_RANKS}, start them on several"
    ):
        measure(scenario)


def test_more_than_its_memory(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ring = make_scenario({"kind": "data_parallel", "workers": 4})
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(room, "_MEMORY", meminfo)
    check_room(ring)
    meminfo.write_text("MemTotal: 1000000 kB\nMemAvailable: 100000 kB\n")
    with pytest.raises(InputError, match=r"small: 4 ranks need about 15\d MiB, and 97\.7 MiB of memory are free here; give"):
        check_room(ring)
    check_room(make_scenario({"kind": "data_parallel", "workers": 2}))


def test_what_ranks_train_counts(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Parameters and gradients of 4 bytes, and nothing of a half of them on each of two stages."""
    big = {"kind": "mlp", "layers": 4, "inputs": 4096, "hidden": 4096, "outputs": 4096}
    parameters_bytes = 4 * 4 * 4096 * 4097
    (tmp_path / "meminfo").write_text(f"MemAvailable: {int(2.5 * 2 * parameters_bytes / 1024)} kB\n")
    monkeypatch.setattr(room, "_MEMORY", tmp_path / "meminfo")
    check_room(make_scenario({"kind": "pipeline", "stages": 2, "microbatches": 2}, big))
    with pytest.raises(InputError, match="4 ranks need about"):
        check_room(make_scenario({"kind": "data_parallel", "workers": 4}, big))
