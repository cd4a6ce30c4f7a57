"""A model's layers as a table, against a device: what `scaleproof model` prints."""

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
    """What a model is held against: a device's rates in a precision, and samples in one pass."""

    device: str
    precision: str
    element_bytes: int
    peak_flops: float
    bandwidth_Bps: float
    samples: int

    @property
    def balance(self) -> float:
        """FLOPs for each byte where computing and moving take as long: a roofline's ridge (doi 10.1145/1498765.1498785)."""
        return self.peak_flops / self.bandwidth_Bps


@dataclass(frozen=True, slots=True)
class LayerRow:
    """`count` alike layers that follow one another; numbers are one layer's, for one sample.

    kept_bytes: what the forward pass keeps for the backward pass. output_bytes: what is handed on to the next layer.
    intensity: FLOPs of the forward pass for each byte that it moves, over all samples of a pass. bound_by: what is slower.
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


def rows(layers: Sequence[Layer], ground: DeviceRates) -> list[LayerRow]:
    """A row for each run of layers with the same signature."""
    groups = [list(group) for _, group in itertools.groupby(layers, key=lambda layer: layer.signature)]
    return [_row(group[0], group[-1].name, len(group), ground) for group in groups]


def _row(layer: Layer, last: str, count: int, ground: DeviceRates) -> LayerRow:
    moved_bytes = ground.element_bytes * sum(moved_elements(operator, ground.samples) for operator in layer.operators)
    intensity = layer.forward_flops * ground.samples / moved_bytes if moved_bytes else 0.0
    return LayerRow(
        layer.name if count == 1 else _span(layer.name, last),
        count,
        layer.forward_flops,
        layer.backward_flops,
        layer.parameters,
        sum(kept.elements * (kept.element_bytes or ground.element_bytes) for kept in layer.kept),
        layer.output_elements * ground.element_bytes,
        intensity,
        "compute" if intensity >= ground.balance else "memory",
    )


def _span(first: str, last: str) -> str:
    """'block0…11' from 'block0' and 'block11'."""
    return f"{first}…{last.removeprefix(first.rstrip('0123456789'))}"


def moved_elements(operator: Operator, samples: float) -> float:
    """Elements that the forward pass over `samples` samples reads and writes, each once; weights once for all samples."""
    match operator:
        case Matmul():
            activations = operator.rows * samples * (operator.inner + operator.columns)
            return operator.count * (activations + operator.inner * operator.columns)
        case Attention():
            outputs = operator.heads * operator.queries * (operator.width + operator.value_width)
            inputs = operator.key_heads * operator.keys * (operator.width + operator.value_width)
            # without a flash kernel scores are written and read by both products, and by the softmax between them
            scores = 0 if operator.flash else 4 * operator.scores
            return samples * (outputs + inputs + scores)
        case Convolution():
            return operator.weights + samples * (operator.input_elements + operator.outputs * operator.positions)
        case _:
            return samples * (operator.read + operator.written)


def as_dict(found: Sequence[LayerRow], ground: DeviceRates) -> dict[str, Any]:
    """The table as plain data, with totals."""
    return {
        **ground._asdict(),
        "balance": ground.balance,
        "layers": [asdict(row) for row in found],
        "total": _totals(found),
    }


def _totals(found: Sequence[LayerRow]) -> dict[str, float]:
    fields = ("forward_flops", "backward_flops", "parameters", "kept_bytes")
    return {"count": sum(row.count for row in found)} | {
        field: sum(row.count * getattr(row, field) for row in found) for field in fields
    }


def headline(model: ModelSpec, ranks: int) -> str:
    """What the model is, in a line; `ranks` share its layers."""
    facts = [f"{_count(model.parameters())} parameters"]
    if isinstance(model, Transformer) and model.experts is not None:
        facts[0] += f", of which a token meets {_count(model.active_parameters())}"
    if (tokens := getattr(model, "sequence", None)) is not None:
        facts.append(f"{tokens:,} tokens a sample")
    if ranks > 1:
        facts.append(f"one of {ranks} tensor-parallel ranks")
    return f"{model.name}: {'; '.join(facts)}"


def text(title: str, found: Sequence[LayerRow], ground: DeviceRates) -> str:
    """The table for people, at most 120 columns wide."""
    total = _totals(found)
    width = min(_NAME_WIDTH, max(len(name) for name in ("all layers", *(row.name for row in found))) + 1)
    heads = ("forward", "backward", "of all FLOPs", "parameters", "kept", "handed on", "FLOP/B", "bound by")
    widths = (8, 9, 15, 11, 9, 10, 8, 9)
    rule = "─" * (width + 6 + sum(widths) + len(widths))
    lines = [title, rule, _line("layer", width, "×", heads, widths), rule]
    for row in found:
        share = row.count * row.forward_flops / total["forward_flops"] if total["forward_flops"] else 0.0
        numbers = (_count(row.forward_flops), _count(row.backward_flops), _bar(share), _count(row.parameters))
        sizes = (_bytes(row.kept_bytes), _bytes(row.output_bytes), f"{row.intensity:,.0f}", row.bound_by)
        lines.append(_line(_cut(row.name, width), width, f"{row.count}", (*numbers, *sizes), widths))
    sums = (_count(total["forward_flops"]), _count(total["backward_flops"]), "", _count(total["parameters"]))
    lines += [rule, _line("all layers", width, f"{total['count']}", (*sums, _bytes(total["kept_bytes"]), "", "", ""), widths)]
    return "\n".join([*lines, rule, *_notes(ground)])


def _notes(ground: DeviceRates) -> list[str]:
    passes = "one sample" if ground.samples == 1 else f"{ground.samples} samples"
    rates = f"{_count(ground.peak_flops)}FLOP/s and {_count(ground.bandwidth_Bps)}B/s"
    return [
        f"A row's numbers are one layer's for one sample in {ground.precision}; FLOP/B is for a forward pass over {passes}.",
        f"{ground.device}: {rates}, so that layers are bound by compute from {ground.balance:,.0f} FLOP/B on.",
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
    """A share as a bar of eighths of characters, and in per cent."""
    eighths = round(share * _BAR_WIDTH * 8)
    bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return f"{bar:<{_BAR_WIDTH}} {share:6.1%}" if share else ""
