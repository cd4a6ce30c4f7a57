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


def test_the_load_is_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = stand_in(tmp_path, 'echo "1755 MHz, 689.40 W, 61"', monkeypatch)
    assert gpu_facts.load("abc") == {"clock_MHz": 1755, "power_W": 689.4, "temperature_C": 61}
    assert "--query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader" in called.read_text()
    stand_in(tmp_path, 'echo "1755 MHz, [N/A], 61"', monkeypatch)
    assert gpu_facts.load("abc") == {"clock_MHz": 1755, "temperature_C": 61}


@pytest.mark.parametrize("script", ["exit 9", "echo '[N/A], [N/A], [N/A], [N/A]'"])
def test_a_program_that_knows_nothing_leaves_no_entry(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, script, monkeypatch)
    assert gpu_facts.state("abc") == {}
    assert gpu_facts.load("abc") == {}


def test_without_the_program_there_is_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_facts.settings("abc") == {}
