"""The command device: show a device and the rates that its kernels reach. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result

if TYPE_CHECKING:
    from scaleproof.reports.charts.chart import Chart
    from scaleproof.simulator.cluster.device.device import Device


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    device = Command(commands, "device", _device)
    device.add("NAME", "a name from 'scaleproof list', a device file, or a cluster file, whose device is shown")
    device.add(
        "--out DIR", "write device.json, and the roofline and achieved rates as figures (PNG and SVG), to DIR", type=Path
    )
    device.add("--table FILE.csv", "measured kernels for the figures (those of the GPU that ship)", type=Path)
    device.add("--json", "print the device as JSON, in SI units")


def _device(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import by_section
    from scaleproof.reports.descriptions.devices import describe
    from scaleproof.simulator.analysis.device_facts import record_of
    from scaleproof.simulator.common.errors import InputError

    device = _load(options.name)
    if options.table and not options.out:
        raise InputError("--table: its kernels are drawn in the figures; also give --out DIR")
    found = record_of(device)
    if options.out:
        _write(found.to_json(), _charts(device, options.table), options.out)
    return print_result(options, found.to_dict, lambda: by_section(describe(found)))


def _load(reference: str) -> Device:
    """The device of a name, of a device file or of a cluster file."""
    from scaleproof.simulator.common import catalog, yaml_file
    from scaleproof.simulator.scenario.read import load_cluster, load_device

    path = catalog.find_part("device", reference)
    data = yaml_file.read(path).data
    return load_cluster(path).device if isinstance(data, dict) and "device" in data else load_device(path)


def _charts(device: Device, table: Path | None) -> Sequence[Chart]:
    """Figures of a device with its measured kernels."""
    from scaleproof.reports.charts.device import rate_chart, roofline
    from scaleproof.validator.kernels.figures import attention_series, measured_kernels, product_series, roofline_series

    measured = measured_kernels(device, table)
    found = [roofline(device, roofline_series(device, measured))]
    found += [rate_chart("products", device, series) for series in [product_series(device, measured)] if series]
    return found + [rate_chart("attention", device, series) for series in [attention_series(device, measured)] if series]


def _write(content: str, charts: Sequence[Chart], folder: Path) -> None:
    """Writes the device as JSON and its figures. content: of the JSON file."""
    from scaleproof.reports.charts.still import still
    from scaleproof.simulator.common.atomic_file import write_atomically
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_folder

    with locked_folder(folder, "device", PATIENCE_S):
        write_atomically(folder / "device.json", content.encode())
        for chart in charts:
            drawn = still(chart)
            write_atomically(folder / f"{chart.name}.png", drawn.png)
            write_atomically(folder / f"{chart.name}.svg", drawn.svg)
