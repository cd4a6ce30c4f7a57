"""Fits of a device: layers of a core with known numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from scaleproof.simulator.cluster.device.device import Device, MeasuredLayer
from scaleproof.simulator.cluster.device.kernels.cpu_core import SerialCosts, backward_work, forward_work
from scaleproof.simulator.common.units import COMPUTE_RATE
from scaleproof.simulator.model import Gpt, Llama, Mlp
from scaleproof.validator.calibration.fit.device import device_section, measured_layers, useful_cores
from scaleproof.validator.probe.compute import REFERENCE
from scaleproof.validator.probe.points import Point

FLOPS, MEMORY_BPS, LAUNCH_S = 60e9, 10e9, 20e-6
CORE = SerialCosts(
    backward_calls=2.0,
    memory_calls=1.5,
    memory_backward_calls=1.0,
    attention_calls=4.0,
    packed=1.0,
    norm=2.0,
    rms_norm=6.0,
    rms_norm_backward=12.0,
    rotary=8.0,
    gated=4.0,
    gelu=3.0,
    loss=2.0,
    score=3.0,
)
EACH_S = CORE.each_s(LAUNCH_S, 0.8 * FLOPS, 0.5 * FLOPS, 0.4 * FLOPS, 4 / MEMORY_BPS)
NAMED = Mlp(layers=4, inputs=64, hidden=512, outputs=32)
OTHERS = (
    Gpt(layers=1, hidden=64, heads=2, vocabulary=256, sequence=128),
    Gpt(layers=1, hidden=192, heads=4, vocabulary=512, sequence=64),
    Gpt(layers=1, hidden=384, heads=6, vocabulary=256, sequence=128),
    Mlp(layers=3, inputs=128, hidden=256, outputs=64),
    Mlp(layers=3, inputs=256, hidden=2048, outputs=512),
    Llama(layers=1, hidden=64, heads=4, key_heads=2, feedforward=128, vocabulary=256, sequence=128),
    Llama(layers=1, hidden=192, heads=4, feedforward=512, vocabulary=256, sequence=64),
)
UNSEEN = (
    Gpt(layers=3, hidden=256, heads=4, vocabulary=128, sequence=96),
    Mlp(layers=5, inputs=300, hidden=900, outputs=100),
    Llama(layers=2, hidden=128, heads=8, feedforward=320, vocabulary=128, sequence=64),
)


def times(median_s: float, noise: float, seed: int) -> tuple[float, ...]:
    drawn = np.random.default_rng(seed).standard_normal(9)
    return tuple((median_s * np.exp(noise * drawn)).tolist())


def layer_points(
    models: Sequence[Gpt | Llama | Mlp],
    samples: Sequence[int],
    noise: float,
    group: str = "",
    ranks: int = 1,
    slower: float = 1.0,
) -> list[Point]:
    found: dict[tuple[str, int], Point] = {}
    for model in models:
        for layer in model.build_layers():
            for count in samples:
                for way, work in (("forward", forward_work), ("backward", backward_work)):
                    amounts = work(layer.operators, count)
                    seconds = times(slower * sum(EACH_S[kind] * n for kind, n in amounts.items()), noise, len(found))
                    what, numbers = f"{layer.signature} {way}", amounts | {"ranks": ranks}
                    found[what, count] = Point(
                        "layer", what, "rank 0", (0,), group, count, "samples", seconds, "narrow", 1.0, numbers
                    )
    return list(found.values())


def made(noise: float = 0.0) -> list[Point]:
    """Points of all probes."""
    points = [
        Point("matmul", f"fp32 {side}", "rank 0", (0,), "", 2.0 * side**3, "flops", (2.0 * side**3 / FLOPS,), "narrow")
        for side in (64, 512)
    ]
    points.append(Point("memory", "add", "rank 0", (0,), "", 3e6, "bytes", (3e6 / MEMORY_BPS,), "narrow"))
    points += [
        Point("optimizer", name, "rank 0", (0,), "", size, "parameters", (1e-4 + size * 2e-9,), "narrow")
        for name in ("sgd", "adam") for size in (1e4, 1e5, 1e6, 4e6)
    ]  # fmt: skip
    return [*points, *layer_points([NAMED], (1, 8, 32), noise), *layer_points(OTHERS, (1, 8), noise, REFERENCE)]


def fitted(points: Sequence[Point]) -> Device:
    """The fitted device without its measured layers."""
    fields = device_section(points, "fp32").fields
    return Device.model_validate({**{name: value for name, value in fields.items() if name != "cores"}, "measured_layers": []})


@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.02), (0.05, 0.06)])
def test_untimed_layers_are_predicted_within_the_bound(noise: float, within: float) -> None:
    device = fitted(made(noise))
    for model in UNSEEN:
        for samples in (2, 12):
            layers = model.build_layers()
            predicted_s = sum(sum(device.layer_s(layer, samples, "fp32")) for layer in layers)
            work = sum((w(layer.operators, samples) for layer in layers for w in (forward_work, backward_work)), Counter())
            assert predicted_s == pytest.approx(sum(EACH_S[kind] * n for kind, n in work.items()), rel=within)


def test_layers_of_named_models_have_their_measured_times() -> None:
    fields = device_section(made(), "fp32").fields
    signatures = {layer.signature for layer in NAMED.build_layers()}
    assert {entry["signature"] for entry in fields["measured_layers"]} == signatures
    assert {entry["optimizer"] for entry in fields["measured_optimizers"]} == {"sgd", "adam"}
    assert COMPUTE_RATE.parse(fields["peak"]["fp32"]) == pytest.approx(FLOPS, rel=1e-2)
    assert Device.model_validate(fields).optimizer_s(2e6, "adam", "fp32") == pytest.approx(4.1e-3, rel=1e-3)


def test_layers_keep_every_number_of_samples_where_no_line_is_near() -> None:
    def entry(times_s: dict[int, float]) -> MeasuredLayer:
        passes = ("forward", "backward")
        pairs = [(one, n, seconds) for n, seconds in times_s.items() for one in passes]
        timed = [Point("layer", f"a {one}", "rank 0", (0,), "", n, "samples", (s,), "narrow") for one, n, s in pairs]
        return MeasuredLayer.model_validate(measured_layers(timed, "fp32")[0])

    straight = entry({1: 3e-3, 4: 6.1e-3, 8: 9.9e-3, 16: 18e-3})
    assert straight.samples == (1, 16)
    assert straight.passes_s(4)[0] == pytest.approx(6e-3, rel=0.03)
    changing = entry({1: 1e-2, 4: 4e-2, 8: 8e-2, 16: 5e-2})
    assert changing.samples == (1, 4, 8, 16)
    assert changing.passes_s(8)[0] == pytest.approx(8e-2)


def test_an_outlier_point_hardly_changes_the_fit() -> None:
    points = made(0.01)
    spoilt = [replace(one, seconds=tuple(9 * s for s in one.seconds)) if n % 17 == 16 else one for n, one in enumerate(points)]
    device, other = fitted(points), fitted(spoilt)
    for layer in UNSEEN[0].build_layers():
        assert other.layer_s(layer, 4, "fp32") == pytest.approx(device.layer_s(layer, 4, "fp32"), rel=0.1)


def test_intervals_contain_held_out_layers_and_widen_with_noise() -> None:
    calm, noisy = (device_section(made(noise), "fp32").intervals["device"] for noise in (0.01, 0.3))
    low, high = (float(calm[end].removesuffix("%")) for end in ("low", "high"))
    assert 80 < low < 100 < high < 125
    assert float(noisy["high"].removesuffix("%")) > high
    optimizer = device_section(made(), "fp32").intervals["optimizer"]
    assert (optimizer["low"], optimizer["high"]) == ("100.0 %", "100.0 %")


def test_useful_cores_follow_from_concurrent_ranks() -> None:
    together = [p for rank in range(4) for p in layer_points([NAMED], (1, 8), 0.0, ranks=4, slower=2.0)]
    assert useful_cores([*made(), *together]) == pytest.approx(2)
    assert device_section([*made(), *together], "fp32").fields  # see below
    faster = layer_points([NAMED], (1, 8), 0.0, ranks=4, slower=0.5)
    assert useful_cores([*made(), *faster]) == 4
    assert useful_cores(made()) is None


@pytest.mark.parametrize("probe", ["layer", "matmul", "memory"])
def test_a_device_needs_layers_products_or_memory_probes(probe: str) -> None:
    assert device_section([point for point in made() if point.probe != probe], "fp32").fields == {}
