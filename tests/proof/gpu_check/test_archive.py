"""The archive of a GPU check has its results, and nothing else of the folder or of the machine."""

from __future__ import annotations

import shlex
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from scaleproof.proof.gpu_check.archive import pack
from tests.validator.calibration.fit.test_gpu import facts


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with files of a check, and with others."""
    out = tmp_path / "out"
    for name in (
        "results.json", "cluster.yaml", "runs/ddp-2/measured/run.json", "functional/ring-4 (a note)/measured/run.json",
        "device/rates.svg", ".lock", "runs/.run.json.host.1.part", "functional/.lock", "site/numpy/__init__.py", "mine.txt",
        "gpu-check-2x-any-2026-01-01.tar.gz",
    ):  # fmt: skip
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    return out


def machine() -> Any:
    return {"device": facts(devices=2), "provenance": {"driver": "580.1", "nccl": "2.27.5", "torch": "2.13.0"}}


def test_members_are_the_results_in_one_folder(results: Path) -> None:
    path = pack(results, machine(), "2026-11-28")
    name = "gpu-check-2x-nvidia-h200-2026-11-28"
    assert path == results / f"{name}.tar.gz"
    with tarfile.open(path) as archive:
        names = archive.getnames()
        provenance = archive.extractfile(f"{name}/provenance.txt")
        assert provenance is not None
        text = provenance.read().decode()
    assert names == [
        f"{name}/{member}"
        for member in (
            "cluster.yaml", "provenance.txt", "results.json", "device/rates.svg",
            "functional/ring-4 (a note)/measured/run.json", "runs/ddp-2/measured/run.json",
        )
    ]  # fmt: skip
    lines = text.splitlines()
    assert lines[0] == "scaleproof: 0.1.0"
    assert "devices: 2 × NVIDIA H200, 140 GiB each" in lines
    assert "driver: 580.1" in lines
    assert f"command: {shlex.join(sys.orig_argv)}" in text


def test_members_say_nothing_of_users_and_the_same_results_give_the_same_archive(results: Path) -> None:
    first = pack(results, machine(), "2026-11-28").read_bytes()
    assert pack(results, machine(), "2026-11-28").read_bytes() == first
    with tarfile.open(results / "gpu-check-2x-nvidia-h200-2026-11-28.tar.gz") as archive:
        for member in archive:
            assert (member.uid, member.gid, member.uname, member.gname, member.mode) == (0, 0, "", "", 0o644)


def test_an_archive_that_cannot_be_written_leaves_the_earlier_one(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(results, machine(), "2026-11-28")
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "archive")

    monkeypatch.setattr(tarfile.TarFile, "add", fail)
    with pytest.raises(OSError, match="No space left"):
        pack(results, machine(), "2026-11-28")
    assert path.read_bytes() == before


def test_how_gpus_are_connected_is_in_the_archive(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU0 NV18 $@\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    pack(results, machine(), "2026-11-28")
    assert (results / "provenance.txt").read_text().endswith("\nnvidia-smi topo -m\nGPU0 NV18 topo -m\n\n")
