"""Computation is timed with its amount of work, on all ranks that call the probe."""

from __future__ import annotations

import pytest

from scaleproof.simulator.cluster.device.kernels.cpu_core import backward_work, forward_work
from scaleproof.simulator.model import Gpt, Mlp
from scaleproof.simulator.scenario.read import load_model
from scaleproof.validator.probe import compute
from scaleproof.validator.probe.adaptive import Samples
from scaleproof.validator.probe.points import Point
from tests.validator.probe.onranks import least_s, probed

GPT = Gpt(layers=2, hidden=16, heads=2, vocabulary=32, sequence=8)
MLP = Mlp(layers=3, inputs=4, hidden=8, outputs=3)
NORMED = "python:tests.validator.train.models.users:normed_batches"


def test_attention_is_timed_in_both_passes() -> None:
    shapes = [(1, 64, 4, 4, 32), (2, 256, 4, 2, 64)]
    points = probed(compute.attentions, 1, shapes, "fp32", 1.0)
    forward, backward = points[::2], points[1::2]
    assert [point.what for point in forward] == ["fp32 1x64 4/4x32", "fp32 2x256 4/2x64"]
    assert [point.what for point in backward] == [f"{point.what} backward" for point in forward]
    assert [point.size for point in forward] == [2.0 * 4 * 64**2 * 32, 2.0 * 2 * 4 * 256**2 * 64]
    assert [point.size for point in backward] == [2.5 * point.size for point in forward]
    assert [point.numbers for point in backward] == [point.numbers for point in forward]
    # the machine's other work does not change which of them is longer
    assert backward[1].median_s > forward[1].median_s / 4


def test_a_backward_pass_that_takes_no_time_is_left_out_with_the_reason(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "repeat", lambda *_: Samples((2e-3, 1e-3, 1e-3), "narrow", 1.0, 1e-3, 1e-3))
    monkeypatch.setattr(compute, "collected", lambda points: [point.plain() for point in points])
    forward, backward = map(Point.of, compute.attentions([(1, 64, 4, 4, 32)], "fp32", 0.1))
    assert (forward.median_s, backward.seconds) == (1e-3, ())
    assert backward.stopped == "skipped: both passes take no longer than the forward pass"


def test_memory_bandwidth_counts_bytes_read_and_written() -> None:
    points = probed(compute.memory, 1, [2**14, 2**22], "fp32", 1.0)
    assert {(point.what, point.size) for point in points} == {
        (what, passes * size) for size in (2**14, 2**22) for what, passes in
        (("copy", 2), ("add", 3), ("gelu", 2), ("softmax", 2), ("norm", 2))
    }  # fmt: skip
    assert least_s(points, "copy", 2 * 2**22) > least_s(points, "copy", 2 * 2**14)


def test_operator_calls_are_timed_with_and_without_autograd() -> None:
    points = probed(compute.launches, 1, 0.1)
    assert {point.what for point in points} == {"kernel", "forward", "backward"}
    assert least_s(points, "forward", 1) > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_layers_are_timed_in_both_passes_with_their_work(ranks: int) -> None:
    points = probed(compute.layers, ranks, [GPT, MLP], "fp32", [2, 3], 0.2, compute.REFERENCE)
    layers = {layer.signature: layer for model in (GPT, MLP) for layer in model.build_layers()}
    assert {(point.where, point.what, point.size) for point in points} == {
        (f"rank {rank}", f"{signature} {way}", count)
        for rank in range(ranks) for signature in layers for way in ("forward", "backward") for count in (2, 3)
    }  # fmt: skip
    for point in points:
        signature, _, way = point.what.rpartition(" ")
        work = (forward_work if way == "forward" else backward_work)(layers[signature].operators, point.size)
        assert point.numbers == pytest.approx(work | {"ranks": ranks})
        assert point.group == compute.REFERENCE


def test_a_batch_norm_of_one_value_is_avoided() -> None:
    """Of one sample a norm has one value of each channel."""
    points = probed(compute.layers, 1, [load_model(NORMED)], "fp32", [1, 3], 0.1)

    assert {point.size for point in points} == {2, 3}


def test_optimizers_are_timed_over_a_model_and_over_its_first_half() -> None:
    points = probed(compute.optimizers, 1, [MLP], "fp32", ["sgd", "adam"], 0.1)
    first, whole = MLP.build_layers()[0].parameters, MLP.parameters()
    assert [(point.what, point.size) for point in points] == [
        ("sgd", first), ("adam", first), ("sgd", whole), ("adam", whole),
    ]  # fmt: skip
    assert [point.numbers["tensors"] for point in points] == [2, 2, 6, 6]


def test_lookups_are_timed_in_both_passes_with_their_work() -> None:
    size = compute.LookupSize(tables=2, rows=100, width=8, pooling=3, samples=5)
    forward, backward = probed(compute.lookups, 1, [size], "fp32", 0.1)
    assert (forward.what, backward.what) == ("lookups(2x100x8,3) forward", "lookups(2x100x8,3) backward")
    assert forward.numbers["lookup"] == backward.numbers["row_update"] == 2 * 5 * 3 * 8
    assert min(*forward.seconds, *backward.seconds) > 0
