"""Fit of a rank's device to points of its kernels, layers and optimizer steps.

Layers of the given models are stored as measured. For all other layers, the coefficients of
simulator.cluster.device.kernels.cpu_core are fitted by least squares of relative errors to every measured layer: of those
models, and of reference models from narrow to wide, of images, and of a recommender with its lookups. The error for a layer
that the fit has not seen follows from leaving out each kind of layer in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
from scaleproof.simulator.cluster.device.kernels import cpu_core
from scaleproof.simulator.model import T5, Dlrm, Gpt, Llama, Mlp, ModelSpec, Traced
from scaleproof.simulator.model.recommender.placement import EmbeddingTable
from scaleproof.validator.calibration.cluster_file.section import Section, interval, seconds_text
from scaleproof.validator.calibration.fit.shapes import NOISE
from scaleproof.validator.estimation.lines import held_out_interval, straight_line
from scaleproof.validator.estimation.posterior import Array, Mask, Prior, fit_model, soft_l1, weighted
from scaleproof.validator.probe.points import Point, count, timed
from scaleproof.validator.record.provenance import cpu_model, memory_bytes

_REFERENCES: Final = (
    Gpt(layers=1, hidden=64, heads=2, vocabulary=256, sequence=128),
    Gpt(layers=1, hidden=192, heads=4, vocabulary=512, sequence=64),
    Gpt(layers=1, hidden=384, heads=6, vocabulary=256, sequence=128),
    Llama(layers=1, hidden=64, heads=4, key_heads=2, feedforward=128, vocabulary=256, sequence=128),
    Llama(layers=1, hidden=192, heads=4, feedforward=512, vocabulary=256, sequence=64),
    Gpt(layers=1, hidden=128, heads=4, vocabulary=256, sequence=128, activation="geglu", norm="rms", positions="rotary"),
    T5(layers=1, hidden=96, heads=4, feedforward=384, vocabulary=256, sequence=128, dropout=False),
    Mlp(layers=3, inputs=128, hidden=256, outputs=64),
    Mlp(layers=3, inputs=512, hidden=768, outputs=256),
    Mlp(layers=3, inputs=256, hidden=2048, outputs=512),
)
# Convolutions, group norms and attention of other kinds, with few and with more samples.
_IMAGES: Final = tuple(
    Traced(source=f"python:scaleproof.validator.train.models.vision:{model}")
    for model in (
        "vit(hidden=64,layers=1,heads=4)", "unet(channels=12,levels=1)", "unet(channels=24,levels=1,depthwise=False)",
    )
)  # fmt: skip
_RECOMMENDER: Final = Dlrm(
    tables=(EmbeddingTable(rows=2000, dim=32, pooling=4, count=4),), dense=32, bottom=(128, 32), top=(256, 64, 1)
)
_SAMPLES: Final = (1, 4, 8, 16)
_REFERENCE_SAMPLES: Final = (1, 8)
_IMAGE_SAMPLES: Final = (2, 16)
_RECOMMENDER_SAMPLES: Final = (64, 512)
_OPTIMIZERS: Final = ("sgd", "momentum", "adam")
# Shares of the time of all probes.
_SHARES: Final = {
    "layer": 0.3, "reference": 0.25, "images": 0.11, "recommender": 0.03, "lookup": 0.03, "optimizer": 0.13, "matmul": 0.07,
    "memory": 0.05, "launch": 0.03,
}  # fmt: skip
# Guessed times of kinds of memory traffic over the memory's time for their bytes, as PyTorch 2.13 took on one core of an AMD
# EPYC, 27 November 2026; 1 for the others.
_GUESSED: Final = {
    "norm": 5.0, "rms_norm": 4.0, "rms_norm_backward": 20.0, "rotary": 8.0, "gated": 3.0, "gelu": 4.0, "relu": 2.0,
    "embedding": 5.0, "loss": 5.0, "other": 4.0, "group_norm": 5.0, "silu": 4.0, "lookup": 2.0, "lookup_row": 100.0,
    "row_update": 6.0, "pairs": 10.0, "convolution": 4.0, "score": 4.0,
}  # fmt: skip
# Weight of a guess relative to a point.
_OF_A_GUESS: Final = 0.1
_FEWEST_KINDS: Final = 6
_SMALLEST: Final = 1e-4
# Largest relative distance of a layer's durations from a line over the number of samples.
_STRAIGHT: Final = 0.05


def probe(models: Sequence[ModelSpec], precision: str, budget_s: float) -> list[dict[str, Any]]:
    """Points from which `device_section` makes a section, on every rank. Several ranks only time the models' layers: their
    slowdown relative to one rank gives the number of cores."""
    from scaleproof.validator.launch.rank import here
    from scaleproof.validator.probe import compute, products

    if here().ranks > 1:
        return compute.layers(models, precision, _SAMPLES, budget_s)
    share_s = {name: share * budget_s for name, share in _SHARES.items()}
    return [
        *compute.layers(models, precision, _SAMPLES, share_s["layer"]),
        *compute.layers(_REFERENCES, precision, _REFERENCE_SAMPLES, share_s["reference"], compute.REFERENCE),
        *compute.layers(_IMAGES, precision, _IMAGE_SAMPLES, share_s["images"], compute.REFERENCE),
        *compute.layers([_RECOMMENDER], precision, _RECOMMENDER_SAMPLES, share_s["recommender"], compute.REFERENCE),
        *compute.lookups(compute.LOOKUPS, precision, share_s["lookup"], compute.REFERENCE),
        *compute.optimizers([models[0], _REFERENCES[1], _REFERENCES[-1]], precision, _OPTIMIZERS, share_s["optimizer"]),
        *products.products(products.SHAPES, [precision], share_s["matmul"]),
        *compute.memory(compute.SIZES_BYTES, precision, share_s["memory"]),
        *compute.launches(share_s["launch"]),
    ]


def device_section(points: Sequence[Point], precision: str) -> Section:
    """Section `device`. Empty without points of layers, products and memory, with a note if some of these are present."""
    layers = [point for point in timed(points, "layer") if point.numbers["ranks"] == 1]
    products, moved = timed(points, "matmul"), timed(points, "memory", "add")
    if not layers or not products or not moved:
        present = layers or products or moved or timed(points, "optimizer")
        note = "changes nothing of the device on its own; run --probe layer"
        return Section(notes=[f"{present[0].probe}: {note}"] if present else [])
    reached_flops = max(point.size / point.median_s for point in products)
    most = max(moved, key=lambda point: point.size)
    memory_Bps = most.size / most.median_s
    element_s = ELEMENT_BYTES[precision] / memory_Bps
    guessed = _guessed(layers, reached_flops, element_s)
    fitted = _fitted(layers, guessed)
    # if the fit to layers implies more than products reach, that is the peak
    flops = [1 / fitted.get(name, 1 / reached_flops) for name in _RATES]
    peak_flops = max(reached_flops, *flops)
    optimizers = timed(points, "optimizer")
    fields: dict[str, Any] = {
        "name": cpu_model(),
        "peak": {precision: f"{peak_flops / 1e9:.4g} GFLOP/s"},
        "memory": f"{memory_bytes() / 2**30:.4g} GiB",
        "memory_bandwidth": f"{memory_Bps / 1e9:.4g} GB/s",
        "kernels": _kernels(fitted, [max(rate / peak_flops, _SMALLEST) for rate in flops], element_s),
        "measured_layers": measured_layers([point for point in layers if not point.group], precision),
        "measured_optimizers": measured_optimizers(optimizers, precision),
    }
    intervals = {"device": _layer_interval(layers, guessed), "optimizer": _optimizer_interval(optimizers)}
    return Section(fields, {name: ends for name, ends in intervals.items() if ends})


def useful_cores(points: Sequence[Point]) -> float | None:
    """Throughput of concurrent ranks in multiples of one rank's, at most their number; None if no layers were timed
    concurrently."""
    layers = timed(points, "layer")
    alone = {(point.what, point.size): point.median_s for point in layers if point.numbers["ranks"] == 1}
    concurrent = [point for point in layers if point.numbers["ranks"] > 1 and (point.what, point.size) in alone]
    if not concurrent:
        return None
    ranks = max(point.numbers["ranks"] for point in concurrent)
    return min(ranks, ranks * sum(alone[p.what, p.size] for p in concurrent) / sum(p.median_s for p in concurrent))


_RATES: Final = (cpu_core.FLOPS, cpu_core.FLASH_FORWARD_FLOPS, cpu_core.FLASH_BACKWARD_FLOPS)
# FLOPs of convolutions by their field, relative to those of products.
_CONVOLUTIONS: Final = {"convolution_products": cpu_core.CONVOLUTION_FLOPS, "grouped_products": cpu_core.GROUPED_FLOPS}
_WORK: Final = (*cpu_core.EVERY_CALL, *_RATES, *_CONVOLUTIONS.values(), *cpu_core.KINDS)


def _fitted(layers: Sequence[Point], guessed: Mapping[str, float]) -> dict[str, float]:
    """Seconds per unit of each kind of work that occurs in any layer."""
    work = _Work.of(layers, guessed)
    unit_s = np.exp(work.fitted(np.log(work.guess_s)))
    return dict(zip(work.names, unit_s.tolist(), strict=True))


def _guessed(layers: Sequence[Point], flops: float, element_s: float) -> dict[str, float]:
    """Guessed seconds per unit of each kind of work, from products, from memory, and from the layer with the least time per
    call. The guesses count as further points, so that work that hardly occurs in any layer still gets a plausible value."""
    call_s, backward_s = (
        min((point.median_s / point.numbers[name] for point in layers if point.numbers.get(name)), default=flops)
        for name in (cpu_core.CALLS, cpu_core.BACKWARD_CALLS)
    )
    calls = dict.fromkeys(cpu_core.EVERY_CALL, call_s) | {
        cpu_core.BACKWARD_CALLS: backward_s,
        cpu_core.MEMORY_BACKWARD_CALLS: backward_s,
    }
    kinds = {kind: element_s * _GUESSED.get(kind, 1.0) for kind in cpu_core.KINDS}
    return calls | dict.fromkeys((*_RATES, *_CONVOLUTIONS.values()), 1 / flops) | kinds


class _Work(NamedTuple):
    """Work of layers and its time. names: kinds of work. amounts: shape (points, kinds). seconds: of points. guess_s: guessed
    seconds per unit of each kind."""

    names: Sequence[str]
    amounts: Array
    seconds: Array
    guess_s: Array

    @classmethod
    def of(cls, layers: Sequence[Point], guessed: Mapping[str, float]) -> _Work:
        """The kinds of work that occur in any layer."""
        names = [name for name in _WORK if any(point.numbers.get(name) for point in layers)]
        amounts = np.array([[point.numbers.get(name, 0.0) for name in names] for point in layers])
        seconds = np.array([point.median_s for point in layers])
        return cls(names, amounts, seconds, np.array([guessed[name] for name in names]))

    def only(self, mask: Mask) -> _Work:
        """The work of some of the points."""
        return self._replace(amounts=self.amounts[mask], seconds=self.seconds[mask])

    def fitted(self, start: Array) -> Array:
        """Logarithms of seconds per unit of each kind. start: of the search."""
        prior = Prior(np.log(self.guess_s), np.full(len(start), NOISE), weighted(soft_l1, _OF_A_GUESS))
        return fit_model(self.log_times, np.log(self.seconds), start, NOISE, prior=prior).values

    def log_times(self, logs: Array) -> tuple[Array, Array]:
        """Logarithms of the points' times, and the share of each kind of work in them."""
        parts_s = self.amounts * np.exp(logs)
        seconds = parts_s.sum(axis=-1)
        return np.log(seconds), parts_s / seconds[..., None]


