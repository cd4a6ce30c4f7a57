"""Shipped devices of GPUs, by the names that drivers and tables give them."""

from __future__ import annotations

import functools
import re
from typing import Final

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.read import load_device

_VENDORS: Final = ("nvidia", "amd", "google", "tesla")
# Precisions that stand for others whose peak a device does not list.
_LIKE: Final[dict[str, Precision]] = {"bf16": "fp16", "fp16": "bf16", "mxfp8": "fp8", "nvfp4": "fp4"}

# Shipped devices by the names that drivers give them.
_SHIPPED: Final = {
    "NVIDIA GB300": "gb300-279gb",
    "NVIDIA B300 SXM6 AC": "b300-270gb-sxm",
    "NVIDIA B200": "b200-180gb-sxm",
    "NVIDIA GB200": "gb200-186gb",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-96gb-pcie",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA GH200 144G HBM3e": "gh200-144gb-hbm3e",
    "NVIDIA H200": "h200-141gb-sxm",
    "NVIDIA H100 80GB HBM3": "h100-80gb-sxm",
    "NVIDIA H100 PCIe": "h100-80gb-pcie",
    "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm",
    "NVIDIA A100-SXM4-40GB": "a100-40gb-sxm",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie",
    "NVIDIA A10G": "a10g",
    "NVIDIA L4": "l4",
    "Tesla T4": "t4",
    "Tesla V100-SXM2-16GB": "v100-16gb-sxm2",
    "Tesla V100-SXM2-32GB": "v100-32gb-sxm2",
    "Tesla V100-SXM3-32GB": "v100-32gb-sxm3",
    "Tesla V100-PCIE-16GB": "v100-16gb-pcie",
    "Tesla V100-PCIE-32GB": "v100-32gb-pcie",
    "Tesla P100-SXM2-16GB": "p100-sxm2",
    "Tesla P100-PCIE-16GB": "p100-pcie",
    "Tesla K80": "k80",
    # AMD's, of which each die of an MI250X is a device
    "AMD Instinct MI250X": "mi250x-gcd",
    "AMD Instinct MI300X": "mi300x-192gb-oam",
    "AMD Instinct MI300X OAM": "mi300x-192gb-oam",
    "AMD Instinct MI325X": "mi325x-256gb-oam",
    "AMD Instinct MI325X OAM": "mi325x-256gb-oam",
    "AMD Instinct MI355X": "mi355x-288gb-oam",
    "AMD Instinct MI355X OAM": "mi355x-288gb-oam",
}


def precision_of(device: Device, name: str) -> Precision | None:
    """The precision of a device that a table calls `name`; None if it has no peak rate for it."""
    known = {str(precision): precision for precision in device.peak_flops}
    return known.get(name) or known.get(_LIKE.get(name, ""))


def shipped_device(name: str) -> str:
    """File name of the shipped device that a driver calls `name`, or that has this name itself; "" for other names."""
    files = catalog.names("devices")
    known = name if name in files else _SHIPPED.get(name) or _SHIPPED.get(f"NVIDIA {name}")
    return known or next((file for file in files if load_device(file).name == name), "")


def shipped(name: str) -> Device | None:
    """The shipped device for the name that a driver gives, or its own name; None for other names."""
    file = shipped_device(name)
    return load_device(file) if file else None


@functools.cache
def device_of(gpu: str) -> Device | None:
    """The shipped device of a GPU by its own name, by the name that drivers give it, or by words such as B200-SXM; None if none
    ships. Of several with these words it is the one with the shortest name; of a model of which a single device ships, such as
    GB200, it is that one."""
    if known := shipped(gpu):
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
