"""Rates of matrix products, fitted to the published kernel times of four GPUs, and how well they predict left-out products.

Prints errors on halves of the shapes that were left out, what each mechanism of the model gives, and errors on GPUs that were
left out; with --write also replaces the section `products` of the GPUs' device files by new fits.

Run: python benchmarks/products.py [--write]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.products import ProductRates
from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.read import load_device
from scaleproof.validator.kernels.data_sheet import DataSheet, MeasuredProducts, fit_constants
from scaleproof.validator.kernels.products import ProductShapes, fit_products, predicted_s, with_rates
from scaleproof.validator.kernels.table import PRODUCT, read, shipped

Floats = NDArray[np.float64]

# Device files of the GPUs in the table.
GPUS: Final = {
    "A100-80GB-SXM": "a100-80gb-sxm", "H100-80GB-SXM": "h100-80gb-sxm", "B200-SXM": "b200-180gb-sxm", "L40S-48GB": "l40s",
}  # fmt: skip
_SOURCE: Final = (
    "fitted to {rows} products in published/gpu_kernels.csv.gz by `python benchmarks/products.py`; left-out halves: error "
    "{median:.1%} at the median, {p95:.1%} at the 95th percentile"
)
_ENDS: Final = (0.05, 0.95)
# Changes of rates that leave out mechanisms.
_WITHOUT: Final[dict[str, dict[str, object]]] = {
    "without correction": {"correction": ""},
    "without correction and ramp": {"correction": "", "ramp": 0.0},
    "without correction and edge": {"correction": "", "edge": 0.0},
    "without correction and power": {"correction": "", "burst_share": 1.0},
}


class Table(NamedTuple):
    """Products that were measured on a GPU. device: without rates of products."""

    gpu: str
    path: Path
    device: Device
    precision: Precision
    shapes: ProductShapes

    def errors(self, rates: ProductRates) -> Floats:
        """Logarithms of measured over predicted times."""
        result: Floats = np.log(
            self.shapes.measured_s / predicted_s(with_rates(self.device, self.precision, rates), self.precision, self.shapes)
        )
        return result

    def fitted(self, correct: bool = True) -> ProductRates:
        """Rates that are fitted to all shapes."""
        return fit_products(self.device, self.precision, self.shapes, self.device.l2_bytes or 0.0, correct)

    def halves(self, seed: int = 0) -> Iterator[tuple[NDArray[np.bool_], ProductRates]]:
        """Each half of the shapes, and rates that are fitted to the other half."""
        half = np.random.default_rng(seed).permutation(len(self.shapes.m)) % 2 == 0
        for part in (half, ~half):
            yield part, self._replace(shapes=self.shapes.subset(~part)).fitted()

    def left_out(self, halves: Iterable[tuple[NDArray[np.bool_], ProductRates]], **update: object) -> Floats:
        """Logarithms of measured over predicted times of the halves. update: of the rates."""
        errors = np.empty(len(self.shapes.m))
        for part, rates in halves:
            errors[part] = self._replace(shapes=self.shapes.subset(part)).errors(rates.model_copy(update=update))
        return errors

    @property
    def measured(self) -> MeasuredProducts:
        """The products with the facts of the GPU's data sheet."""
        return MeasuredProducts(DataSheet.of(self.device), self.device, self.precision, self.shapes)


def tables() -> Iterator[Table]:
    """The products of each GPU and precision."""
    rows = read(shipped())
    for gpu, name in GPUS.items():
        path, own = catalog.ROOT / "devices" / f"{name}.yaml", rows.of_gpu(gpu)
        device = load_device(path)
        assert device.kernels is not None
        plain = device.model_copy(update={"kernels": device.kernels.model_copy(update={"products": {}})})
        for precision in ("bf16", "fp8"):
            if precision in own.precisions(PRODUCT):
                yield Table(gpu, path, plain, precision, own.products(precision))


def quantiles(errors: Floats) -> tuple[float, float]:
    """Median and 95th percentile of absolute errors of the time, relative to the measured one."""
    median, p95 = np.quantile(np.abs(np.expm1(-errors)), [0.5, 0.95]).tolist()
    return median, p95


