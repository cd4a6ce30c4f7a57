"""GPUs by the names that drivers give them: shipped devices, and links from data sheets."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.read import load_device


class GpuLinks(NamedTuple):
    """nvlinks: number of links of a GPU, each with nvlink_Bps per direction; of AMD's GPUs those of Infinity Fabric. pcie_Bps:
    of its x16 slot, per direction."""

    nvlinks: int
    nvlink_Bps: float
    pcie_Bps: float


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
_GBps: Final = 1e9
# Latency between two GPUs of a node, as in the shipped clusters, if no latency is measured.
ASSUMED_LATENCY: Final = "5 us"
# PCI-SIG: x16 of generation 3, 4 and 5 after line coding.
_PCIE3: Final = 15.75 * _GBps
_PCIE4: Final = 31.5 * _GBps
_PCIE5: Final = 63.0 * _GBps
# NVIDIA's data sheets: NVLink 1 to 5 carry 20, 25, 25, 25 and 50 GB/s per direction; NVLink 3 of workstation cards 14.06.
_LINKS: Final[dict[str, GpuLinks]] = {
    r"G?B[23]00": GpuLinks(18, 50 * _GBps, _PCIE5),
    r"H100 PCIe|H100 NVL": GpuLinks(12, 25 * _GBps, _PCIE5),
    r"H800": GpuLinks(8, 25 * _GBps, _PCIE5),
    r"GH200|H[12]00|H20\b": GpuLinks(18, 25 * _GBps, _PCIE5),
    r"A800": GpuLinks(8, 25 * _GBps, _PCIE4),
    r"A100": GpuLinks(12, 25 * _GBps, _PCIE4),
    r"A[46]000|RTX A[46]000|A40\b|RTX 3090": GpuLinks(4, 14.06 * _GBps, _PCIE4),
    r"V100": GpuLinks(6, 25 * _GBps, _PCIE3),
    r"P100": GpuLinks(4, 20 * _GBps, _PCIE3),
    r"RTX PRO 6000|RTX 50[789]0": GpuLinks(0, 0.0, _PCIE5),
    r"L40S?|L4\b|A10G?\b|A30\b|RTX 40[789]0|RTX 6000 Ada": GpuLinks(0, 0.0, _PCIE4),
    r"T4\b|RTX 20[78]0|K80|M60|P40\b": GpuLinks(0, 0.0, _PCIE3),
    # AMD's data sheets: one link of 64 GB/s per direction to each of seven others, of the MI350 series 76.8
    r"MI3[02][05]X": GpuLinks(7, 64 * _GBps, _PCIE5),
    r"MI35[05]X": GpuLinks(7, 76.8 * _GBps, _PCIE5),
}


def shipped_device(name: str) -> str:
    """File name of the shipped device that a driver calls `name`, or that has this name itself; "" for other names."""
    files = catalog.names("devices")
    known = name if name in files else _SHIPPED.get(name) or _SHIPPED.get(f"NVIDIA {name}")
    return known or next((file for file in files if _load(file).name == name), "")


def shipped(name: str) -> Device | None:
    """The shipped device for the name that a driver gives, or its own name; None for other names."""
    file = shipped_device(name)
    return _load(file) if file else None


def _load(file: str) -> Device:
    return load_device(file)


def links_of(gpu: str) -> GpuLinks | None:
    """Links of a GPU with a name such as 'NVIDIA H100 80GB HBM3' or 'h100-80gb-sxm'; None if unknown."""
    name = gpu.replace("-", " ")
    return next((links for pattern, links in _LINKS.items() if re.search(rf"\b(?:{pattern})", name, re.IGNORECASE)), None)


def nominal_Bps(gpu: str) -> float | None:
    """Bytes/s that one GPU can send to the others of its node, over all its NVLinks or PCIe; None if unknown."""
    links = links_of(gpu)
    if links is None:
        return None
    on_pcie = re.search(r"PCIe", gpu, re.IGNORECASE)
    return links.pcie_Bps if on_pcie or not links.nvlinks else links.nvlinks * links.nvlink_Bps
