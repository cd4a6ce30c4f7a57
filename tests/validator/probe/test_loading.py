"""Batches are timed as training makes them, from random data and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from scaleproof.simulator.model import Gpt, Mlp
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.probe import loading
from scaleproof.validator.probe.points import FILES_DECODED, FILES_READ, Point
from tests.validator.probe.onranks import least_s, probed


@pytest.mark.parametrize("kind", ["gpt", "mlp"])
def test_batches_are_timed_with_their_samples(kind: str) -> None:
    model = Gpt(layers=1, hidden=8, heads=2, vocabulary=64, sequence=64)
    other = Mlp(layers=2, inputs=512, hidden=4, outputs=2)
    points = probed(loading.loading, 2, model if kind == "gpt" else other, (2, 2048), None, 1.0)
    assert {(p.what, p.unit) for p in points} == {(f"{kind}, random", "samples")}
    assert least_s(points, f"{kind}, random", 2048) > least_s(points, f"{kind}, random", 2)


def test_tokens_of_a_file_are_read(tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_bytes(bytes(range(256)) * 40)
    model = Gpt(layers=1, hidden=8, heads=2, vocabulary=64, sequence=64)
    (point,) = probed(loading.loading, 1, model, (8,), text, 0.1)
    assert point.what == "gpt, from words.txt"


def test_a_folder_of_images_is_read_and_decoded(tmp_path: Path) -> None:
    for number in range(40):
        Image.effect_noise((64, 64 + number), 50).save(tmp_path / f"{number}.jpeg")
    (tmp_path / ".hidden").write_bytes(b"0" * 1000)
    read, decoded = probed(loading.files, 1, tmp_path, 0.3)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.jpeg"))[:32]]
    assert (read.what, read.size, read.unit) == (FILES_READ, sum(sizes), "bytes")
    assert read.numbers["file_bytes"] == pytest.approx(sum(sizes) / 32)
    assert (decoded.what, decoded.size, decoded.unit) == (FILES_DECODED, 32, "samples")


def test_files_that_are_no_images_are_read_only(tmp_path: Path) -> None:
    (tmp_path / "shard.tar").write_bytes(bytes(100_000))
    read, decoded = (Point.of(plain) for plain in run_on_ranks(loading.files, 1, tmp_path, 0.05)[0])
    assert (read.size, read.numbers["file_bytes"]) == (100_000, 100_000)
    assert decoded.stopped.startswith("skipped: cannot identify image file")
