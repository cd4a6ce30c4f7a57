"""What figures of a device show: predicted rates by size next to measured ones, and measured rates by intensity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from scaleproof.simulator.analysis.device_rates import (
    HEADS,
    WIDTH,
    IntensitySeries,
    RatePoint,
    RateSeries,
    implementations,
    running_only,
    sixteen_bits,
)
from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.attention import BACKWARD_PRODUCTS
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.kernels import attention, products
from scaleproof.validator.kernels.attention import AttentionShapes
from scaleproof.validator.kernels.devices import device_of
from scaleproof.validator.kernels.fit import forward_only
from scaleproof.validator.kernels.plausibility import check_rates, flops
from scaleproof.validator.kernels.products import ProductShapes
from scaleproof.validator.kernels.rates import log_error
from scaleproof.validator.kernels.shapes import Floats, Mask
from scaleproof.validator.kernels.table import ATTENTION, BACKWARD, PRODUCT, KernelTable, check, read, shipped

# Rows of products and lengths of sequences at which rates are drawn.
_ROWS: Final = tuple(dict.fromkeys(int(128 * round(rows / 128)) for rows in np.geomspace(256, 32768, 43)))
_LENGTHS: Final = tuple(dict.fromkeys(int(128 * round(length / 128)) for length in np.geomspace(512, 16384, 31)))
# Columns and inner dimensions of products that are drawn if none are measured.
_WEIGHTS: Final = ((1024, 1024), (4096, 4096), (16384, 16384))
_MOST_LINES: Final = 3
_MOST_POINTS: Final = 150
# Columns that identify attention but for the length of its sequences.
_COLUMNS: Final = ("head_dim", "batch", "heads", "kv_heads")
# Precisions with two bytes an element, whose products take the same time.
_SIXTEEN_BITS: Final = ("bf16", "fp16")


def measured_kernels(device: Device, path: Path | None) -> KernelTable:
    """Rows of a table, the one that ships if none is given, that were measured on a device's GPU.

    Raises InputError if a given table has wrong rows, or none of this GPU.
    """
    table = read(path or shipped(), device.name)
    own = np.array([gpu == device.name or ((known := device_of(gpu)) is not None and known.name == device.name)
                    for gpu in table.gpus], dtype=np.bool_)  # fmt: skip
    names = [gpu for gpu, is_own in zip(table.gpus, own.tolist(), strict=True) if is_own]
    if path is not None:
        check(table)
        if not names:
            raise InputError(f"{path}: kernels of {', '.join(table.gpus)}, but none of {device.name}; name the device's GPU")
        check_rates(table, dict.fromkeys(names, device))
    return table.subset(table.usable & np.isin(table.gpu, names))


def product_series(device: Device, measured: KernelTable) -> list[RateSeries]:
    """Rates of products in 16 bits by rows, for the columns and inner dimensions of which most rows are measured."""
    precision = sixteen_bits(device)
    if precision is None or device.kernels is None:
        return []
    rows, series = _in_16_bits(measured, PRODUCT), []
    sizes = zip(rows.sizes["n"].tolist(), rows.sizes["k"].tolist(), strict=True)
    m = np.array(_ROWS, dtype=np.float64)
    for n, k in _spread(Counter((int(n), int(k)) for n, k in sizes)) or _WEIGHTS:
        columns, inner = np.full_like(m, n), np.full_like(m, k)
        times_s = products.predicted_s(device, precision, ProductShapes(m, columns, inner, np.ones_like(m)))
        found = _points(rows, (rows.sizes["n"] == n) & (rows.sizes["k"] == k), "m")
        work = 2 * m * columns * inner
        series.append(_series(device, PRODUCT, precision, f"n = {n:,}, k = {k:,}", (m, work / times_s), found))
    return series


def _spread(counts: Counter[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """The smallest, the middle and the largest weights among those with the most measurements."""
    most = max(counts.values(), default=0)
    often = sorted((weights for weights, count in counts.items() if count == most), key=lambda one: (one[0] * one[1], one))
    return list(dict.fromkeys(often[index] for index in (0, len(often) // 2, -1))) if often else []


def attention_series(device: Device, measured: KernelTable) -> list[RateSeries]:
    """Rates of causal attention in 16 bits by tokens of a sequence, for the widths of heads with most measurements; of the
    implementation with most measurements."""
    precision = sixteen_bits(device)
    if precision is None or device.kernels is None:
        return []
    rows, series = _in_16_bits(forward_only(measured), ATTENTION), []
    [(name, _)] = Counter(rows.implementation.tolist()).most_common(1) or [(attention.IMPLEMENTATION, 0)]
    rows = rows.subset(rows.implementation == name)
    if name in implementations(device.kernels):
        device = running_only(device, name)
    columns = [rows.sizes[name].astype(np.int64).tolist() for name in _COLUMNS]
    counts = Counter(zip(*columns, strict=True))
    widths = [width for width, _ in Counter(columns[0]).most_common(_MOST_LINES)]
    most = (max((one for one in counts if one[0] == width), key=lambda one: (counts[one], one)) for width in sorted(widths))
    for width, batch, heads, key_heads in (*most,) or ((WIDTH, 1, HEADS, HEADS),):
        shape = (width, batch, heads, key_heads)
        mask = np.all([rows.sizes[name] == size for name, size in zip(_COLUMNS, shape, strict=True)], axis=0)
        tokens = np.array(_LENGTHS, dtype=np.float64)
        fixed = {name: np.full_like(tokens, size) for name, size in zip(_COLUMNS, shape, strict=True)}
        forward = np.zeros(len(tokens), dtype=np.bool_)
        shapes = AttentionShapes(seq=tokens, **fixed, backward=forward, measured_s=np.ones_like(tokens))
        rates_flops = 2 * batch * heads * tokens**2 * width / attention.predicted_s(device, precision, shapes, name)
        label = f"{batch} × {heads} heads of {width}, {key_heads} of keys"
        series.append(_series(device, ATTENTION, precision, label, (tokens, rates_flops), _points(rows, mask, "seq"), name))
    return series


def _series(
    device: Device, kind: str, precision: Precision, name: str, line: tuple[Floats, Floats], measured: Sequence[RatePoint],
    implementation: str = "",
) -> RateSeries:  # fmt: skip
    """Sizes and rates of a line with its 90 % interval. line: sizes and rates in FLOP/s. implementation: of attention."""
    sizes, rates_flops = line
    error = log_error(device, kind, precision, implementation)
    low, high = rates_flops * np.exp(-error.high), rates_flops * np.exp(-error.low)
    columns = {"sizes": sizes, "rates_flops": rates_flops, "low_flops": low, "high_flops": high}
    lists: dict[str, Any] = {column: tuple(values.tolist()) for column, values in columns.items()}
    return RateSeries(name, precision, **lists, measured=tuple(measured))


def roofline_series(device: Device, measured: KernelTable) -> list[IntensitySeries]:
    """Measured rates of products in each precision, and of attention, by FLOPs per byte that they read and write at least."""
    found = []
    for kind, what in ((PRODUCT, "matrix products"), (ATTENTION, "attention")):
        for precision in measured.precisions(kind):
            rows = measured.subset(measured.rows(kind, precision))
            work = flops(rows)
            pairs = np.stack([work / _moved_bytes(rows, kind), work / rows.measured_s], axis=1)
            found.append(IntensitySeries(f"{what}, {precision}", tuple(_thinned(pairs))))
    return found


def _moved_bytes(rows: KernelTable, kind: str) -> Floats:
    """Bytes that each kernel reads and writes at least, with 16 bits an element."""
    size = rows.sizes
    if kind == PRODUCT:
        return 2 * (size["m"] * size["k"] + size["k"] * size["n"] + size["m"] * size["n"])
    forward = 2 * size["batch"] * size["seq"] * size["head_dim"] * 2 * (size["heads"] + size["kv_heads"])
    return forward * np.where(rows.direction == BACKWARD, BACKWARD_PRODUCTS, 1.0)


def _in_16_bits(table: KernelTable, kind: str) -> KernelTable:
    return table.subset(table.rows(kind) & np.isin(table.precision, _SIXTEEN_BITS))


def _points(rows: KernelTable, mask: Mask, size: str) -> Sequence[RatePoint]:
    """Sizes and measured rates of some rows, in order of size."""
    own = rows.subset(mask)
    pairs = zip(own.sizes[size].tolist(), (flops(own) / own.measured_s).tolist(), strict=True)
    return tuple(sorted(pairs))


def _thinned(pairs: Floats) -> Iterator[RatePoint]:
    """Every n-th pair, so that at most `_MOST_POINTS` are left."""
    yield from pairs[:: max(1, -(-len(pairs) // _MOST_POINTS))].tolist()
