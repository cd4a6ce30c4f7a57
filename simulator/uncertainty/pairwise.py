"""Comparison of two scenarios whose cluster parameters are uncertain: the interval of the ratio of their throughputs, or of
their throughputs per dollar.

A shared error changes the step times of both scenarios and hardly their ratio. Quantities on which both clusters agree
therefore have one error for both, and all others, such as a network that only one cluster has, independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.draws import drawn, interval
from scaleproof.simulator.uncertainty.error_model import MODEL, SOFTWARE, ErrorModel, case_of_scenario, shipped, similarity
from scaleproof.simulator.uncertainty.response import Response, response_of_scenario

Times = NDArray[np.float64]
_Probability = TypeVar("_Probability", float, Times)

# Two scenarios are distinguishable if one of them is ahead with at least this probability; equal ones have 50 %.
SURE: Final = 0.9
# A tie: neither of two is ahead with at least this probability, which is hardly more than a coin toss.
_TIE: Final = 0.65
_DRAWS: Final = 64
# probabilities above this are not stated exactly
_STATED: Final = 1 - 1 / _DRAWS
# Logarithms of ratios below this mean equal times.
_SAME: Final = 1e-9

# Share of the variance of the model error of calibrated clusters that two settings of one kind of strategy have in common: an
# assumption.
_OTHER_SETTINGS: Final = 0.5
# Fields of a device that do not affect layer times.
_NO_TIMES: Final = {
    "name", "description", "source", "memory_bytes", "l2_bytes", "clock_Hz", "measured", "assumed", "measured_optimizers",
}  # fmt: skip


@dataclass(frozen=True)
class RatioInterval:
    """The 90 % interval of a ratio of scenario B over scenario A: of samples per second, or of samples per dollar.

    ahead: probability that the ratio is above 1, so that B is faster, or cheaper.
    """

    low: float
    high: float
    ahead: float

    @property
    def is_distinguishable(self) -> bool:
        """Whether the two scenarios are distinguishable."""
        return not 1 - SURE <= self.ahead <= SURE

    def words(self, better: str = "is faster") -> str:
        """A sentence such as 'B is faster than A with a probability of over 98 %'. better: as in `order_words`."""
        return order_words(("A", "B"), 1 - self.ahead, better)


def is_tie(ahead: float) -> bool:
    """Whether a probability that one of two is ahead makes them a tie."""
    return 1 - _TIE < ahead < _TIE


def order_words(names: tuple[str, str], ahead: float, better: str = "is faster", lead: float | None = None) -> str:
    """Which of two is ahead, with its probability: 'ring is faster than servers with a probability of 87 % (predicted lead
    49 %)', 'ring and servers are a tie: ring is faster with a probability of 55 %'.

    ahead: probability that the first is ahead. better: what the one ahead does, such as 'is cheaper'. lead: of the first over
    the second as predicted, relative; not stated if None.
    """
    first, second = names if ahead >= 0.5 else names[::-1]
    share = probability_words(max(ahead, 1 - ahead))
    predicted = "" if lead is None else f" (predicted {_lead_words(lead)})"
    if not is_tie(ahead):
        return f"{first} {better} than {second} with a probability of {share}{predicted}"
    even = "" if share == probability_words(0.5) else f": {first} {better} with a probability of {share}"
    return f"{names[0]} and {names[1]} are a tie{even}{predicted}"


def probability_words(probability: float) -> str:
    """'87 %', 'over 98 %'."""
    return f"over {format_percent(_STATED, 0)}" if probability > _STATED else format_percent(probability, 0)


def _lead_words(lead: float) -> str:
    """'lead 4.0 %', 'lead 49 %', 'factor 4.4'."""
    return f"factor {lead + 1:.2g}" if lead >= 1 else f"lead {format_percent(lead, 0 if lead >= 0.0995 else 1)}"


def ratio_interval(a: Scenario, b: Scenario, ratio: float) -> RatioInterval:
    """The interval of a ratio of scenario B over scenario A.

    ratio: predicted samples per second of B over those of A, or samples per dollar; their errors are equal, because costs are
    proportional to step times.
    """
    return of_log_ratios(math.log(ratio) + log_errors(a, b), reversed_share(a, b))


def log_errors(a: Scenario, b: Scenario, responses: tuple[Response, Response] | None = None) -> Times:
    """Equally likely errors of the logarithm of the ratio of throughputs, of scenario B over scenario A; shape (draws,).

    responses: of their step times to all uncertain quantities; computed if None.
    """
    of_a, of_b = responses or (response_of_scenario(a), response_of_scenario(b))
    errors_a, errors_b = joint_errors(a, b, (of_a.priors.names, of_b.priors.names))

    # a stated interval may exclude the prediction; errors of published pairs are centred on the predicted ratio
    priors_a, priors_b = (
        response.priors if case_of_scenario(one).family is None else response.priors.centred()
        for one, response in ((a, of_a), (b, of_b))
    )

    def log_ratios(normal: Times) -> Times:
        times_a, times_b = (
            np.log(one.step_times(priors.factors(errors @ normal)))
            for one, priors, errors in ((of_a, priors_a, errors_a), (of_b, priors_b, errors_b))
        )
        return np.asarray(times_a - times_b)

    return drawn(log_ratios, errors_a.shape[1], _DRAWS)[0]


def reversed_share(a: Scenario, b: Scenario) -> float:
    """Share of pairs like this one whose order is reversed however large the predicted difference is.

    It is 0 if both train in the same way, so that their model error is the same, and on calibrated clusters.
    """
    is_calibrated = case_of_scenario(a).family is None and case_of_scenario(b).family is None
    return 0.0 if trains_equally(a, b) or is_calibrated else shipped().pairs.reversed_share


def with_reversals(ahead: _Probability, reversed_share: float) -> _Probability:
    """A probability, or several, that also allows for pairs that are reversed for reasons outside the model."""
    return reversed_share + (1 - 2 * reversed_share) * ahead


def of_log_ratios(drawn: Times, reversed_share: float = 0.0) -> RatioInterval:
    """The interval of a ratio, of equally likely logarithms of it, shape (draws,). reversed_share: see the function."""
    ordered = np.sort(drawn)
    low, high = np.exp(interval(ordered)).tolist()
    same = float((np.abs(ordered) <= _SAME).mean())
    if same:
        return RatioInterval(low, high, with_reversals(float((ordered > _SAME).mean()) + same / 2, reversed_share))
    # the draws are the midpoints of equally likely intervals
    parts = (np.arange(len(ordered)) + 0.5) / len(ordered)
    ahead = 1 - float(np.interp(0.0, ordered, parts, left=0.0, right=1.0))
    return RatioInterval(low, high, with_reversals(ahead, reversed_share))


def joint_errors(
    a: Scenario, b: Scenario, names: tuple[Sequence[str], Sequence[str]], errors: ErrorModel | None = None
) -> tuple[Times, Times]:
    """Weights of independent standard normal variables in the errors of two scenarios' quantities, each of shape (quantities,
    variables).

    names: the quantities that affect each scenario. errors: the shipped error model if None.
    """
    weighted = []
    for name in dict.fromkeys([*names[0], *names[1]]):
        first, second = np.equal(names[0], name), np.equal(names[1], name)
        share = common(name, a, b, errors)
        shared, own = share**0.5, (1 - share) ** 0.5
        weighted += [(shared * first, shared * second), (own * first, 0.0 * second), (0.0 * first, own * second)]
    weights = np.array([np.concatenate(column) for column in weighted]).reshape(len(weighted), -1).T
    in_a, in_b = np.split(weights[:, weights.any(axis=0)], [len(names[0])])
    return in_a, in_b


def common(name: str, a: Scenario, b: Scenario, errors: ErrorModel | None = None) -> float:
    """Share of a quantity's variance that two scenarios have in common: 1 if their clusters give the same value, else 0; for
    the model error, see `common_error_share`."""
    if name == MODEL:
        return common_error_share(a, b, errors)
    if name == SOFTWARE:
        # software that neither names is the same in both
        return float(a.framework_is_default and b.framework_is_default and a.software == b.software)
    quantity = QUANTITIES[name]
    in_a, in_b = (
        (quantity.value(one.cluster), quantity.slowdown_interval(one.cluster), _parameters(name, one.cluster)) for one in (a, b)
    )
    return float(in_a == in_b)


def common_error_share(a: Scenario, b: Scenario, errors: ErrorModel | None = None) -> float:
    """Share of the variance of the simulator's model error that two scenarios have in common: 1 if both train the same model in
    the same way, 0 if their predictions are of different families; otherwise as it was fitted to pairs of published runs."""
    cases = case_of_scenario(a), case_of_scenario(b)
    if cases[0].family != cases[1].family:
        return 0.0
    if trains_equally(a, b):
        return 1.0
    if cases[0].family is None:
        return _OTHER_SETTINGS if a.strategy.kind == b.strategy.kind and a.model == b.model else 0.0
    return (errors or shipped()).pairs.shared.get(similarity(a, b), 0.0)


def trains_equally(a: Scenario, b: Scenario) -> bool:
    """Whether both scenarios train the same model in the same way, on clusters that may differ."""
    return all(getattr(a, part) == getattr(b, part) for part in ("model", "strategy", "training", "input", "unevenness"))


def _parameters(name: str, cluster: Cluster) -> Any:
    """The parameters of a cluster that a quantity scales, for quantities that scale many at once."""
    if name == "device":
        return cluster.device.model_dump(exclude=_NO_TIMES)
    if name == "optimizer":
        return cluster.device.measured_optimizers
    return cluster.collectives.measured if name == "collectives" else None
