"""Passes of causal attention in a table: their shapes, the fit of rates to them, and their predicted times.

Tables that do not name the implementation have TensorRT-LLM's, whose kernel is preceded by one that rotates queries and keys
and copies keys and values to a cache: a row of a forward pass has the time of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.attention import (
    AttentionRates,
    AttentionWork,
    Preparation,
    attention_s,
    backward_shares,
    flash_s,
    generation_attention_rates,
    preparation_s,
)
from scaleproof.simulator.cluster.device.kernels.parameters import Generation, Speed
from scaleproof.simulator.model.operators import Attention
from scaleproof.validator.kernels.parameters import Parameter, fit_parameters
from scaleproof.validator.kernels.shapes import Floats, Mask, Shapes

# Implementation of tables that name none.
IMPLEMENTATION: Final = "trtllm"
# Generations whose tensor cores read operands from registers, and from shared memory: what a processor sustains differs.
FAMILIES: Final[Mapping[str, tuple[Generation, ...]]] = {
    "registers": ("volta", "turing", "ampere", "ada"), "shared memory": ("hopper", "blackwell"),
}  # fmt: skip
# Queries of a block, of heads up to 128 wide and of wider ones: Blackwell's kernels have two tiles of 128 for narrow heads
# (their accumulators fill its tensor memory). Chosen by the fits among 64, 128 and 256.
_BLOCK_ROWS: Final[Mapping[str, tuple[int, int]]] = {"ada": (128, 64), "blackwell": (256, 128)}
_USUAL_ROWS: Final = (128, 128)
# Relative error beyond which errors count less.
_ROBUST: Final = 0.05
# Digits of fitted parameters.
_DIGITS: Final = 4
_USUAL: Final = AttentionRates(product_share=0.6, exponential_share=0.6)
_USUAL_PREPARATION: Final = Preparation(memory_share=0.7)
# Wider heads that kernels pad or spill: their slowdowns are fitted if there are that many shapes of them.
_WIDE: Final = (192, 256)
_FEWEST_WIDE: Final = 16


@dataclass(frozen=True)
class AttentionShapes(Shapes):
    """Passes of causal attention that were measured on one GPU, columns of shape (rows,). backward: whether each is a backward
    pass."""

    batch: Floats
    seq: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    backward: Mask
    measured_s: Floats

    @property
    def work(self) -> AttentionWork:
        """The passes as columns that the model times."""
        return AttentionWork(
            self.batch, self.heads, self.kv_heads, self.seq, self.seq, self.head_dim, self.head_dim, np.full_like(self.seq, 0.5)
        )


_PARAMETERS: Final[Mapping[str, Parameter]] = {
    "product_share": Parameter(0.6, low=0.2, high=1.2),
    "exponential_share": Parameter(0.8, low=0.2, high=1.5),
    "sustained_share": Parameter(0.8, low=0.2, high=1.5),
    "launch_s": Parameter(12e-6, low=1e-6, high=60e-6),
    "block_s": Parameter(2e-6, low=1e-8, high=2e-5),
    "memory_share": Parameter(0.7, low=0.2, high=3.0),
    "cached_gain": Parameter(1.5, low=1.0, high=8.0),
    "slowdown_192": Parameter(1.1, low=0.5, high=3.0),
    "slowdown_256": Parameter(1.0, low=0.5, high=3.0),
}
# Upper bounds of the parameters of the backward pass, and the standard deviation of their logarithms around what the forward
# pass implies, which matters where a table does not determine them.
_MOST_BACKWARD: Final = {"backward_product_share": 2.0, "backward_exponential_share": 4.0, "backward_moved": 100.0}
_BACKWARD_DEVIATION: Final = 0.5
# Parameters of the kernel before that of attention.
_OF_PREPARATION: Final = ("memory_share", "cached_gain")
# Parameters that families of generations do not share.
_OF_FAMILY: Final = ("sustained_share",)


def predicted_s(device: Device, precision: Precision, shapes: AttentionShapes, implementation: str = IMPLEMENTATION) -> Floats:
    """Seconds of the passes of an implementation, by the functions that `predict` uses."""
    assert device.kernels is not None
    speed = device.speed(precision, device.kernels, burst=True)
    rates = rates_of(device, implementation)
    if rates is not None:
        return _table_s(rates, speed, shapes)
    columns = (shapes.batch, shapes.seq, shapes.heads, shapes.kv_heads, shapes.head_dim)
    rows = zip(*(column.astype(int).tolist() for column in columns), shapes.backward.tolist(), strict=True)
    return np.array(
        [
            flash_s(Attention("", heads, shared, seq, seq, width, width, flash=True), batch, speed, backward=backward)
            for batch, seq, heads, shared, width, backward in rows
        ]
    )


def rates_of(device: Device, implementation: str) -> AttentionRates | None:
    """Rates of an implementation on a device, or of the one that stands for it; None if none are known."""
    assert device.kernels is not None
    return device.kernels.attention_rates(implementation)


class MeasuredAttention(NamedTuple):
    """Measured passes of a GPU. speed: of short bursts. cache_bytes: its second-level cache."""

    speed: Speed
    shapes: AttentionShapes
    cache_bytes: float | None = None
    implementation: str = IMPLEMENTATION

    def of_direction(self, *, backward: bool) -> Self:
        """The passes in one direction."""
        return self._replace(shapes=self.shapes.subset(self.shapes.backward == backward))


def fit_attention(measured: MeasuredAttention) -> AttentionRates:
    """Rates of a GPU's forward passes that minimise errors of logarithms, of which large ones count less, and of its backward
    passes where there are any. Needs forward passes."""
    rates = _fitted([measured])[0]
    known = generation_attention_rates(measured.implementation, measured.speed.kernels.generation)
    rates = rates.model_copy(update={**_carried_over(rates, known), "state": "measured"})
    return _with_backward(rates, measured.of_direction(backward=True))


def _carried_over(rates: AttentionRates, known: AttentionRates | None) -> dict[str, float]:
    """Rates of a backward pass that was not measured: as far from those of the forward pass as known ones are."""
    if known is None or known.backward_product_share is None or known.backward_exponential_share is None:
        return {}
    product = rates.product_share * known.backward_product_share / known.product_share
    exponential = rates.exponential_share * known.backward_exponential_share / known.exponential_share
    return {
        "backward_product_share": float(f"{product:.{_DIGITS}g}"),
        "backward_exponential_share": float(f"{exponential:.{_DIGITS}g}"),
        "backward_moved": known.backward_moved,
    }


def _with_backward(rates: AttentionRates, measured: MeasuredAttention) -> AttentionRates:
    """The rates with those of the backward pass fitted to backward passes, near those that the rates state or imply."""
    if not len(measured.shapes.seq):
        return rates
    product_share, exponential_share = backward_shares(rates)
    expected = zip(_MOST_BACKWARD.items(), (product_share, exponential_share, rates.backward_moved), strict=True)
    parameters = {name: Parameter(value, _BACKWARD_DEVIATION, high=max(most, 1.01 * value)) for (name, most), value in expected}
    found = fit_parameters(parameters, lambda values: log_errors(rates.model_copy(update=values), measured) / _ROBUST)
    return rates.model_copy(update=found)


def fit_general(
    measured: Sequence[MeasuredAttention], generation: Generation, cache_bytes: float | None = None
) -> AttentionRates:
    """Rates for a generation from measurements of GPUs, which share all parameters but the sustained share of families; with
    the 5th and 95th percentile of the errors on each of the GPUs if the others are fitted. cache_bytes: of the GPU that has
    them."""
    rates = _fitted(measured, generation, cache_bytes)[-1]
    errors = []
    for left, one in enumerate(measured):
        if others := [*measured[:left], *measured[left + 1 :]]:
            errors.append(log_errors(_fitted(others, one.speed.kernels.generation, one.cache_bytes)[-1], one))
    interval = {"log_error": _interval(np.concatenate(errors))} if errors else {}
    return rates.model_copy(update={**interval, "state": "data sheet"})


def log_errors(rates: AttentionRates, measured: MeasuredAttention) -> Floats:
    """Logarithms of measured over predicted times."""
    shapes = measured.shapes
    result: Floats = np.log(shapes.measured_s / _table_s(rates, measured.speed, shapes))
    return result


def _table_s(rates: AttentionRates, speed: Speed, shapes: AttentionShapes) -> Floats:
    """Seconds of rows of a table: of the kernel and, in forward passes, of the one before it."""
    result = np.empty(len(shapes.seq))
    for backward in np.unique(shapes.backward).tolist():
        own = shapes.backward == backward
        work = shapes.subset(own).work
        result[own] = attention_s(work, rates, speed, backward=backward)
        if not backward:
            result[own] += preparation_s(work, rates, speed)
    return result


def _interval(errors: Floats) -> tuple[float, float]:
    low, high = np.quantile(errors, (0.05, 0.95)).tolist()
    return round(low, 3), round(high, 3)


def _family(generation: str) -> str:
    return next((name for name, members in FAMILIES.items() if generation in members), "registers")


def _with_rows(rates: AttentionRates, generation: str, implementation: str) -> AttentionRates:
    known = None if implementation == IMPLEMENTATION else generation_attention_rates(implementation, generation)
    narrow, wide = (known.block_rows, known.wide_block_rows) if known else _BLOCK_ROWS.get(generation, _USUAL_ROWS)
    return rates.model_copy(update={"block_rows": narrow, "wide_block_rows": wide})


def _fitted(
    measured: Sequence[MeasuredAttention], other: Generation | None = None, other_cache_bytes: float | None = None
) -> list[AttentionRates]:
    """Rates of forward passes of each GPU, and of another generation at the end; all GPUs share the parameters, but families of
    generations."""
    measured = [one.of_direction(backward=False) for one in measured]
    implementation = measured[0].implementation
    absent = () if implementation == IMPLEMENTATION else _OF_PREPARATION
    widths = np.concatenate([one.shapes.head_dim for one in measured])
    wide = [f"slowdown_{width}" for width in _WIDE if (widths == width).sum() >= _FEWEST_WIDE]
    families = sorted({_family(one.speed.kernels.generation) for one in measured})
    shared = [name for name in _PARAMETERS if name not in (*_OF_FAMILY, *absent) and ("slowdown" not in name or name in wide)]
    of_family = {f"{name} {family}": _PARAMETERS[name] for name in _OF_FAMILY for family in families}
    parameters = {name: _PARAMETERS[name] for name in shared} | of_family

    def of(values: Mapping[str, float], generation: str, cache_bytes: float | None) -> AttentionRates:
        family = _family(generation) if _family(generation) in families else families[0]
        own = {name: values[f"{name} {family}"] for name in _OF_FAMILY}
        rates = _rates({name: values[name] for name in shared} | own, cache_bytes or 0.0)
        return _with_rows(rates, generation, implementation)

    def residuals(values: Mapping[str, float]) -> Floats:
        rates = (of(values, one.speed.kernels.generation, one.cache_bytes) for one in measured)
        return np.concatenate([log_errors(*pair) for pair in zip(rates, measured, strict=True)]) / _ROBUST

    found = {name: float(f"{value:.{_DIGITS}g}") for name, value in fit_parameters(parameters, residuals).items()}
    wanted = [(one.speed.kernels.generation, one.cache_bytes) for one in measured]
    wanted += [(other, other_cache_bytes)] if other else []
    return [of(found, *one) for one in wanted]


def _rates(values: dict[str, float], cache_bytes: float) -> AttentionRates:
    parameters: dict[str, float] = {name: values.pop(name) for name in _OF_PREPARATION if name in values}
    preparation = _USUAL_PREPARATION.model_copy(update={**parameters, "cache_bytes": cache_bytes}) if parameters else None
    slowdowns = {width: value for width in _WIDE if (value := values.pop(f"slowdown_{width}", None)) is not None}
    return _USUAL.model_copy(update={**values, "preparation": preparation, "slowdowns": slowdowns})