def _kernels(fitted: Mapping[str, float], shares: Sequence[float], element_s: float) -> dict[str, Any]:
    """Field `kernels`. shares: of the peak, by _RATES. Work that occurs in no layer is left at the memory's time."""
    launch_s = fitted[cpu_core.CALLS]
    tile, flash_forward, flash_backward = (float(f"{share:.4g}") for share in shares)
    fields = ("backward_calls", "memory_calls", "memory_backward_calls", "attention_calls", "convolution_calls")
    numbers = {
        **{
            field: fitted[name] / launch_s
            for field, name in zip(fields, cpu_core.EVERY_CALL[1:], strict=True)
            if name in fitted
        },
        **{field: fitted[name] / fitted[cpu_core.FLOPS] for field, name in _CONVOLUTIONS.items() if name in fitted},
        **{kind: fitted[kind] / element_s for kind in cpu_core.KINDS if kind in fitted},
    }
    return {
        "generation": "cpu", "processors": 1, "tile_share": tile, "memory_share": 1.0, "launch": seconds_text(launch_s),
        "flash_forward_share": flash_forward, "flash_backward_share": flash_backward,
        "serial": {name: float(f"{value:.4g}") for name, value in numbers.items()},
    }  # fmt: skip


def _layer_interval(layers: Sequence[Point], guessed: Mapping[str, float]) -> dict[str, Any]:
    """Interval of measured over predicted times of layers that the fit has not seen. Both passes of a kind of layer over all
    numbers of samples are one case."""
    kinds = np.array([point.what.rpartition(" ")[0] for point in layers])
    distinct = dict.fromkeys(kinds.tolist())
    if len(distinct) < _FEWEST_KINDS:
        return {}
    work = _Work.of(layers, guessed)
    every = work.fitted(np.log(work.guess_s))
    measured, predicted = [], []
    for kind in distinct:
        own, rest = work.only(kinds == kind), work.only(kinds != kind)
        measured.append(float(own.seconds.sum()))
        predicted.append(float(np.exp(own.log_times(rest.fitted(every))[0]).sum()))
    return interval(held_out_interval(measured, predicted), count(layers))


