"""Batches are timed as training makes them, from random data and from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.model import Gpt, Mlp
from scaleproof.validator.probe import loading
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
