"""How well kernels are predicted to which devices were not fitted: those of the half of the shapes that is left out of the fit,
and those of a GPU that is left out, from its data sheet; and how fast products are timed.

Errors are absolute relative errors of the time. An interval has 90 % of the errors on the other half of the shapes, or on the
other GPUs. Rows are those of scenarios/published/gpu_kernels.csv.gz.

Run: python benchmarks/kernels.py [halves] [gpus] [speed]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.parameters import Speed
from scaleproof.simulator.cluster.device.kernels.products import products_s
from scaleproof.validator.kernels import attention, data_sheet
from scaleproof.validator.kernels.data_sheet import DataSheet
from scaleproof.validator.kernels.devices import device_of, precision_of
from scaleproof.validator.kernels.fit import cross_validated, interval, kinds
from scaleproof.validator.kernels.rates import predicted_s
from scaleproof.validator.kernels.shapes import Floats
from scaleproof.validator.kernels.table import ATTENTION, MIXTURE, PRODUCT, KernelTable, read, shipped

_PARTS: Final = ("halves", "gpus", "speed")
# Of the other GPUs' attention every n-th shape is used, which is enough for a few parameters.
_THINNED: Final = 4
_PRODUCTS: Final = 1000
_CALLS: Final = 50


class Kernels(NamedTuple):
    """Measured kernels of one GPU, kind and precision, and the device as it ships."""

    gpu: str
    device: Device
    kind: str
    precision: str
    rows: KernelTable

    def errors(self, device: Device) -> Floats:
        """Logarithms of measured over predicted times."""
        result: Floats = np.log(self.rows.measured_s / predicted_s(device, self.kind, self.precision, self.rows))
        return result


def measured() -> Iterator[Kernels]:
    """The kernels that ship, by GPU, kind and precision."""
    table = read(shipped())
    for gpu in table.gpus:
        device = device_of(gpu)
        assert device is not None
        for kind, precision, rows in kinds(table.of_gpu(gpu)):
            yield Kernels(gpu, device, kind, precision, rows)


def without_measurements(device: Device) -> Device:
    """The device without rates that are fitted to its own kernels."""
    assert device.kernels is not None
    update: dict[str, object] = {
        "products": {},
        "attention": {},
        "mixtures": {},
        "flash_forward_share": None,
        "flash_backward_share": None,
    }
    return device.model_copy(update={"kernels": device.kernels.model_copy(update=update)})


def left_out_halves(found: Iterable[Kernels]) -> None:
    """Prints errors on each half of the shapes, by the fit to the other half."""
    print("half of the shapes left out: shapes, median and 95th percentile of the error, share of times in their intervals")
    for one in found:
        fit = cross_validated(one.device, one.kind, one.precision, one.rows)
        print(f"{_name(one)}: {fit.rows}, {fit.median:.1%}, {fit.p95:.1%}, {fit.coverage:.0%}")


def left_out_gpus(found: list[Kernels]) -> None:
    """Prints errors on each GPU, by its data sheet and fits to the other GPUs. Intervals are those of the others' errors, by
    fits to which neither they nor the GPU belong: as a fifth GPU relates to the four that were measured."""
    print("one GPU left out: shapes, median and 95th percentile of the error, share of times in their intervals")
    found = [one for one in found if one.kind != MIXTURE]  # rates of mixtures do not follow from data sheets
    gpus = list(dict.fromkeys(one.gpu for one in found))
    for gpu in gpus:
        others = [pair for other in gpus if other != gpu for pair in _left_out(found, other, {gpu, other})]
        for one, residuals in _left_out(found, gpu, {gpu}):
            low, high = interval(np.concatenate([other for of, other in others if of.kind == one.kind]))
            error = np.abs(np.expm1(-residuals))
            inside = ((residuals >= low) & (residuals <= high)).mean()
            print(f"{_name(one)}: {len(error)}, {np.median(error):.1%}, {np.percentile(error, 95):.1%}, {inside:.0%}")


def _left_out(found: list[Kernels], gpu: str, without: set[str]) -> list[tuple[Kernels, Floats]]:
    """Kernels of a GPU, with logarithms of measured over predicted times by fits to all GPUs but those `without`."""
    own = [one for one in found if one.gpu == gpu]
    device = from_data_sheet(own[0].device, [one for one in found if one.gpu not in without])
    return [(one, one.errors(device)) for one in own]


def from_data_sheet(device: Device, others: list[Kernels]) -> Device:
    """The device with rates that follow from its data sheet, by fits to kernels of other GPUs."""
    bare = without_measurements(device)
    assert bare.kernels is not None
    constants = data_sheet.fit_constants(list(_products(others)))
    products = {
        precision: data_sheet.product_rates(DataSheet.of(bare), precision, constants)
        for precision in ("bf16", "fp8")
        if precision in device.peak_flops
    }
    rates = attention.fit_general(list(_attentions(others)), bare.kernels.generation, device.l2_bytes)
    update: dict[str, object] = {"products": products, "attention": {attention.IMPLEMENTATION: rates}}
    return bare.model_copy(update={"kernels": bare.kernels.model_copy(update=update)})


def _products(found: Iterable[Kernels]) -> Iterator[data_sheet.MeasuredProducts]:
    for one in found:
        precision = precision_of(one.device, one.precision)
        if one.kind == PRODUCT and precision is not None:
            device = without_measurements(one.device)
            yield data_sheet.MeasuredProducts(DataSheet.of(device), device, precision, one.rows.products(one.precision))


def _attentions(found: Iterable[Kernels]) -> Iterator[attention.MeasuredAttention]:
    for one in found:
        precision = precision_of(one.device, one.precision)
        if one.kind == ATTENTION and precision is not None:
            device = without_measurements(one.device)
            assert device.kernels is not None
            speed = device.speed(precision, device.kernels, burst=True)
            shapes = one.rows.attentions(one.precision)
            few = shapes.subset(np.arange(len(shapes.seq)) % _THINNED == 0)
            yield attention.MeasuredAttention(speed, few, device.l2_bytes)


def speed() -> None:
    """Prints the time of distinct products in one call, by measured rates and by shares of the peak."""
    device = device_of("H100-80GB-SXM")
    assert device is not None
    assert device.kernels is not None
    measured_rates = device.speed("bf16", device.kernels)
    speeds = {"measured rates": measured_rates, "shares of the peak": measured_rates._replace(products=None)}
    generator = np.random.default_rng(0)
    m, n, k = (64 * generator.integers(1, 512, _PRODUCTS).astype(np.float64) for _ in range(3))
    times_s = {name: min(_seconds(rates, m, n, k) for _ in range(_CALLS)) for name, rates in speeds.items()}
    ratio = times_s["measured rates"] / times_s["shares of the peak"]
    for name, seconds in times_s.items():
        print(f"{_PRODUCTS:,} distinct products in one call, by {name}: {seconds * 1e3:.2f} ms")
    print(f"measured rates take {ratio:.2f} times as long as shares of the peak")


def _seconds(rates: Speed, m: Floats, n: Floats, k: Floats) -> float:
    begin_s = time.perf_counter()
    products_s(rates, m, n, k, np.ones_like(m), 2 * (m * k + k * n), 2 * m * n)
    return time.perf_counter() - begin_s


def _name(one: Kernels) -> str:
    return f"{one.gpu} {one.kind} {one.precision}"


def main() -> None:
    """Prints the parts that are named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], metavar="PART", help=", ".join(_PARTS))
    parts = parser.parse_args().parts or _PARTS
    found = list(measured())
    if "halves" in parts:
        left_out_halves(found)
    if "gpus" in parts:
        left_out_gpus(found)
    if "speed" in parts:
        speed()


if __name__ == "__main__":
    main()
