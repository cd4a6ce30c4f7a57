"""The table of a model's layers with their costs relative to a device, which `scaleproof model` prints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from scaleproof.simulator.model.layers import Layer


class DeviceRates(NamedTuple):
    """A device's rates in a precision, which the table relates layers to. samples: of one pass."""

    device: str
    precision: str
    element_bytes: int
    peak_flops: float
    bandwidth_Bps: float
    samples: int

    @property
    def balance(self) -> float:
        """FLOPs per byte at which compute time equals memory time, the roofline's ridge (doi 10.1145/1498765.1498785)."""
        return self.peak_flops / self.bandwidth_Bps


@dataclass(frozen=True, slots=True)
class LayerRow:
    """`count` consecutive identical layers; the numbers are those of one layer for one sample.

    kept_bytes: activations kept for the backward pass. output_bytes: the output activation. intensity: FLOPs per byte that the
    forward pass over all samples moves. bound_by: the slower one of compute and memory.
    """

    name: str
    count: int
    forward_flops: float
    backward_flops: float
    parameters: int
    trained_parameters: int
    kept_bytes: float
    output_bytes: float
    intensity: float
    bound_by: str


def rows(layers: Sequence[Layer], rates: DeviceRates) -> list[LayerRow]:
    """The table's rows, one for each run of layers with the same signature."""
    groups = [list(group) for _, group in itertools.groupby(layers, key=lambda layer: layer.signature)]
    return [_row(group[0], group[-1].name, len(group), rates) for group in groups]


def _row(layer: Layer, last: str, count: int, rates: DeviceRates) -> LayerRow:
    moved_bytes = rates.element_bytes * sum(operator.moved_elements(rates.samples) for operator in layer.operators)
    intensity = layer.forward_flops * rates.samples / moved_bytes if moved_bytes else 0.0
    return LayerRow(
        layer.name if count == 1 else _span(layer.name, last),
        count,
        layer.forward_flops,
        layer.backward_flops,
        layer.parameters,
        layer.trained_parameters,
        sum(kept.elements * (kept.element_bytes or rates.element_bytes) for kept in layer.kept),
        layer.output_elements * rates.element_bytes,
        intensity,
        "compute" if intensity >= rates.balance else "memory",
    )


def _span(first: str, last: str) -> str:
    """'block0…11' from 'block0' and 'block11'."""
    return f"{first}…{last.removeprefix(first.rstrip('0123456789'))}"


def as_dict(table: Sequence[LayerRow], rates: DeviceRates) -> dict[str, Any]:
    """The table with totals as plain data for JSON."""
    return {
        **rates._asdict(),
        "balance": rates.balance,
        "layers": [asdict(row) for row in table],
        "total": totals(table),
    }


def totals(table: Sequence[LayerRow]) -> dict[str, float]:
    """The number of layers, and the sums over all of them."""
    fields = ("forward_flops", "backward_flops", "parameters", "trained_parameters", "kept_bytes")
    return {"count": sum(row.count for row in table)} | {
        field: sum(row.count * getattr(row, field) for row in table) for field in fields
    }
