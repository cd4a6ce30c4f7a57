"""Sliders for quantities, on a logarithmic scale of preferred numbers."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from scaleproof.simulator.scenario.fields import value_at
from scaleproof.simulator.scenario.schema import Scenario

# ISO 3's series R20: twenty numbers a decade, evenly by their logarithm
_R20: Final = (1, 1.12, 1.25, 1.4, 1.6, 1.8, 2, 2.24, 2.5, 2.8, 3.15, 3.55, 4, 4.5, 5, 5.6, 6.3, 7.1, 8, 9)
_BITS: Final = ((1e6, "Mbit/s"), (1e9, "Gbit/s"), (1e12, "Tbit/s"))
_BYTES: Final = ((1e9, "GB/s"), (1e12, "TB/s"))
_FLOPS: Final = ((1e9, "GFLOP/s"), (1e12, "TFLOP/s"), (1e15, "PFLOP/s"))
_CORES: Final = ((1.0, ""),)
_TIMES: Final = ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s"))


class Slider(NamedTuple):
    """A slider between two decades. units: from the smallest on."""

    field: str
    label: str
    help: str
    decades: tuple[int, int]
    units: tuple[tuple[float, str], ...]

    def texts(self) -> list[str]:
        """Texts of all positions, in the units of the slider, smallest first."""
        low, high = self.decades
        return [_text(number, decade, self.units) for decade in range(low, high) for number in _R20] + [
            _text(1, high, self.units)
        ]


def _text(number: float, decade: int, units: tuple[tuple[float, str], ...]) -> str:
    """'250 Gbit/s'."""
    size, unit = next((one for one in reversed(units) if 10.0**decade >= one[0] * 0.99), units[0])
    return f"{number * 10 ** (decade - round(math.log10(size))):.4g} {unit}".rstrip()


def sliders(scenario: Scenario) -> list[dict[str, Any]]:
    """The sliders that apply to the scenario's cluster, at their present values."""
    cluster, peak = scenario.cluster, f"cluster.device.peak.{scenario.training.precision}"
    found = []
    if cluster.network is not None:
        found += [
            Slider("cluster.network.bandwidth", "Bandwidth between nodes", "what one node can send, over all its network cards",
                   (8, 13), _BITS),
            Slider("cluster.network.latency", "Latency between nodes", "time until the first byte of a message arrives",
                   (-6, -1), _TIMES),
        ]  # fmt: skip
    if cluster.node.link is not None and cluster.node.devices > 1:
        words = "bandwidth of a device to others in its node"
        found.append(Slider("cluster.node.link.bandwidth", "Bandwidth inside a node", words, (8, 12), _BYTES))
    if not cluster.device.measured_layers:
        found.append(
            Slider(peak, "Device speed", f"peak rate of one device in {scenario.training.precision}", (11, 16), _FLOPS)
        )
    return [_placed(one, scenario) for one in found]


def input_sliders(scenario: Scenario) -> list[dict[str, Any]]:
    """The sliders of data loading, where the scenario has it."""
    loaded, found = scenario.input, list[Slider]()
    if loaded is None:
        return []
    if loaded.storage is not None:
        words = "total of all nodes" if loaded.storage.shared_by == "cluster" else "of each node"
        found.append(Slider("input.storage.bandwidth", "Storage bandwidth", words, (8, 13), _BYTES))
    if loaded.decode_s:
        words = "time of a core, or of a device's decoder"
        found.append(Slider("input.decode", "Decoding of a sample", words, (-5, 0), _TIMES))
    if loaded.parse_s or loaded.augment_s or (loaded.decode_s and loaded.decode_on == "cores"):
        found.append(Slider("input.cores", "Cores for loading", "cores of a node that decode and augment", (0, 3), _CORES))
    return [_placed(one, scenario) for one in found]


def _placed(slider: Slider, scenario: Scenario) -> dict[str, Any]:
    texts = slider.texts()
    bits = 8 if slider.units is _BITS else 1
    value = value_at(scenario, slider.field).value * bits
    position = round(len(_R20) * (math.log10(max(value, 1e-12)) - slider.decades[0]))
    size, symbol = next((one for one in reversed(slider.units) if value >= one[0] * 0.9995), slider.units[0])
    return {
        "kind": "slider",
        "field": slider.field,
        "label": slider.label,
        "help": slider.help,
        "texts": texts,
        "position": min(max(position, 0), len(texts) - 1),
        "value": f"{value / size:.4g} {symbol}".rstrip(),
    }
