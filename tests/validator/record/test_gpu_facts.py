"""What nvidia-smi says of a GPU is recorded, and nothing where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.validator.record import gpu_facts

SETTINGS = "700.00 W, 1980 MHz, 2619 MHz, Default, Enabled, [N/A]"


def stand_in(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a program of this name on the path; returns the file that it writes its arguments to."""
    program, called = folder / "nvidia-smi", folder / "arguments"
    program.write_text(f'#!/bin/sh\necho "$@" > {called}\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return called


def test_limits_modes_and_clocks_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = stand_in(tmp_path, f'echo "{SETTINGS}"', monkeypatch)
    assert gpu_facts.settings("abc") == {
        "gpu": "power limit 700.00 W, highest clock 1980 MHz, highest memory clock 2619 MHz, compute mode Default, ECC Enabled"
    }
    assert "--query-gpu=power.limit,clocks.max.sm,clocks.max.memory,compute_mode," in called.read_text()
    assert called.read_text().endswith("--id=GPU-abc\n")

    stand_in(tmp_path, 'echo "1755 MHz, 2619 MHz, 689.40 W, 61"', monkeypatch)
    after = "clock 1755 MHz, memory clock 2619 MHz, power 689.40 W, Celsius 61"
    assert gpu_facts.state("abc") == {"gpu_after_training": after}


@pytest.mark.parametrize("script", ["exit 9", "echo '[N/A], [N/A], [N/A], [N/A]'"])
def test_a_program_that_knows_nothing_leaves_no_entry(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, script, monkeypatch)
    assert gpu_facts.state("abc") == {}


def test_without_the_program_there_is_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_facts.settings("abc") == {}


def test_memory_is_that_of_visible_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = stand_in(tmp_path, "printf '0, GPU-aa, 81559\\n1, GPU-ab, 40960\\n'", monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_facts.memories_bytes(1.0) == [81559 * 2**20, 40960 * 2**20]
    assert "--format=csv,noheader,nounits" in called.read_text()

    for visible, expected in (("1", [40960]), ("GPU-ab,0", [40960, 81559]), ("", []), ("MIG-1", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpu_facts.memories_bytes(1.0) == [size * 2**20 for size in expected], visible


def test_without_the_program_memory_is_that_of_the_drivers_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu_facts, "_DRIVERS_GPUS", tmp_path / "gpus")
    assert gpu_facts.memories_bytes(5.0) == []

    for number in range(2):
        (tmp_path / "gpus" / str(number)).mkdir(parents=True)
    assert gpu_facts.memories_bytes(5.0) == [5.0, 5.0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpu_facts.memories_bytes(5.0) == [5.0]
