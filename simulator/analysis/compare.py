"""compare: the fields in which two scenarios differ, the effect on each part of a step, and whether it exceeds uncertainty."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, InstanceOf, PlainSerializer

from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.errors import naming_extras
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import (
    format_bytes,
    format_energy_J,
    format_number,
    format_percent,
    format_time_s,
    format_USD,
)
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.prediction.scaling import Degrees, common_degrees, compared
from scaleproof.simulator.run.run import BREAKDOWN, Run
from scaleproof.simulator.scenario.fields import Change, differences
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.draws import interval, normal_draws
from scaleproof.simulator.uncertainty.error_model import MODEL, SLOWED_AS
from scaleproof.simulator.uncertainty.pairwise import RatioInterval, joint_errors, log_errors, of_log_ratios, reversed_share
from scaleproof.simulator.uncertainty.prediction_interval import DRAWS
from scaleproof.simulator.uncertainty.response import Response, response_of_scenario
from scaleproof.simulator.uncertainty.unmodelled import log_times

if TYPE_CHECKING:
    import pandas as pd

# In JSON, a run is the name of its scenario.
RUN_BY_NAME: Final = PlainSerializer(lambda run: run.scenario)
DrawnNumbers = dict[str, NDArray[np.float64]]

_SCALINGS: Final = ("weak", "strong")
# from the scenario's convergence model, whose own error is not in the interval
TO_TARGET: Final = "time to target, modelled"
_FRAMEWORK: Final = ("framework", "framework_is_default")
_DRAWS: Final = 64
# Quantities with a smaller share of the step time's variance are ignored in the breakdown.
_MIN_VARIANCE_SHARE: Final = 0.01
# Relative slowdown of a quantity in the finite differences of the breakdown.
_SLOWDOWN: Final = 0.05
# text of a value by its unit
_FORMS: Final[dict[str, Callable[[float], str]]] = {
    "s": format_time_s,
    "samples/s": format_number,
    "tokens/s": format_number,
    "bytes": format_bytes,
    "J": format_energy_J,
    "USD": format_USD,
    "": format_percent,
}


class Effect(Record):
    """One quantity of both runs, None where a run does not have it.

    unit: in SI; "" for ratios. change: (B - A) / A. low, high: 90 % interval of the change, where it is known.
    """

    derived: ClassVar = ("change",)

    name: str
    unit: str
    a: float | None
    b: float | None
    low: float | None = None
    high: float | None = None

    @property
    def change(self) -> float | None:
        """Relative change from a to b; None if it is undefined."""
        return self.b / self.a - 1 if self.a and self.b is not None else None

    @property
    def label(self) -> str:
        """The name in tables: the unit of a rate, the name of any other quantity."""
        return self.unit if "/" in self.unit else self.name

    def texts(self) -> tuple[str, str]:
        """Both values with their unit, which rates have in their label; a dash for an unknown value."""
        form = _FORMS[self.unit]
        a, b = ("–" if value is None else form(value) for value in (self.a, self.b))
        return a, b


class BreakdownDifference(Record):
    """Seconds of one breakdown part in both runs. low_s, high_s: 90 % interval of the difference B - A."""

    derived: ClassVar = ("change_s",)

    name: str
    a_s: float
    b_s: float
    low_s: float
    high_s: float

    @property
    def change_s(self) -> float:
        """Seconds by which the part is longer in b."""
        return self.b_s - self.a_s


class Comparison(Record):
    """The runs of two scenarios and the differences between them. parts: breakdown of the step; the last one is the total.
    speedup: throughput of B over that of A; per_dollar: tokens or samples per dollar of B over those of A, None where a price
    is not known. gpus: of both, without servers. baseline: what both scaling efficiencies are relative to, each on its own
    cluster and framework; None for captured scripts."""

    derived: ClassVar = (
        "frameworks", "throughput_ratio", "throughput_ratio_interval", "probability_b_faster", "cost_ratio",
        "cost_ratio_interval", "probability_b_cheaper", "distinguishable",
    )  # fmt: skip

    a: Annotated[InstanceOf[Run], RUN_BY_NAME]
    b: Annotated[InstanceOf[Run], RUN_BY_NAME]
    changed: tuple[Change, ...]
    effects: tuple[Effect, ...]
    parts: tuple[BreakdownDifference, ...]
    speedup: RatioInterval = Field(exclude=True)
    per_dollar: RatioInterval | None = Field(exclude=True)
    gpus: tuple[int, int]
    baseline: str | None

    def __repr__(self) -> str:
        sides = [f"{name.upper()}: {run.facts()['run']}, {format_time_s(run.step_time_s)}" for name, run in self._sides()]
        low, high = self.speedup.low, self.speedup.high
        return "\n".join([*sides, f"B is {self.ratio:.3g} times as fast as A (90 % interval {low:.3g} to {high:.3g})"])

    @property
    def ratio(self) -> float:
        """Throughput of B over throughput of A."""
        return self.b.samples_per_s / self.a.samples_per_s

    @property
    def cost_ratio(self) -> float | None:
        """Cost of a million tokens of B over that of A, or of a million samples of models without tokens; None if unknown."""
        return _cost_ratio(self.a, self.b)

    @property
    def frameworks(self) -> dict[str, dict[str, Any]]:
        """The framework of each scenario, and whether it is the default."""
        return {side: {name: getattr(run, name) for name in _FRAMEWORK} for side, run in self._sides()}

    @property
    def throughput_ratio(self) -> float:
        """Throughput of B over throughput of A."""
        return self.ratio

    @property
    def throughput_ratio_interval(self) -> tuple[float, float]:
        """90 % interval of the ratio of throughputs."""
        return self.speedup.low, self.speedup.high

    @property
    def probability_b_faster(self) -> float:
        """Probability that B is faster than A."""
        return self.speedup.ahead

    @property
    def distinguishable(self) -> bool:
        """Whether one of them is faster with a probability of at least 90 %."""
        return self.speedup.is_distinguishable

    @property
    def cost_ratio_interval(self) -> tuple[float, float] | None:
        """90 % interval of the ratio of costs; None if they are not known."""
        return None if self.per_dollar is None else (1 / self.per_dollar.high, 1 / self.per_dollar.low)

    @property
    def probability_b_cheaper(self) -> float | None:
        """Probability that B is cheaper than A; None if a price is not known."""
        return None if self.per_dollar is None else self.per_dollar.ahead

    def _sides(self) -> tuple[tuple[str, Run], tuple[str, Run]]:
        return ("a", self.a), ("b", self.b)

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per scenario; column names end in units."""
        import pandas as pd

        rows: list[dict[str, Any]] = [
            {_column(effect): getattr(effect, side) for effect in self.effects} for side in ("a", "b")
        ]
        for row, run in zip(rows, (self.a, self.b), strict=True):
            low_s, high_s = run.prediction_interval_s or (run.step_time_s, run.step_time_s)
            row |= {"step_time_low_s": low_s, "step_time_high_s": high_s}
            row |= {name: getattr(run, name) for name in _FRAMEWORK}
            row |= {f"{name}_s": run.breakdown_s.get(name, 0.0) for name in BREAKDOWN}
        return pd.DataFrame(rows, index=pd.Index(["a", "b"], name="scenario"))


