"""Updated constants of collectives in a cluster file, and as text: each factor with its interval before and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scaleproof.simulator.common.units import format_percent
from scaleproof.validator.calibration.fit.collective_posterior import CollectivePosterior, LearnedFactor

TITLES: Final = ("constant", "factor before", "after", "90 % interval", "means")
_MEANINGS: Final = {
    "launch": ("time to start a collective", "takes"),
    "latency_inside": ("time of a step inside a node", "takes"),
    "latency_between": ("time of a step between nodes", "takes"),
    "rate_inside": ("rate of links inside a node", "reaches"),
    "rate_between": ("rate of links between nodes", "reaches"),
}
_DESCRIBED_BY: Final = {
    "rate_inside": "node.link.bandwidth",
    "rate_between": "network.bandwidth",
    "latency_between": "network.transport",
}


def with_constants(data: dict[str, Any], posterior: CollectivePosterior | None) -> dict[str, Any]:
    """The data of a cluster file with the factors of a posterior, and with where they come from; unchanged without one."""
    if posterior is None:
        return data
    collectives = {name: value for name, value in (data.get("collectives") or {}).items() if name != "adjust"}
    factors = {name: value for name, value in posterior.adjust.model_dump().items() if value != 1}
    summary = {"constants of collectives": f"{'; '.join(_texts(posterior))}; {errors(posterior)}"}
    return data | {
        "collectives": collectives | {"adjust": factors},
        "provenance": dict(data.get("provenance") or {}) | summary,
    }


def rows(posterior: CollectivePosterior) -> list[tuple[str, ...]]:
    """Cells of a table row for each constant, in the order of `TITLES`."""
    return [
        (factor.name, _interval(factor.prior_low, factor.prior_high), f"{factor.value:.2f}",
         _interval(factor.low, factor.high), _meaning(factor))
        for factor in posterior.factors
    ]  # fmt: skip


def errors(posterior: CollectivePosterior) -> str:
    """'predictions of 44 measured times are 10.3 % off at the median with the shipped constants, 6.9 % with these'."""
    before, after = format_percent(posterior.error_before), format_percent(posterior.error_after)
    return f"predictions of {posterior.times} measured times are {before} off at the median before, {after} after"


def surprises(posterior: CollectivePosterior) -> Iterator[str]:
    """A note on each factor that shipped constants make implausible."""
    for factor in posterior.factors:
        if factor.is_surprising:
            expected = _interval(factor.prior_low, factor.prior_high)
            described = _DESCRIBED_BY.get(factor.name)
            check = f"; check {described} of the cluster" if described else ""
            yield f"{factor.name}: the measured times suggest {factor.value:.2f}, where {expected} was expected{check}"


def _texts(posterior: CollectivePosterior) -> Iterator[str]:
    for factor in posterior.factors:
        interval, prior = _interval(factor.low, factor.high), _interval(factor.prior_low, factor.prior_high)
        yield f"{factor.name} {factor.value:.3g} ({interval}; shipped {prior})"


def _meaning(factor: LearnedFactor) -> str:
    what, verb = _MEANINGS[factor.name]
    return f"{what} {verb} {format_percent(factor.value, 0)}" if factor.is_learned else f"{what}: not measured"


def _interval(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"
