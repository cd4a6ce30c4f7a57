"""The flag --memory of predict: what the caching allocator reserves, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scaleproof
from tests.conftest import SMALL


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert scaleproof.main(["predict", *words]) in (0, 3)
    return capsys.readouterr().out


def test_few_lines_say_what_is_reserved_and_when(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "llama-2-7b-zero-bubble-a100", "--memory")
    lines = text[text.index("\n  allocator") :].strip().split("\n")
    assert 4 <= len(lines) <= 8
    shown = " ".join(line.strip() for line in lines)
    for word in (
        "stage 3: ",
        "allocated",
        "reserved (fragmentation",
        "to spare)",
        "peak in the backward pass",
        "expandable segments",
    ):
        assert word in shown


def test_a_need_above_the_capacity_is_shown_with_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "gpt3-175b-hybrid-selene", "--memory")
    assert text.count("too little)") == 2


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(printed(capsys, "megatron-175b-3d-selene", "--memory", "--json"))["allocator"]
    assert set(data) == {"fixed_segments", "expandable_segments"}
    for use in data.values():
        assert use["reserved_bytes"] == use["allocated_bytes"] + use["fragmentation_bytes"]
        assert use["spare_bytes"] == use["capacity_bytes"] - use["total_bytes"]
        assert set(use["peak"]) == {"phase", "stage", "chunk", "microbatch", "layer"}
    assert "allocator" not in json.loads(printed(capsys, "megatron-175b-3d-selene", "--json"))


def test_other_devices_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    assert scaleproof.main(["predict", str(path), "--memory"]) == 2
    assert "small is described without kernels, from which GPUs are recognised" in capsys.readouterr().err
