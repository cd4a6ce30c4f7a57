"""The table of a model's layers with their costs relative to a device, as `scaleproof model` prints it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common.units import format_bytes, format_count
from scaleproof.simulator.model.layers import Layer, ModelSpec
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, Operator
from scaleproof.simulator.model.transformer.decoder import Transformer

_NAME_WIDTH: Final = 27
_BAR_WIDTH: Final = 8
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


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
    kept_bytes: float
    output_bytes: float
    intensity: float
    bound_by: str


def rows(layers: Sequence[Layer], rates: DeviceRates) -> list[LayerRow]:
    """The table's rows, one for each run of layers with the same signature."""
    groups = [list(group) for _, group in itertools.groupby(layers, key=lambda layer: layer.signature)]
    return [_row(group[0], group[-1].name, len(group), rates) for group in groups]


def _row(layer: Layer, last: str, count: int, rates: DeviceRates) -> LayerRow:
    moved_bytes = rates.element_bytes * sum(moved_elements(operator, rates.samples) for operator in layer.operators)
    intensity = layer.forward_flops * rates.samples / moved_bytes if moved_bytes else 0.0
    return LayerRow(
        layer.name if count == 1 else _span(layer.name, last),
        count,
        layer.forward_flops,
        layer.backward_flops,
        layer.parameters,
        sum(kept.elements * (kept.element_bytes or rates.element_bytes) for kept in layer.kept),
        layer.output_elements * rates.element_bytes,
        intensity,
        "compute" if intensity >= rates.balance else "memory",
    )


def _span(first: str, last: str) -> str:
    """'block0…11' from 'block0' and 'block11'."""
    return f"{first}…{last.removeprefix(first.rstrip('0123456789'))}"


def moved_elements(operator: Operator, samples: float) -> float:
    """Elements that an operator's forward pass reads and writes, each once; weights are read once for all samples."""
    match operator:
        case Matmul():
            activations = operator.rows * samples * (operator.inner + operator.columns)
            return operator.count * (activations + operator.inner * operator.columns)
        case Attention():
            outputs = operator.heads * operator.queries * (operator.width + operator.value_width)
            inputs = operator.key_heads * operator.keys * (operator.width + operator.value_width)
            # without a flash kernel both products and the softmax between them write and read the scores
            scores = 0 if operator.flash else 4 * operator.scores
            return samples * (outputs + inputs + scores)
        case Convolution():
            return operator.weights + samples * (operator.input_elements + operator.outputs * operator.positions)
        case _:
            return samples * (operator.read + operator.written)


def as_dict(table: Sequence[LayerRow], rates: DeviceRates) -> dict[str, Any]:
    """The table with totals as plain data for JSON."""
    return {
        **rates._asdict(),
        "balance": rates.balance,
        "layers": [asdict(row) for row in table],
        "total": _totals(table),
    }


def _totals(table: Sequence[LayerRow]) -> dict[str, float]:
    fields = ("forward_flops", "backward_flops", "parameters", "kept_bytes")
    return {"count": sum(row.count for row in table)} | {
        field: sum(row.count * getattr(row, field) for row in table) for field in fields
    }


def headline(model: ModelSpec, ranks: int) -> str:
    """The model's size in one line. ranks: number of tensor-parallel ranks that share its layers."""
    facts = [f"{_count(model.parameters())} parameters"]
    if isinstance(model, Transformer) and model.experts is not None:
        facts[0] += f", of which a token uses {_count(model.active_parameters())}"
    if (tokens := getattr(model, "sequence", None)) is not None:
        facts.append(f"{tokens:,} tokens a sample")
    if ranks > 1:
        facts.append(f"one of {ranks} tensor-parallel ranks")
    return f"{model.name}: {'; '.join(facts)}"


def text(title: str, table: Sequence[LayerRow], rates: DeviceRates) -> str:
    """The table as text, at most 120 columns wide."""
    total = _totals(table)
    width = min(_NAME_WIDTH, max(len(name) for name in ("all layers", *(row.name for row in table))) + 1)
    heads = ("forward", "backward", "of all FLOPs", "parameters", "kept", "output", "FLOP/B", "bound by")
    widths = (8, 9, 15, 11, 9, 10, 8, 9)
    rule = "─" * (width + 6 + sum(widths) + len(widths))
    lines = [title, rule, _line("layer", width, "×", heads, widths), rule]
    for row in table:
        share = row.count * row.forward_flops / total["forward_flops"] if total["forward_flops"] else 0.0
        numbers = (_count(row.forward_flops), _count(row.backward_flops), _bar(share), _count(row.parameters))
        sizes = (_bytes(row.kept_bytes), _bytes(row.output_bytes), f"{row.intensity:,.0f}", row.bound_by)
        lines.append(_line(_cut(row.name, width), width, f"{row.count}", (*numbers, *sizes), widths))
    sums = (_count(total["forward_flops"]), _count(total["backward_flops"]), "", _count(total["parameters"]))
    lines += [rule, _line("all layers", width, f"{total['count']}", (*sums, _bytes(total["kept_bytes"]), "", "", ""), widths)]
    return "\n".join([*lines, rule, *_notes(rates)])


def _notes(rates: DeviceRates) -> list[str]:
    passes = "one sample" if rates.samples == 1 else f"{rates.samples} samples"
    peaks = f"{_count(rates.peak_flops)}FLOP/s and {_count(rates.bandwidth_Bps)}B/s"
    return [
        f"A row's numbers are one layer's for one sample in {rates.precision}; FLOP/B is for a forward pass over {passes}.",
        f"{rates.device}: {peaks}, so that layers are bound by compute from {rates.balance:,.0f} FLOP/B on.",
    ]


def _line(name: str, width: int, count: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    line = f"{name:<{width}} {count:>5}"
    for cell, size in zip(cells, widths, strict=True):
        line += f" {cell:>{size}}"
    return line.rstrip()


def _count(number: float) -> str:
    return format_count(number) if number else "–"


def _bytes(size_bytes: float) -> str:
    return format_bytes(size_bytes) if size_bytes else "–"


def _cut(name: str, width: int) -> str:
    return name if len(name) < width else f"{name[: width - 2]}…"


def _bar(share: float) -> str:
    """A share as a bar of blocks and in per cent."""
    eighths = round(share * _BAR_WIDTH * 8)
    bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return f"{bar:<{_BAR_WIDTH}} {share:6.1%}" if share else ""