def compare(a: Scenario, b: Scenario) -> Comparison:
    """Differences of two scenarios in fields, times, memory and cost, with 90 % intervals. Raises what `predict` raises."""
    baseline = common_degrees(a, b)
    sides = _ComparedRun.of(a, baseline), _ComparedRun.of(b, baseline)
    runs = sides[0].run, sides[1].run
    errors = log_errors(a, b, (sides[0].response, sides[1].response))
    more = [log_times(one, run.step_time_s, len(errors)) for one, run in zip((a, b), runs, strict=True)]
    # both are equally likely to take any share of the time that is not modelled
    errors = errors + more[0] - more[1]
    reversals = reversed_share(a, b)
    speedup = of_log_ratios(math.log(runs[1].samples_per_s / runs[0].samples_per_s) + errors, reversals)
    cost_ratio = _cost_ratio(*runs)
    # costs are proportional to step times, so that the errors are equal
    per_dollar = None if cost_ratio is None else of_log_ratios(errors - math.log(cost_ratio), reversals)
    draws = _drawn_numbers(sides)
    effects, parts = tuple(_effects(*runs, speedup, draws)), tuple(_parts(*runs, draws))
    gpus = a.strategy.training_ranks, b.strategy.training_ranks
    return Comparison(
        a=runs[0],
        b=runs[1],
        changed=differences(a, b),
        effects=effects,
        parts=parts,
        speedup=speedup,
        per_dollar=per_dollar,
        gpus=gpus,
        baseline=None if baseline is None else str(baseline),
    )


def _cost_ratio(a: Run, b: Run) -> float | None:
    for unit in ("per_million_tokens", "per_million_samples"):
        a_USD, b_USD = ((run.cost_USD or {}).get(unit) for run in (a, b))
        if a_USD and b_USD:
            return b_USD / a_USD
    return None


class _ComparedRun(NamedTuple):
    """One of the two scenarios and its run. response: how the step time depends on the uncertain quantities. baseline: degrees
    of the baseline of scaling efficiency, the same for both scenarios."""

    scenario: Scenario
    run: Run
    response: Response
    baseline: Degrees | None

    @classmethod
    def of(cls, scenario: Scenario, baseline: Degrees | None) -> _ComparedRun:
        run = compared(predict(scenario), scenario, baseline)
        return cls(scenario, run, response_of_scenario(scenario), baseline)

    def slowed(self, quantity: str) -> dict[str, float]:
        """The numbers with one quantity slowed down."""
        cluster = slowed(self.scenario.cluster, {SLOWED_AS.get(quantity, quantity): 1 + _SLOWDOWN})
        slower = self.scenario.model_copy(update={"cluster": cluster})
        return _numbers(compared(timed(slower), slower, self.baseline))


