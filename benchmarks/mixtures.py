"""Rates of attention and of fused mixtures of experts, fitted to the published kernel times of four GPUs.

Prints errors on halves of the shapes that were left out; with --write also replaces the sections `attention` and `mixtures` of
the GPUs' device files by new fits. Mixtures consist of matrix products: fit them after those, by `python benchmarks/products.py
--write`.

With --slow it prints instead how rows are related that take far longer than predicted: whether other rows are slow of the same
mixture, group and routing on the same GPU, and the same row in the other precision and on other GPUs.

Run: python benchmarks/mixtures.py [--write | --slow]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.attention import AttentionRates
from scaleproof.simulator.cluster.device.kernels.rates import MixtureRates
from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.read import load_device
from scaleproof.validator.kernels import attention
from scaleproof.validator.kernels.fit import KindFit, cross_validated, kinds
from scaleproof.validator.kernels.rates import fitted, predicted_s, with_error
from scaleproof.validator.kernels.table import ATTENTION, MIXTURE, KernelTable, read, shipped

# Device files of the GPUs in the table.
GPUS: Final = {
    "A100-80GB-SXM": "a100-80gb-sxm", "H100-80GB-SXM": "h100-80gb-sxm", "B200-SXM": "b200-180gb-sxm", "L40S-48GB": "l40s",
}  # fmt: skip
_SECTIONS: Final = {ATTENTION: "attention", MIXTURE: "mixtures"}
_NAMES: Final = {ATTENTION: "passes of attention", MIXTURE: "mixtures of experts"}
# A row is slow if it takes this number of times as long as predicted.
_SLOW: Final = 1.5
# Coefficients in a line of a device file.
_IN_LINE: Final = 7


def fits(device: Device, table: KernelTable) -> Iterator[tuple[Device, KindFit]]:
    """The device with fitted rates of one kind and precision after the other, and the errors of each."""
    for kind, precision, rows in kinds(table):
        if kind in _SECTIONS:
            error = cross_validated(device, kind, precision, rows)
            device = with_error(fitted(device, kind, precision, rows), kind, precision, error.error)
            yield device, error


def slow_rows(table: KernelTable) -> None:
    """Prints the share of rows that take more than `_SLOW` times as long as predicted, and that share among rows that differ
    from a slow one in one respect."""
    slow: dict[tuple[str, str, str], bool] = {}
    for gpu, name in GPUS.items():
        for kind, precision, rows in kinds(table.of_gpu(gpu)):
            if kind == MIXTURE:
                ratios = rows.measured_s / predicted_s(load_device(_path(name)), kind, precision, rows)
                shapes = zip(rows.shape_texts(), (ratios > _SLOW).tolist(), strict=True)
                slow |= {(gpu, precision, shape): is_slow for shape, is_slow in shapes}
    print(f"slow: {np.mean(list(slow.values())):.1%} of {len(slow):,} rows")
    respects: dict[str, Callable[[str, str, str], Hashable]] = {
        "tokens": lambda gpu, precision, shape: (gpu, precision, shape.split(maxsplit=1)[1]),
        "precision": lambda gpu, precision, shape: (gpu, shape),
        "GPU": lambda gpu, precision, shape: (precision, shape),
    }
    for name, key in respects.items():
        groups: dict[Hashable, list[bool]] = {}
        for row, is_slow in slow.items():
            groups.setdefault(key(*row), []).append(is_slow)
        pairs = sum(sum(group) * (len(group) - 1) for group in groups.values())
        both = sum(sum(group) * (sum(group) - 1) for group in groups.values())
        print(f"slow if a row is slow that differs in {name} alone: {both / pairs:.0%} of {pairs:,}")


def _path(name: str) -> Path:
    return catalog.ROOT / "devices" / f"{name}.yaml"


def source(fit: KindFit) -> str:
    """Where rates come from."""
    return (
        f"fitted to {fit.rows} {_NAMES[fit.kind]} in published/gpu_kernels.csv.gz by `python benchmarks/mixtures.py`; left-out "
        f"halves: error {fit.median:.1%} at the median, {fit.p95:.1%} at the 95th percentile"
    )


def attention_lines(rates: AttentionRates, text: str) -> list[str]:
    """Section `attention` of a device file."""
    lines = [f"product_share: {rates.product_share:.4g}", f"exponential_share: {rates.exponential_share:.4g}"]
    lines += [f"sustained_share: {rates.sustained_share:.4g}"]
    lines += [f"block_rows: {rates.block_rows}", f"wide_block_rows: {rates.wide_block_rows}"]
    if rates.slowdowns:
        lines.append(f"slowdowns: {{{', '.join(f'{width}: {value:.4g}' for width, value in rates.slowdowns.items())}}}")
    lines.append(f"block: {rates.block_s * 1e6:.4g} us")
    if rates.launch_s is not None:
        lines.append(f"launch: {rates.launch_s * 1e6:.4g} us")
    if (kernel := rates.preparation) is not None:
        gain, cache = f"cached_gain: {kernel.cached_gain:.4g}", f"cache: {kernel.cache_bytes / 2**20:.0f} MiB"
        lines.append(f"preparation: {{memory_share: {kernel.memory_share:.4g}, {gain}, {cache}}}")
    return ["  attention:", f"    {attention.IMPLEMENTATION}:", *_indented([*lines, *_ends(rates, text)])]


def mixture_lines(mixtures: dict[str, MixtureRates], texts: dict[str, str]) -> list[str]:
    """Section `mixtures` of a device file."""
    result = ["  mixtures:"]
    for precision, rates in mixtures.items():
        lines = [f"fixed: {rates.fixed_s * 1e6:.4g} us", f"memory_share: {rates.memory_share:.4g}", "correction: ["]
        numbers = [f"{value:g}" for value in rates.correction]
        lines += [f"  {', '.join(numbers[at : at + _IN_LINE])}," for at in range(0, len(numbers), _IN_LINE)]
        result += [f"    {precision}:", *_indented([*lines, "]", *_ends(rates, texts[precision])])]
    return result


def _ends(rates: AttentionRates | MixtureRates, text: str) -> list[str]:
    low, high = rates.log_error
    return [f"log_error: [{low:.3g}, {high:.3g}]", "state: measured", "source: >", *_wrapped(text)]


def _wrapped(text: str) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 110:
            lines.append("")
        lines[-1] += f" {word}"
    return [f" {line}" for line in lines]


def _indented(lines: list[str]) -> list[str]:
    return [f"      {line}" for line in lines]


def written(text: str, section: str, lines: list[str]) -> str:
    """A device file in which a section of its kernels is replaced, or added at their end."""
    text = re.sub(rf"^  {section}:\n(?:   .*\n)*", "", text, flags=re.MULTILINE)
    begin = re.search(r"^kernels:\n(?:  .*\n)*", text, flags=re.MULTILINE)
    assert begin is not None
    return text[: begin.end()] + "\n".join(lines) + "\n" + text[begin.end() :]


def main() -> None:
    """Prints errors, and writes device files if this is wanted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--slow", action="store_true")
    options, table = parser.parse_args(), read(shipped())
    if options.slow:
        slow_rows(table)
        return
    for gpu, name in GPUS.items():
        path = _path(name)
        device, texts, attended = load_device(path), {}, ""
        for fitted_device, fit in fits(device, table.of_gpu(gpu)):
            device = fitted_device
            print(f"{gpu} {fit.kind} {fit.precision}: {fit.rows} rows, median {fit.median:.1%}, p95 {fit.p95:.1%}, in 90 % "
                  f"intervals {fit.coverage:.1%}")  # fmt: skip
            if fit.kind == ATTENTION:
                attended = source(fit)
            else:
                texts[fit.precision] = source(fit)
        if options.write:
            assert device.kernels is not None
            rates = device.kernels.attention[attention.IMPLEMENTATION]
            text = written(path.read_text(encoding="utf-8"), "attention", attention_lines(rates, attended))
            mixtures = mixture_lines(device.kernels.mixtures, texts)
            path.write_text(written(text, "mixtures", mixtures), encoding="utf-8")


if __name__ == "__main__":
    main()