def measured_layers(layers: Sequence[Point], precision: str) -> list[dict[str, Any]]:
    """One entry per signature: durations by number of samples."""
    entries = []
    for signature in dict.fromkeys(point.what.rpartition(" ")[0] for point in layers):
        samples, forward_s, backward_s = _smoothed(layers, signature)
        passes = {"forward": [*map(seconds_text, forward_s)], "backward": [*map(seconds_text, backward_s)]}
        entries.append({"signature": signature, "precision": precision, "samples": samples, **passes})
    return entries


def _smoothed(layers: Sequence[Point], signature: str) -> tuple[list[int], Sequence[float], Sequence[float]]:
    """Numbers of samples, and forward and backward seconds over them. Where straight lines are near all durations, only their
    ends; else the medians, as libraries change algorithms with the number of samples."""
    by_pass = [sorted(_of_pass(layers, signature, name), key=lambda point: point.size) for name in ("forward", "backward")]
    samples = [round(point.size) for point in by_pass[0]]
    medians = [[point.median_s for point in mine] for mine in by_pass]
    lines = [_line(mine) for mine in by_pass]
    fitted = [[base_s + slope_s * count for count in samples] for base_s, slope_s in lines]
    pairs = zip(chain(*medians), chain(*fitted), strict=True)
    if len(samples) > 2 and all(abs(line_s / median_s - 1) <= _STRAIGHT for median_s, line_s in pairs):
        samples, medians = [samples[0], samples[-1]], [[durations[0], durations[-1]] for durations in fitted]
    forward_s, backward_s = medians
    return samples, forward_s, backward_s


