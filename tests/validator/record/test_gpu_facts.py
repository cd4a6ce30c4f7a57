"""GPUs have identities and versions, and what nvidia-smi says of them is recorded; nothing where it says nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

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


@pytest.mark.parametrize(
    ("properties", "identifier"),
    [
        ({"uuid": "abc"}, "abc"),
        ({"pci_domain_id": 0, "pci_bus_id": 0x1B, "pci_device_id": 0}, "0000:1b:00"),
        ({}, "//3/1"),
    ],
)
def test_gpus_have_identifiers_also_in_builds_without_theirs(
    properties: dict[str, object], identifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in gpu_facts._VISIBLE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**properties))

    assert gpu_facts.uuid_of(torch.device("cuda", 1)) == identifier


def test_builds_for_amds_gpus_state_versions_of_hip_and_rccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "version"
    module.write_text("6.12.12\n")
    monkeypatch.setattr(gpu_facts, "_AMD", module)
    monkeypatch.setattr(torch.version, "hip", "6.4.43483")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 22, 3))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-"))

    assert gpu_facts.software() == {"hip": "6.4.43483", "driver": "6.12.12", "rccl": "2.22.3"}
    assert gpu_facts.architecture_of(torch.device("cuda", 0)) == "gfx942"


def test_builds_for_nvidias_gpus_state_versions_of_cuda_and_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "version"
    module.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30\n")
    monkeypatch.setattr(gpu_facts, "_NVIDIA", module)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))

    assert gpu_facts.software() == {"cuda": "12.8", "driver": "570.133.20", "nccl": "2.27.5"}
    assert gpu_facts.architecture_of(torch.device("cuda", 0)) == ""


@pytest.mark.parametrize(
    ("found", "note"), [("xpu", " (xpu devices are not supported)"), ("cuda", ""), ("mps", ""), (None, "")]
)
def test_devices_on_which_ranks_do_not_train_are_named(found: str | None, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device(found) if found else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: device)

    assert gpu_facts.unused() == note


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
