"""Fit of a device to a table of measured kernels, with errors on shapes that were left out of the fit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import counted
from scaleproof.validator.kernels.devices import precision_of
from scaleproof.validator.kernels.rates import LogError, fitted, predicted_s, with_error
from scaleproof.validator.kernels.shapes import Floats, Mask
from scaleproof.validator.kernels.table import BACKWARD, SHAPES, KernelTable

# Number of shapes below which a kind of kernel is not fitted.
LEAST_ROWS: Final = 8
_ENDS: Final = (5.0, 95.0)


@dataclass(frozen=True)
class KindFit:
    """Errors of predictions for one kind and precision, on shapes that were left out of the fit.

    median, p95: of absolute relative errors of the time. coverage: share of times in the 90 % intervals. implementation: of
    attention; empty for other kinds.
    """

    kind: str
    precision: str
    rows: int
    median: float
    p95: float
    error: LogError
    coverage: float
    implementation: str = ""

    @property
    def name(self) -> str:
        """Kind, precision and implementation, such as "gemm bf16"."""
        return _name(self.kind, self.precision, self.implementation)

    def plain(self) -> dict[str, Any]:
        """The fit as data for JSON."""
        return {**vars(self), "error": list(self.error)}


@dataclass(frozen=True)
class FittedDevice:
    """A device that was fitted to a table. notes: what was not fitted, and why, a line each."""

    device: Device
    fits: tuple[KindFit, ...]
    notes: tuple[str, ...]


def fit_device(nominal: Device, table: KernelTable) -> FittedDevice:
    """Fits a device to the kernels of one GPU. nominal: the device with the facts of its data sheet.

    Raises InputError if no kind of kernel has enough shapes.
    """
    rows, repeated = table.merged()
    device, fits, notes = nominal, [], []
    if repeated:
        repeat = "repeats" if repeated == 1 else "repeat"
        notes.append(f"{counted(repeated, 'row')} {repeat} a shape; each shape counts once, with the median of its times")
    for kind, precision, own in kinds(rows):
        implementation = str(own.implementation[0])
        name = _name(kind, precision, implementation)
        if reason := _reason(nominal, precision):
            notes.append(f"{name}: not fitted, since {reason}")
            continue
        # rates of the backward pass are fitted after those of the forward pass
        forward = len(forward_only(own))
        if forward < LEAST_ROWS:
            few = f"{counted(forward, 'shape')} {'is' if forward == 1 else 'are'} fewer than {LEAST_ROWS}"
            notes.append(f"{name}: not fitted, since {few}")
            continue
        one = cross_validated(device, kind, precision, own)
        fits.append(one)
        device = with_error(fitted(device, kind, precision, own), kind, precision, one.error, implementation)
    if not fits:
        raise InputError("\n".join([f"{table.path}: no kind of kernel could be fitted; give more shapes", *notes]))
    return FittedDevice(device, tuple(fits), tuple(notes))


def _reason(nominal: Device, precision: str) -> str:
    """Why kernels of a precision cannot be fitted; empty if they can."""
    known = precision_of(nominal, precision)
    if known is None:
        return f"{nominal.name} has no peak rate in {precision}"
    return f"{precision} has no rates of its own" if known == "fp64" else ""


def kinds(table: KernelTable) -> Iterator[tuple[str, str, KernelTable]]:
    """Rows of each kind and precision, and of each implementation of attention; 16 bits first, from which others may take
    parameters."""
    for kind in SHAPES:
        for precision in sorted(table.precisions(kind), key=lambda name: (name not in ("bf16", "fp16"), name)):
            rows = table.subset(table.rows(kind, precision))
            for implementation in dict.fromkeys(rows.implementation.tolist()):
                yield kind, precision, rows.subset(rows.implementation == implementation)


def forward_only(rows: KernelTable) -> KernelTable:
    """The rows without backward passes of attention."""
    return rows.subset(rows.direction != BACKWARD)


def _name(kind: str, precision: str, implementation: str) -> str:
    return " ".join(filter(None, (kind, precision, implementation)))


def cross_validated(nominal: Device, kind: str, precision: str, rows: KernelTable) -> KindFit:
    """Errors on each half of the shapes, predicted by a fit to the other half. nominal: the device before the fit."""
    residuals = left_out(nominal, kind, precision, rows)
    half = halves(rows)
    # each half of the times is checked against the interval that the other half gives
    inside = [_inside(residuals[part], interval(residuals[~part])) for part in (half, ~half)]
    errors = np.abs(np.expm1(-residuals))
    median, p95 = (float(np.percentile(errors, percent)) for percent in (50, 95))
    coverage, implementation = float(np.concatenate(inside).mean()), str(rows.implementation[0])
    return KindFit(kind, precision, len(rows), median, p95, interval(residuals), coverage, implementation)


def left_out(nominal: Device, kind: str, precision: str, rows: KernelTable) -> Floats:
    """Logarithms of measured over predicted time, each predicted by a fit to the half of the shapes that it is not in."""
    half = halves(rows)
    result = np.empty(len(rows))
    for part in (half, ~half):
        device = fitted(nominal, kind, precision, rows.subset(~part))
        own = rows.subset(part)
        result[part] = np.log(own.measured_s / predicted_s(device, kind, precision, own))
    return result


def halves(rows: KernelTable) -> Mask:
    """Whether each row is in the first half of the shapes: every second one of a direction in the order of a hash."""
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in rows.shape_texts()]
    order = np.lexsort((np.array(hashes), rows.direction))
    result = np.zeros(len(rows), dtype=np.bool_)
    result[order[::2]] = True
    return result


def interval(residuals: Floats) -> LogError:
    """The 5th and the 95th percentile of logarithms of measured over predicted time."""
    low, high = np.percentile(residuals, _ENDS).tolist()
    return LogError(low, high)


def _inside(residuals: Floats, error: LogError) -> Mask:
    return (residuals >= error.low) & (residuals <= error.high)
