"""Shipped devices of the GPUs that tables name."""

from __future__ import annotations

import functools
import re
from typing import Final

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.read import load_device
from scaleproof.validator.calibration import gpus

_VENDORS: Final = ("nvidia", "amd", "google", "tesla")
# Precisions that stand for others whose peak a device does not list.
_LIKE: Final[dict[str, Precision]] = {"bf16": "fp16", "fp16": "bf16", "mxfp8": "fp8", "nvfp4": "fp4"}


def precision_of(device: Device, name: str) -> Precision | None:
    """The precision of a device that a table calls `name`; None if it has no peak rate for it."""
    known = {str(precision): precision for precision in device.peak_flops}
    return known.get(name) or known.get(_LIKE.get(name, ""))


@functools.cache
def device_of(gpu: str) -> Device | None:
    """The shipped device of a GPU by its own name, by the name that drivers give it, or by words such as B200-SXM; None if none
    ships. Of several with these words it is the one with the shortest name; of a model of which a single device ships, such as
    GB200, it is that one."""
    if known := gpus.shipped(gpu):
        return known
    words = _words(gpu)
    of_model = [device for device in _gpus() if _model(device.name) in words]
    if len(of_model) == 1:
        return of_model[0]
    found = [device for device in of_model if set(words) <= set(_words(device.name))]
    return min(found, key=lambda device: (len(device.name), device.name), default=None)


def _model(name: str) -> str:
    """The first word with a digit: the model, as in RTX-PRO-6000-96GB-PCIe."""
    return next((word for word in _words(name) if re.search(r"\d", word)), "")


def _words(name: str) -> list[str]:
    """The words of a name in lower case, without vendors and the number of a socket: SXM5 is SXM."""
    words = [re.sub(r"^(sxm|oam)\d$", r"\1", word) for word in re.findall(r"[a-z0-9]+", name.lower())]
    return [word for word in words if word not in _VENDORS]


@functools.cache
def _gpus() -> tuple[Device, ...]:
    """The shipped devices but for processors."""
    devices = (load_device(name) for name in catalog.names("devices"))
    return tuple(device for device in devices if device.kernels is None or device.kernels.generation != "cpu")
