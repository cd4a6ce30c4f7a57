"""Writes devices that are fitted to tables of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.scenario.dump import dump_device
from scaleproof.validator.kernels.fit import FittedDevice
from scaleproof.validator.kernels.table import ATTENTION, MIXTURE, PRODUCT

# Fields that hold what is fitted, by kind.
_FIELDS: Final = {PRODUCT: "kernels.products", ATTENTION: "kernels.attention", MIXTURE: "kernels.mixtures"}


def write(fitted: FittedDevice, gpu: str, table: Path, path: Path) -> None:
    """Writes a device file, atomically. gpu: name of the device; table: file of its measured kernels.

    Raises InputError if it cannot be written.
    """
    like = fitted.device
    errors = "; ".join(
        f"{fit.name}: {fit.rows} shapes, left out {format_percent(fit.median)} at the median and "
        f"{format_percent(fit.p95)} at the 95th percentile"
        for fit in fitted.fits
    )
    source = (
        f"Kernels fitted by `scaleproof import kernels` to {table.name} ({errors}). All else as in {like.name}: {like.source}"
    )
    names = [_FIELDS[fit.kind] for fit in fitted.fits if fit.kind in _FIELDS]
    device = like.model_copy(
        update={
            "name": gpu,
            "description": f"{gpu}, kernels fitted to {table.name}",
            "source": " ".join(source.split()) + "\n",
            "measured": tuple(dict.fromkeys([*like.measured, *names])),
            "measured_layers": (),
            "measured_optimizers": (),
        }
    )
    try:
        write_atomically(path, dump_device(device).encode())
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}; give a path that can be written") from None
