"""Links of GPUs from data sheets, by the names that drivers give them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class GpuLinks(NamedTuple):
    """nvlinks: number of links of a GPU, each with nvlink_Bps per direction; of AMD's GPUs those of Infinity Fabric. pcie_Bps:
    of its x16 slot, per direction."""

    nvlinks: int
    nvlink_Bps: float
    pcie_Bps: float


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