def main() -> None:
    """Prints errors; with --write, writes sections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the sections in device files")
    write = parser.parse_args().write
    found = list(tables())
    halves = [list(table.halves()) for table in found]
    print("Half of the shapes left out: median and 95th percentile of the error, share of times in their 90 % intervals")
    sections: dict[Path, str] = {}
    for table, own in zip(found, halves, strict=True):
        errors, again = table.left_out(own), table.left_out(table.halves(seed=1))
        median, p95 = quantiles(errors)
        low, high = np.quantile(errors, _ENDS).tolist()
        inside = float(((again >= low) & (again <= high)).mean())
        print(f"{table.gpu} {table.precision}: {median:.1%} {p95:.1%} {inside:.1%}")
        source = _SOURCE.format(rows=len(errors), median=median, p95=p95)
        update = {"log_error": (low, high), "state": "measured", "source": source}
        rates = table.fitted().model_copy(update=update)
        sections[table.path] = sections.get(table.path, "  products:\n") + section(table.precision, rates)
    print("The same without mechanisms, all other parameters as fitted")
    for name, changes in _WITHOUT.items():
        cells = [quantiles(table.left_out(own, **changes)) for table, own in zip(found, halves, strict=True)]
        print(f"{name}: {', '.join(f'{median:.1%} {p95:.1%}' for median, p95 in cells)}")
    _print_left_out_gpus(found)
    if write:
        for path, text in sections.items():
            _replace_section(path, text)


def _replace_section(path: Path, text: str) -> None:
    """Makes `text` the last section of a device's kernels, in place of the one with the same name."""
    kept = re.sub(r"^  products:\n(?:    .*\n)*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    kernels = re.search(r"^kernels:\n(?:  .*\n)+", kept, flags=re.MULTILINE)
    assert kernels is not None, path
    path.write_text(kept[: kernels.end()] + text + kept[kernels.end() :], encoding="utf-8")


def section(precision: str, rates: ProductRates) -> str:
    """The YAML of rates in a device file."""

    def seconds(value: float) -> str:
        microseconds = float(f"{value * 1e6:.3g}")
        return f"{microseconds:g} us"

    lines = [
        f"{precision}:",
        *(f"  {name}: {getattr(rates, name):.3g}" for name in ("tile_share", "edge", "ramp", "memory_share", "burst_share")),
        f"  burst: {seconds(rates.burst_s)}",
        f"  fixed: {seconds(rates.fixed_s)}",
        *(
            f"  cast: {{fixed: {seconds(cast.fixed_s)}, memory_share: {cast.memory_share:.3g}, "
            f"cached_gain: {cast.cached_gain:.3g}, cache: {cast.cache_bytes / 2**20:.0f} MiB}}"
            for cast in ([rates.cast] if rates.cast else [])
        ),
        f"  log_error: [{rates.log_error[0]:.3g}, {rates.log_error[1]:.3g}]",
        f"  state: {rates.state}",
        f"  source: >-\n{_wrapped(rates.source)}",
        "  correction: |",
        *(f"    {line}" for line in rates.correction.splitlines()),
    ]
    return "".join(f"    {line}\n" for line in lines)


def _wrapped(text: str) -> str:
    lines, width = [""], 100
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(f"        {line}" for line in lines)


def _print_left_out_gpus(found: list[Table]) -> None:
    """Errors on each GPU by its data sheet and constants that are fitted to the others."""
    print("One GPU left out: median and 95th percentile of the error, share in 90 % intervals by the errors on the others")
    errors: dict[str, list[tuple[str, Floats]]] = {}
    for gpu in GPUS:
        constants = fit_constants([table.measured for table in found if table.gpu != gpu])
        errors[gpu] = [(table.precision, table.measured.errors(constants)) for table in found if table.gpu == gpu]
    for gpu, own in errors.items():
        others = [error for other, rows in errors.items() if other != gpu for _, error in rows]
        low, high = np.quantile(np.concatenate(others), _ENDS)
        for precision, error in own:
            median, p95 = quantiles(error)
            print(f"{gpu} {precision}: {median:.1%} {p95:.1%} {((error >= low) & (error <= high)).mean():.1%}")
    every = np.concatenate([error for rows in errors.values() for _, error in rows])
    print(f"all: log_error {np.quantile(every, _ENDS).round(3).tolist()}")
    print(f"all GPUs: {fit_constants([table.measured for table in found])}")


if __name__ == "__main__":
    main()
