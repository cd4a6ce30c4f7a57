"""Console text of a model's layers: FLOPs with the share of each layer as a bar, parameters, activations and intensity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scaleproof.commands.text.tables import bar, table
from scaleproof.simulator.common.units import format_bytes, format_count, format_parameters
from scaleproof.simulator.model.layer_table import DeviceRates, LayerRow, totals
from scaleproof.simulator.model.layers import Layer, ModelSpec
from scaleproof.simulator.model.transformer.decoder import Transformer

_NAME_WIDTH: Final = 26
_BAR_WIDTH: Final = 8
_TITLES: Final = ("layer", "×", "forward", "backward", "of all FLOPs", "parameters", "kept", "output", "FLOP/B", "bound by")
_WIDTHS: Final = (11, 5, 8, 9, 15, 11, 9, 10, 8, 9)


def headline(model: ModelSpec, layers: Sequence[Layer], ranks: int) -> str:
    """The model's size in one line. layers: all of it, as they are trained. ranks: number of tensor-parallel ranks that share
    its layers."""
    trained, total = sum(layer.trained_parameters for layer in layers), sum(layer.parameters for layer in layers)
    facts = [f"{format_parameters(total)} parameters"]
    if trained < total:
        facts.append(f"{format_parameters(trained)} of them trained ({100 * trained / total:.2g}%)")
    if isinstance(model, Transformer) and model.experts is not None:
        facts[0] += f", of which a token uses {format_parameters(model.active_parameters())}"
    if (tokens := getattr(model, "sequence", None)) is not None:
        facts.append(f"{tokens:,} tokens a sample")
    if ranks > 1:
        facts.append(f"one of {ranks} tensor-parallel ranks")
    return f"{model.name}: {'; '.join(facts)}"


def describe(title: str, layers: Sequence[LayerRow], rates: DeviceRates) -> str:
    """The table as text, at most 120 columns wide."""
    total = totals(layers)
    rows = [_TITLES]
    for row in layers:
        share = row.count * row.forward_flops / total["forward_flops"] if total["forward_flops"] else 0.0
        of_all = f"{bar(share, _BAR_WIDTH):<{_BAR_WIDTH}} {share:6.1%}" if share else ""
        flops = _count(row.forward_flops), _count(row.backward_flops), of_all, _count(row.parameters)
        sizes = _bytes(row.kept_bytes), _bytes(row.output_bytes), f"{row.intensity:,.0f}", row.bound_by
        rows.append((_cut(row.name), str(row.count), *flops, *sizes))
    sums = _count(total["forward_flops"]), _count(total["backward_flops"]), "", _count(total["parameters"])
    rows.append(("all layers", str(total["count"]), *sums, _bytes(total["kept_bytes"]), "", "", ""))
    head, *body, last = table(rows, widths=_WIDTHS, gap=1)
    rule = "─" * len(head)
    passes = "one sample" if rates.samples == 1 else f"{rates.samples} samples"
    peaks = f"{_count(rates.peak_flops)}FLOP/s and {_count(rates.bandwidth_Bps)}B/s"
    notes = [
        f"A row's numbers are one layer's for one sample in {rates.precision}; FLOP/B is for a forward pass over {passes}.",
        f"{rates.device}: {peaks}; compute limits layers of at least {rates.balance:,.0f} FLOP/B, memory the others.",
    ]
    return "\n".join([title, rule, head, rule, *body, rule, last, rule, *notes])


def _count(number: float) -> str:
    return format_count(number) if number else "–"


def _bytes(size_bytes: float) -> str:
    return format_bytes(size_bytes) if size_bytes else "–"


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"
