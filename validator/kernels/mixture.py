"""Mixtures of experts in a table: their shapes, the fit of a device to them, and their predicted times.

A row has the time of one rank, into which all tokens of the group go; the rank computes the copies that are routed to its
experts (`collector/trtllm/collect_moe.py` of the source). With a power law, the rank is the most loaded one.

Tokens are routed and their copies permuted, two grouped products surround an activation, and outputs are summed by token. The
grouped products take as long as `predict` has them; the other kernels are bound by memory bandwidth.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.device.device import Device, Precision
from scaleproof.simulator.cluster.device.kernels.parameters import Speed
from scaleproof.simulator.cluster.device.kernels.products import MEASURED_DEVICES, products_s
from scaleproof.simulator.cluster.device.kernels.rates import MIXTURE_TERMS, MixtureRates
from scaleproof.simulator.scenario.read import load_device
from scaleproof.validator.estimation.posterior import soft_l1
from scaleproof.validator.kernels.parameters import Parameter, fit_parameters
from scaleproof.validator.kernels.shapes import Floats, Shapes

_BALANCED: Final = "balanced"
_POWER_LAW: Final = "power_law_"
# Draws of a power law: loads are means over them, from a fixed seed. A row is the mean of five draws.
_DRAWS: Final = 64
_SEED: Final = 20_260_502
# An expert's popularity is drawn between 1 and this share of the tokens.
_MOST_POPULAR: Final = 0.8
# Experts whose MLP is not gated, by width of the model and of an expert and the number of experts: those of Nemotron 3, whose
# activation is a squared ReLU (the source's list of such models). A table has no column for the activation.
_UNGATED: Final = {(2688, 1856, 128), (2048, 5120, 512), (8192, 5120, 512)}
# Parameters. The factor of a term of the correction is near 1.
_FIXED_S: Final = Parameter(30e-6, low=1e-6, high=300e-6)
_MEMORY_SHARE: Final = Parameter(0.7, low=0.1, high=4.0)
_FACTOR: Final = Parameter(1.0, 0.2, low=math.exp(-1.5), high=math.exp(1.5))
# Relative error beyond which errors count less: a few rows take several times as long, by a wrong choice of kernel.
_ROBUST: Final = 0.1
# Of a device whose mixtures were not measured: rounded from those that were.
UNMEASURED: Final = MixtureRates.model_validate({"fixed": "30 us", "memory_share": 0.6})
# Variables of the correction, logarithms to base 2: rows of an expert, experts of the rank, width of the model, width of an
# expert's part, and the load of the rank over an even share. Their middles and half ranges: beyond, a variable counts as its
# end, so that the correction is bounded.
_MIDDLES: Final = (7.5, 4.0, 12.0, 10.5, 1.5)
_HALF_RANGES: Final = (5.5, 5.0, 1.5, 3.5, 1.5)
# Bytes of an activation between kernels; products may read it in a byte.
_STORED_BYTES: Final = 2


class ExpertWork(NamedTuple):
    """Mixtures on one rank; columns of shape (mixtures,) but for rows and counts.

    tokens: that enter the rank. inputs: of the activation, 2 if it is gated. imbalance: rows of the rank over an even share.
    rows, counts: rows of each expert of a group of equally loaded experts, and the experts of the group, shape (groups,).
    begins: index of each mixture's first group.
    """

    tokens: Floats
    hidden: Floats
    inter: Floats
    inputs: Floats
    imbalance: Floats
    rows: Floats
    counts: Floats
    begins: NDArray[np.int64]


class Parts(NamedTuple):
    """Parts of the time of mixtures, shape (mixtures,). products_s: both grouped products. moved_s: the other kernels at the
    full memory bandwidth. terms: of the correction, shape (mixtures, terms)."""

    products_s: Floats
    moved_s: Floats
    terms: Floats


def mixture_s(work: ExpertWork, rates: MixtureRates, speed: Speed, operand_bytes: int) -> Floats:
    """Seconds of mixtures, shape (mixtures,). operand_bytes: of an element that products read."""
    parts = parts_s(work, speed, operand_bytes)
    correction = parts.terms[:, : len(rates.correction)] @ np.array(rates.correction)
    result: Floats = (rates.fixed_s + parts.products_s + parts.moved_s / rates.memory_share) * np.exp(correction)
    return result


def parts_s(work: ExpertWork, speed: Speed, operand_bytes: int) -> Parts:
    """Parts of the time of mixtures."""
    rows, experts = (np.add.reduceat(values, work.begins) for values in (work.rows * work.counts, work.counts))
    group = np.repeat(np.arange(len(work.begins)), np.diff([*work.begins, len(work.rows)]))
    up, both_s = work.inputs * work.inter, np.zeros_like(rows)
    for columns, inner in ((up, work.hidden), (work.hidden, work.inter)):
        read_bytes = operand_bytes * (rows * inner + experts * inner * columns)
        sizes = work.rows, columns[group], inner[group], work.counts
        both_s += products_s(speed, *sizes, read_bytes, _STORED_BYTES * rows * columns, work.begins)
    # permuting copies, the activation, and the sum over copies
    moved_bytes = rows * (work.hidden * (2 * _STORED_BYTES + operand_bytes) + up * _STORED_BYTES + work.inter * operand_bytes)
    moved_bytes += 2 * _STORED_BYTES * work.tokens * work.hidden
    return Parts(both_s, moved_bytes / speed.memory_Bps, _terms(work, rows, experts))


def _terms(work: ExpertWork, rows: Floats, experts: Floats) -> Floats:
    """Terms of the correction of each mixture, shape (mixtures, terms)."""
    logs = np.log2(np.stack([rows / experts, experts, work.hidden, work.inter, work.imbalance]))
    places = np.clip((logs - np.array(_MIDDLES)[:, None]) / np.array(_HALF_RANGES)[:, None], -1, 1)
    first, second = np.triu_indices(len(places))
    return np.concatenate([np.ones_like(places[:1]), places, places[first] * places[second]]).T


@dataclass(frozen=True)
class MixtureShapes(Shapes):
    """Forward passes of mixtures of experts that were measured on one rank of a group, columns of shape (rows,)."""

    tokens: Floats
    hidden: Floats
    inter: Floats
    experts: Floats
    topk: Floats
    moe_tp: Floats
    moe_ep: Floats
    routing: NDArray[np.str_]
    measured_s: Floats

    @property
    def work(self) -> ExpertWork:
        """The mixtures as columns that the model times."""
        columns = (self.tokens, self.hidden, self.inter, self.experts, self.topk, self.moe_ep)
        shapes = np.stack(columns).astype(int).T.tolist()
        groups, inputs = [], []
        for (tokens, hidden, inter, experts, active, ranks), routing in zip(shapes, self.routing.tolist(), strict=True):
            groups.append(expert_groups(routing, tokens, experts, active, ranks))
            inputs.append(1.0 if (hidden, inter, experts) in _UNGATED else 2.0)
        rows, counts = (np.concatenate(column) for column in zip(*groups, strict=True))
        begins = np.cumsum([0, *(len(one) for one, _ in groups[:-1])])
        even = self.tokens * self.topk / np.maximum(1, self.moe_ep)
        imbalance = np.maximum(1.0, np.add.reduceat(rows * counts, begins) / even)
        inter = np.maximum(1.0, self.inter / self.moe_tp)
        return ExpertWork(self.tokens, self.hidden, inter, np.array(inputs), imbalance, rows, counts, begins)


@functools.lru_cache(maxsize=4096)
def expert_groups(routing: str, tokens: int, experts: int, active: int, ranks: int) -> tuple[Floats, Floats]:
    """Rows of each expert of groups of the rank's experts, the most loaded first, and the experts of each group."""
    own = max(1, experts // ranks)
    if routing == _BALANCED:
        return np.array([tokens * active / experts]), np.array([float(own)])
    loads = _power_law_rows(float(routing.removeprefix(_POWER_LAW)), tokens, experts, active, ranks)
    # one expert, one, two, four, ...
    begins = np.array([0, *(2**power for power in range(own.bit_length()) if 2**power < own)])
    counts = np.diff([*begins, own]).astype(float)
    return np.maximum(1e-3, np.add.reduceat(loads, begins) / counts), counts


def _power_law_rows(exponent: float, tokens: int, experts: int, active: int, ranks: int) -> Floats:
    """Expected rows of the experts of the most loaded rank, the most loaded expert first.

    Popularities have a density that falls by the exponent between 1 and a share of the tokens. A token goes to an expert once:
    rows beyond the number of tokens go to the rank's first expert that has room, as software resolves ties.
    """
    random = np.random.default_rng(_SEED)
    most, power = max(2.0, _MOST_POPULAR * tokens), 1 - exponent
    drawn = random.random((_DRAWS, experts))
    popularity = ((most**power - 1) * drawn + 1) ** (1 / power) if power else most**drawn
    rows = popularity / popularity.sum(axis=1, keepdims=True) * tokens * active
    by_rank = rows.reshape(_DRAWS, ranks, -1)
    own = by_rank[np.arange(_DRAWS), by_rank.sum(axis=2).argmax(axis=1)]
    excess = np.maximum(0.0, rows - tokens).sum(axis=1)
    own = np.minimum(own, tokens)
    for expert in range(own.shape[1]):
        moved = np.minimum(excess, tokens - own[:, expert])
        own[:, expert] += moved
        excess -= moved
    result: Floats = np.sort(own, axis=1)[:, ::-1].mean(axis=0)
    return result


def predicted_s(device: Device, precision: Precision, shapes: MixtureShapes) -> Floats:
    """Seconds of the forward passes, by the functions that `predict` uses for products."""
    assert device.kernels is not None
    rates = rates_of(device, precision)
    return mixture_s(shapes.work, rates, device.speed(precision, device.kernels, burst=True), _operand_bytes(precision))


def fit_mixtures(device: Device, precision: Precision, shapes: MixtureShapes) -> MixtureRates:
    """Rates of mixtures that minimise squared errors of logarithms, of which large ones count less."""
    assert device.kernels is not None
    speed, work = device.speed(precision, device.kernels, burst=True), shapes.work
    parts = parts_s(work, speed, _operand_bytes(precision))
    terms = [f"term {number}" for number in range(MIXTURE_TERMS)]

    def errors(values: dict[str, float]) -> Floats:
        seconds = values["fixed_s"] + parts.products_s + parts.moved_s / values["memory_share"]
        correction = parts.terms @ np.log([values[term] for term in terms])
        return (np.log(shapes.measured_s / seconds) - correction) / _ROBUST

    parameters = {"fixed_s": _FIXED_S, "memory_share": _MEMORY_SHARE} | dict.fromkeys(terms, _FACTOR)
    found = fit_parameters(parameters, errors, loss_of_prior=soft_l1)
    return UNMEASURED.model_copy(
        update={
            "fixed_s": float(f"{found['fixed_s']:.4g}"),
            "memory_share": float(f"{found['memory_share']:.4g}"),
            "correction": tuple(round(math.log(found[term]), 3) for term in terms),
            "state": "measured",
        }
    )


def with_rates(device: Device, precision: Precision, rates: MixtureRates) -> Device:
    """The device with rates of mixtures in a precision."""
    assert device.kernels is not None
    mixtures = {**device.kernels.mixtures, precision: rates}
    return device.model_copy(update={"kernels": device.kernels.model_copy(update={"mixtures": mixtures})})


def rates_of(device: Device, precision: str) -> MixtureRates:
    """Rates of a device's mixtures in a precision; if they were not measured, those of its generation's measured GPU."""
    assert device.kernels is not None
    if (own := device.kernels.mixtures.get(precision)) is not None:
        return own
    like = _of_generation(device.kernels.generation).get(precision)
    return UNMEASURED if like is None else like.model_copy(update={"log_error": UNMEASURED.log_error, "state": "data sheet"})


@functools.cache
def _of_generation(generation: str) -> dict[str, MixtureRates]:
    if generation not in MEASURED_DEVICES:
        return {}
    measured = load_device(MEASURED_DEVICES[generation]).kernels
    return {} if measured is None else measured.mixtures


def _operand_bytes(precision: str) -> int:
    """Bytes of an element that products read."""
    return 1 if precision.startswith("fp8") else 2