def _of_pass(layers: Sequence[Point], signature: str, name: str) -> Iterator[Point]:
    """Points of one pass, `forward` or `backward`, of a kind of layer."""
    return (point for point in layers if point.what == f"{signature} {name}")


def measured_optimizers(optimizers: Sequence[Point], precision: str) -> list[dict[str, Any]]:
    """One entry per optimizer: a line through the times by number of parameters."""
    entries = []
    for name in dict.fromkeys(point.what for point in optimizers):
        base_s, slope_s = _line([point for point in optimizers if point.what == name])
        line = {"base": seconds_text(base_s), "per_parameter": f"{slope_s * 1e9:.4g} ns"}
        entries.append({"optimizer": name, "precision": precision, **line})
    return entries


def _optimizer_interval(optimizers: Sequence[Point]) -> dict[str, Any]:
    """Interval of measured times of optimizer steps over those of a line through the other points of the same optimizer."""
    measured, predicted = [], []
    for name in dict.fromkeys(point.what for point in optimizers):
        mine = [point for point in optimizers if point.what == name]
        for left, point in enumerate(mine if len(mine) > 2 else []):
            base_s, slope_s = _line(mine[:left] + mine[left + 1 :])
            measured.append(point.median_s)
            predicted.append(base_s + slope_s * point.size)
    return interval(held_out_interval(measured, predicted), count(optimizers)) if measured else {}


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Base and slope of the median seconds by size."""
    return straight_line([point.size for point in points], [point.median_s for point in points])
