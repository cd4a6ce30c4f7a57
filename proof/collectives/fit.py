"""Fit of the constants of collectives' timing to measured collectives, regularised toward the shipped priors.

A constant of a generation or of a transport is a common factor of all of them times its own; both are lognormal around the
prior. Errors are logarithms, robust against outliers, and each system counts as the square root of its rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from scaleproof.proof.collectives.observations import Observation, ObservationBatch
from scaleproof.simulator.cluster.collectives.nccl.constants import FittedValue, Tables
from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.validator.estimation import posterior
from scaleproof.validator.estimation.posterior import Array, Prior, soft_l1

# Standard deviation of the logarithm of one measurement about a perfect model, and of a row among all.
_ERROR: Final = 0.12
# Share of a constant's prior variance that its generation or transport has alone; the rest is common to all.
_OWN: Final = 0.35
# Constants that rows decide on; the others keep their prior.
FITTED: Final[Mapping[str, tuple[str, ...]]] = {
    "libraries": (
        "ll128_step", "simple_step", "ll128_network_step", "simple_network_step", "nvls_step", "ll_rate", "nvls_rate",
        "local_step", "chunk", "line_chunk", "peer", "pytorch_call",
    ),
    "generations": ("launch", "step", "ll128_rate", "simple_rate"),
    "transports": ("step", "rate", "chunk", "post", "peer_rate"),
}  # fmt: skip


class _LogFactor(NamedTuple):
    """A logarithm of a factor on constants of a file: of one entry, or common to all its entries."""

    file: str
    entry: str | None
    name: str
    deviation: float


@dataclass(frozen=True)
class Fit:
    """Constants fitted to a number of rows of some systems. logs: logarithm of each parameter's factor on the prior."""

    tables: Tables
    logs: Mapping[tuple[str, str | None, str], float]
    rows: int
    systems: tuple[str, ...]


def fit(
    rows: Iterable[Observation],
    prior: Tables,
    leave_out: str | None = None,
    by: Literal["source", "system"] = "source",
    start: Fit | None = None,
    fixed: frozenset[str] = frozenset(),
) -> Fit:
    """Constants fitted to the rows, except those whose source (or system) is `leave_out`.

    start: a fit of similar rows, which saves time. fixed: names of constants that keep their prior.
    """
    kept = [one for one in rows if getattr(one, by) != leave_out]
    batch = ObservationBatch.of(kept)
    parameters = [one for one in _parameters(prior, kept) if one.name not in fixed]
    counts = Counter(one.system for one in kept)
    weight = np.array([counts[one.system] ** -0.25 for one in kept])
    weight *= math.sqrt(len(kept) / float((weight**2).sum())) / _ERROR
    logs = np.log(batch.measured_s)
    of_factors = Prior(np.zeros(len(parameters)), np.array([parameter.deviation for parameter in parameters]))

    def residuals(factors: Array) -> Array:
        return np.asarray(weight * (np.log(batch.seconds(_tables(prior, parameters, factors))) - logs))

    known = {} if start is None else start.logs
    first = np.array([known.get(parameter[:3], 0.0) for parameter in parameters])
    found = posterior.fit(residuals, first, soft_l1, of_factors, tolerance=1e-4, most_steps=40)
    tables = _with_intervals(prior, parameters, found.values, found.covariance)
    return Fit(tables, _factors(parameters, found.values), len(kept), tuple(counts))


def fits_without(
    rows: Sequence[Observation], prior: Tables, by: Literal["source", "system"], start: Fit | None = None,
    fixed: frozenset[str] = frozenset(),
) -> dict[str, Fit]:  # fmt: skip
    """Fits without each source (or system) in turn, by its name; arguments as for `fit`."""
    first = start or fit(rows, prior, fixed=fixed)
    return {name: fit(rows, prior, name, by, first, fixed) for name in sorted({getattr(one, by) for one in rows})}


def _parameters(prior: Tables, rows: Sequence[Observation]) -> list[_LogFactor]:
    """A common factor of each fitted constant, and one for each generation or transport that occurs in the rows."""
    used: dict[str, set[str]] = {
        "libraries": {"nccl"}, "generations": {one.facts.generation for one in rows},
        "transports": {one.transport for one in rows if one.facts and one.row.get("n_nodes") != "1"},
    }  # fmt: skip
    result = []
    for file, names in FITTED.items():
        for name in names:
            entries = sorted(entry for entry in prior[file] if entry in used[file])
            if not entries:
                continue
            spread = float(np.mean([prior[file][entry][name].deviation for entry in entries]))
            if file == "libraries":
                result.append(_LogFactor(file, "nccl", name, spread))
                continue
            if _own(file, name) < 1:
                result.append(_LogFactor(file, None, name, spread * math.sqrt(1 - _own(file, name))))
            own = ((entry, prior[file][entry][name].deviation * math.sqrt(_own(file, name))) for entry in entries)
            result += [_LogFactor(file, entry, name, deviation) for entry, deviation in own]
    return result


def _own(file: str, name: str) -> float:
    """Share of a constant's prior variance that its entry has alone. Latencies of transports have nothing in common."""
    return 1.0 if (file, name) == ("transports", "step") else _OWN


def _factors(parameters: Sequence[_LogFactor], logs: Array) -> dict[tuple[str, str | None, str], float]:
    return {(p.file, p.entry, p.name): float(log) for p, log in zip(parameters, logs, strict=True)}


def _tables(prior: Tables, parameters: Sequence[_LogFactor], logs: Array) -> Tables:
    """The prior with factors applied; RCCL's constants are not fitted."""
    factors = _factors(parameters, logs)
    result: dict[str, dict[str, dict[str, FittedValue]]] = {}
    for file, entries in prior.items():
        result[file] = {}
        for entry, fields in entries.items():
            changed = dict(fields)
            for name in FITTED[file] if entry not in ("rccl", "cdna") else ():
                log = factors.get((file, None, name), 0.0) + factors.get((file, entry, name), 0.0)
                changed[name] = FittedValue(*(part * math.exp(log) for part in fields[name]))
            result[file][entry] = changed
    return result


def _with_intervals(prior: Tables, parameters: Sequence[_LogFactor], logs: Array, covariance: Array) -> Tables:
    """The fitted constants with 90 % intervals of the posterior; entries without rows keep the width of their own factor."""
    index = {(p.file, p.entry, p.name): i for i, p in enumerate(parameters)}
    tables: Any = _tables(prior, parameters, logs)
    for file, entries in tables.items():
        for entry, fields in entries.items():
            for name in FITTED[file] if entry not in ("rccl", "cdna") else ():
                indices = [i for key in ((file, None, name), (file, entry, name)) if (i := index.get(key)) is not None]
                variance = float(covariance[np.ix_(indices, indices)].sum())
                if (file, entry, name) not in index:
                    variance += prior[file][entry][name].deviation ** 2 * _own(file, name)
                half = math.exp(DEVIATIONS * math.sqrt(variance))
                value = fields[name].value
                fields[name] = FittedValue(value, value / half, value * half)
    return tables  # type: ignore[no-any-return]