def _effects(a: Run, b: Run, speedup: RatioInterval, draws: tuple[DrawnNumbers, DrawnNumbers]) -> Iterator[Effect]:
    """Quantities that at least one run has. Those that follow from the throughput take its interval or the inverse of it."""
    ratio = b.samples_per_s / a.samples_per_s
    faster, slower = (speedup.low / ratio, speedup.high / ratio), (ratio / speedup.high, ratio / speedup.low)
    rows: Sequence[tuple[str, str, Callable[[Run], float | None], tuple[float, float] | None]] = (
        ("step time", "s", lambda run: run.step_time_s, slower),
        ("throughput", "samples/s", lambda run: run.samples_per_s, faster),
        ("tokens", "tokens/s", lambda run: run.tokens_per_s, faster),
        *((f"{name} scaling efficiency", "", _efficiency(name), _ratio_interval(name, draws)) for name in _SCALINGS),
        (TO_TARGET, "s", lambda run: run.time_to_target_s, slower),
        ("MFU", "", lambda run: run.mfu, faster),
        ("memory of a rank", "bytes", lambda run: run.memory_bytes_per_rank, None),
        ("energy of a million samples", "J", lambda run: (run.energy_J or {}).get("per_million_samples"), slower),
        ("cost of a million samples", "USD", lambda run: (run.cost_USD or {}).get("per_million_samples"), slower),
        ("cost of a million tokens", "USD", lambda run: (run.cost_USD or {}).get("per_million_tokens"), slower),
    )
    for name, unit, value, ratio_interval in rows:
        effect = Effect(name=name, unit=unit, a=value(a), b=value(b))
        if effect.a is None and effect.b is None:
            continue
        if ratio_interval and effect.change is not None:
            low, high = sorted((1 + effect.change) * bound - 1 for bound in ratio_interval)
            effect = effect.model_copy(update={"low": low, "high": high})
        yield effect


def _efficiency(scaling: str) -> Callable[[Run], float | None]:
    return lambda run: (run.efficiency or {}).get(scaling)


def _ratio_interval(scaling: str, draws: tuple[DrawnNumbers, DrawnNumbers]) -> tuple[float, float]:
    """90 % interval of the ratio of the two efficiencies, relative to the predicted ratio."""
    ratios = draws[1][scaling] / draws[0][scaling]
    low, high = interval(ratios[1:])
    return low / float(ratios[0]), high / float(ratios[0])


def _parts(a: Run, b: Run, draws: tuple[DrawnNumbers, DrawnNumbers]) -> Iterator[BreakdownDifference]:
    """Each breakdown part of the step, then the whole step."""
    for name in (*BREAKDOWN, "step time"):
        a_s, b_s = (run.step_time_s if name == "step time" else run.breakdown_s.get(name, 0.0) for run in (a, b))
        low_s, high_s = interval((draws[1][name] - draws[0][name])[1:])
        yield BreakdownDifference(name=name, a_s=a_s, b_s=b_s, low_s=low_s, high_s=high_s)


def _drawn_numbers(sides: tuple[_ComparedRun, _ComparedRun]) -> tuple[DrawnNumbers, DrawnNumbers]:
    """Breakdown, step time and efficiencies of both sides by name, each of shape (1 + draws,): as predicted, then for each draw
    of the clusters' uncertain quantities, to first order. The simulator's model error scales the whole step but not the
    baseline of the efficiency."""
    a, b = sides
    quantities = [tuple(name for name in side.run.spread if name != DRAWS) for side in sides]
    errors = joint_errors(a.scenario, b.scenario, (quantities[0], quantities[1]))
    normal, result = normal_draws(_DRAWS, np.zeros(errors[0].shape[1])), []
    for side, names, weights in zip(sides, quantities, errors, strict=True):
        factors = side.response.priors.take(names).factors(weights @ normal)
        slowdowns = dict(zip(names, np.hstack([np.ones((len(factors), 1)), factors]), strict=True))
        first = _numbers(side.run)
        draws = {name: value + np.zeros(1 + _DRAWS) for name, value in first.items()}
        for quantity in names:
            if side.run.spread[quantity] >= _MIN_VARIANCE_SHARE and quantity != MODEL:
                for name, value in side.slowed(quantity).items():
                    draws[name] += (value - first[name]) / _SLOWDOWN * (slowdowns[quantity] - 1)
        whole = slowdowns.get(MODEL, np.ones(1))
        draws |= {name: draws[name] * whole for name in BREAKDOWN} | {name: draws[name] / whole for name in _SCALINGS}
        result.append(draws | {"step time": sum((draws[name] for name in BREAKDOWN), np.zeros(1))})
    return result[0], result[1]


def _numbers(run: Run) -> dict[str, float]:
    """Seconds of each part of a step, and scaling efficiencies."""
    efficiency = run.efficiency or dict.fromkeys(_SCALINGS, 1.0)
    return {name: run.breakdown_s.get(name, 0.0) for name in BREAKDOWN} | {name: efficiency[name] for name in _SCALINGS}


def _column(effect: Effect) -> str:
    """Column name of an effect: 'step_time_s', 'samples_per_s', 'MFU'."""
    if "/" in effect.unit:
        return effect.unit.replace("/", "_per_")
    name = effect.name.replace(" ", "_")
    return f"{name}_{effect.unit}" if effect.unit else name
