"""The command import kernels: fit a device to a table of measured kernels. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result, working
from scaleproof.commands.text.tables import table, wrapped
from scaleproof.simulator.common.units import format_change, format_percent, format_range

if TYPE_CHECKING:
    from scaleproof.simulator.cluster.device.device import Device
    from scaleproof.validator.kernels.fit import FittedDevice
    from scaleproof.validator.kernels.table import KernelTable

_TITLES: Final = ("kernels", "shapes", "median", "p95", "90 % interval", "in 90%")
# What no table of kernels in short bursts says about a device, and what one of forward passes does not say either.
_ASSUMED: Final = "memory-bound kernels, launch and issue times, and what the power limit sustains in long runs"
_OF_BACKWARD: Final = "backward passes of attention"


def mount(tools: Any) -> None:
    """Adds the command to the subparsers of import."""
    kernels = Command(tools, "kernels", _kernels, "a table of measured kernels")
    kernels.parser.description = "Fit a device to a table of measured kernels: shapes and times."
    kernels.add("FILE.csv", "table with the columns of scenarios/published/gpu_kernels.csv.gz", dest="file", type=Path)
    kernels.add(
        "--device NAME", "GPU of the table to fit, if it has several; name of the GPU, if the table has none", default=""
    )
    kernels.add(
        "--attention NAME",
        "implementation of attention of rows without one, as files of frameworks name it: flash-2, flash-3, cudnn or another "
        "(trtllm)",
        default="",
    )
    kernels.add("--like NAME", "device with the facts of the data sheet (the shipped one of the GPU's name)", default="")
    kernels.add("--out DEVICE.yaml", "the device file to write", type=Path)
    kernels.add("--json", "print the fit as JSON")


def _kernels(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_file
    from scaleproof.validator.kernels.device_file import write
    from scaleproof.validator.kernels.fit import fit_device
    from scaleproof.validator.kernels.plausibility import check_rates
    from scaleproof.validator.kernels.table import check, read

    if options.out is not None and options.out.suffix not in (".yaml", ".yml"):
        raise InputError(f"--out {options.out}: give the name of a device file that ends in .yaml")
    found = read(options.file, options.device, *filter(None, [options.attention]))
    check(found)
    gpu = _gpu(found, options.device)
    rows, nominal = found.of_gpu(gpu), _nominal(gpu, options.like)
    check_rates(rows, {gpu: nominal})
    with working(f"fitting {len(rows):,} kernels"):
        fitted = fit_device(nominal, rows)
    if options.out is not None:
        with locked_file(options.out, "import", PATIENCE_S):
            write(fitted, gpu, options.file, options.out)
    notes = [*fitted.notes, *_unused(fitted)]
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    data = {"gpu": gpu, "like": nominal.name, "fits": [fit.plain() for fit in fitted.fits], "notes": notes}
    assumed = _assumed(rows)
    data |= {"assumed": assumed, "out": str(options.out or "")}
    return print_result(options, lambda: data, lambda: describe(fitted, gpu, nominal.name, assumed, options.out))


def _assumed(rows: KernelTable) -> str:
    """What a table does not say about a device."""
    from scaleproof.validator.kernels.table import BACKWARD

    return _ASSUMED if BACKWARD in rows.direction else f"{_OF_BACKWARD}, {_ASSUMED}"


def _unused(fitted: FittedDevice) -> Iterator[str]:
    """Notes on implementations of attention that no framework runs."""
    from scaleproof.simulator.frameworks import attention_versions

    known = attention_versions()
    for name in dict.fromkeys(fit.implementation for fit in fitted.fits):
        if name and name not in known:
            yield (
                f"no framework that ships runs attention called {name}, so that predictions of training do not use its times; "
                f"if they are of another, name it with --attention: {', '.join(known)}"
            )


def _gpu(found: KernelTable, named: str) -> str:
    """The GPU of the table to fit. Raises InputError unless it is clear which."""
    from scaleproof.simulator.common.errors import InputError

    gpus: Sequence[str] = found.gpus
    if named in gpus or (not named and len(gpus) == 1):
        return named or gpus[0]
    problem = f"no kernels of {named}" if named else "kernels of several GPUs"
    raise InputError(f"{found.path}: {problem}; give one of {', '.join(gpus)} with --device")


def _nominal(gpu: str, like: str) -> Device:
    """The device with the facts of the data sheet. Raises InputError if there is none."""
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.scenario.read import load_device
    from scaleproof.validator.kernels.devices import device_of

    device = load_device(like) if like else device_of(gpu)
    if device is None:
        raise InputError(
            f"no device of the GPU {gpu} ships; give the closest one with --like, such as one of its generation, or a file "
            "with the facts of its data sheet"
        )
    if device.kernels is None or device.efficiency is not None:
        raise InputError(
            f"{device.name} has no kernel model; give a device with `kernels` and without `efficiency` with --like"
        )
    return device


def describe(fitted: FittedDevice, gpu: str, like: str, assumed: str, out: Path | None) -> str:
    """Console text of a fit. assumed: what the table does not say about the device."""
    rows: list[Sequence[str]] = [_TITLES]
    for fit in fitted.fits:
        low, high = (format_change(end) for end in fit.error.shares)
        cells = format_percent(fit.median), format_percent(fit.p95), format_range(low, high), format_percent(fit.coverage, 0)
        rows.append((fit.name, f"{fit.rows:,}", *cells))
    lines = [f"{gpu}: data sheet of {like}; errors are those of shapes that were left out of the fit", *table(rows)]
    lines += wrapped(f"assumed, as in {like}: {assumed}")
    return "\n".join([*lines, *([f"wrote {out}"] if out else [])])
