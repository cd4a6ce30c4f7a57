"""compare: what changed from one scenario to another, what that did, phase by phase, and whether it is more than doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.engine import Variation, replay
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.run.predicted import predicted_run
from scaleproof.simulator.run.run import BREAKDOWN, Run, divided
from scaleproof.simulator.run.scaling import STEPS, compared
from scaleproof.simulator.scenario.fields import Change, differences
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import JointDraws, SpeedupInterval, apart
from scaleproof.simulator.uncertainty.prediction_interval import Response, normal_draws, of_response, responding

if TYPE_CHECKING:
    import pandas as pd

Drawn = dict[str, NDArray[np.float64]]

_SCALINGS: Final = ("weak", "strong")
# by the scenario's model of convergence, whose own error is in no interval
TO_TARGET: Final = "time to target, modelled"
_FRAMEWORK: Final = ("framework", "framework_is_default")
_DRAWS: Final = 64
_QUANTILES: Final = (0.05, 0.95)
# A quantity that brings less of the step time's variance moves no part of it by much.
_LEAST: Final = 0.01
# By how much a quantity is slowed to see which parts of a step grow.
_SLOWER: Final = 0.05


@dataclass(frozen=True)
class Effect:
    """One number of both runs, None where a run has none such. unit: SI, or of what there is no unit for.

    change: of B beside A, as a share of A. low, high: between them the change is with a probability of 90 %, where that is
    known.
    """

    name: str
    unit: str
    a: float | None
    b: float | None
    low: float | None = None
    high: float | None = None

    @property
    def change(self) -> float | None:
        return self.b / self.a - 1 if self.a and self.b is not None else None


@dataclass(frozen=True)
class BreakdownDifference:
    """A part of both runs' step times by cause. low_s, high_s: between them B's less A's is with a probability of 90 %."""

    name: str
    a_s: float
    b_s: float
    low_s: float
    high_s: float

    @property
    def change_s(self) -> float:
        return self.b_s - self.a_s


@dataclass(frozen=True)
class Comparison:
    """Two scenarios, their runs, and what sets them apart. parts: of a step, adding up to the last, which is all of it."""

    a: Run
    b: Run
    changed: tuple[Change, ...]
    effects: tuple[Effect, ...]
    parts: tuple[BreakdownDifference, ...]
    apart: SpeedupInterval

    @property
    def ratio(self) -> float:
        """How many times as fast B is, in samples a second."""
        return self.b.samples_per_s / self.a.samples_per_s

    def _sides(self) -> tuple[tuple[str, Run], tuple[str, Run]]:
        return ("a", self.a), ("b", self.b)

    def plain(self) -> dict[str, Any]:
        """As data for JSON, in SI units and shares."""
        return {
            "a": self.a.scenario,
            "b": self.b.scenario,
            "frameworks": {side: {name: getattr(run, name) for name in _FRAMEWORK} for side, run in self._sides()},
            "changed": [asdict(one) for one in self.changed],
            "effects": [asdict(one) | {"change": one.change} for one in self.effects],
            "parts": [asdict(one) | {"change_s": one.change_s} for one in self.parts],
            "throughput_ratio": self.ratio,
            "throughput_ratio_interval": [self.apart.low, self.apart.high],
            "probability_b_faster": self.apart.faster,
            "told_apart": self.apart.told,
        }

    def table(self) -> pd.DataFrame:
        """A row for each of the two, what is told of them in columns that name their units."""
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
    """What sets two scenarios apart: fields, times, memory and cost, and how sure that is. Raises as `predict` does."""
    sides = _ComparedRun.of(a), _ComparedRun.of(b)
    runs = sides[0].run, sides[1].run
    told = apart(a, b, runs[1].samples_per_s / runs[0].samples_per_s, (sides[0].answer, sides[1].answer))
    drawn = _drawn(sides)
    return Comparison(*runs, differences(a, b), tuple(_effects(*runs, told, drawn)), tuple(_parts(*runs, drawn)), told)


class _ComparedRun(NamedTuple):
    """One of the two. answer: how its step time follows from all that is uncertain."""

    scenario: Scenario
    run: Run
    answer: Response

    @classmethod
    def of(cls, scenario: Scenario) -> _ComparedRun:
        run, answer = predict(scenario, interval=False), responding(scenario, least=0.0)
        low, high, shares = of_response(answer, scenario.cluster)
        interval_s = (low * run.step_time_s, high * run.step_time_s)
        return cls(scenario, replace(run, prediction_interval_s=interval_s, spread=shares), answer)

    def growth(self) -> dict[str, dict[str, float]]:
        """By how much numbers grow per slowness, by the quantities that matter."""
        first, found = self._numbers(None), {}
        for quantity, share in self.run.spread.items():
            if share >= _LEAST and quantity != "model":
                numbers = self._numbers(quantity)
                found[quantity] = {name: (numbers[name] - first[name]) / _SLOWER for name in first}
        return found

    def _numbers(self, quantity: str | None) -> dict[str, float]:
        """Seconds of the parts of a step, and efficiencies, where a quantity is slower, or none is."""
        cluster = self.scenario.cluster if quantity is None else slowed(self.scenario.cluster, {quantity: 1 + _SLOWER})
        slower = self.scenario.model_copy(update={"cluster": cluster})
        if quantity in self.answer.whole or not self.answer.program.is_static:
            return _numbers(compared(timed(slower), slower))
        more_s = _SLOWER * self.answer.more_s[quantity] if quantity else np.zeros(len(self.answer.program))
        timeline = replay.simulate_longer(
            self.answer.program, np.tile(more_s, (STEPS, 1)), Variation(start_s=self.answer.program.ranks.late_s)
        )
        run = predicted_run(
            timeline, scenario=self.run.scenario, strategy=self.run.strategy, samples=self.scenario.total_samples
        )
        return _numbers(compared(divided(run, self.scenario.strategy.program_steps), slower))


def _effects(a: Run, b: Run, told: SpeedupInterval, drawn: tuple[Drawn, Drawn]) -> Iterator[Effect]:
    """Numbers that either run has. What goes with the throughput is as uncertain as that, whichever way it goes."""
    ratio = b.samples_per_s / a.samples_per_s
    faster, slower = (told.low / ratio, told.high / ratio), (ratio / told.high, ratio / told.low)
    rows: Sequence[tuple[str, str, Callable[[Run], float | None], tuple[float, float] | None]] = (
        ("step time", "s", lambda run: run.step_time_s, slower),
        ("throughput", "samples/s", lambda run: run.samples_per_s, faster),
        ("tokens", "tokens/s", lambda run: run.tokens_per_s, faster),
        *((f"{scaling} scaling efficiency", "", _efficiency(scaling), _around(scaling, drawn)) for scaling in _SCALINGS),
        (TO_TARGET, "s", lambda run: run.time_to_target_s, slower),
        ("MFU", "", lambda run: run.mfu, faster),
        ("memory of a rank", "bytes", lambda run: run.memory_bytes_per_rank, None),
        ("energy of a million samples", "J", lambda run: (run.energy_J or {}).get("per_million_samples"), slower),
        ("cost of a million samples", "USD", lambda run: (run.cost_USD or {}).get("per_million_samples"), slower),
        ("cost of a million tokens", "USD", lambda run: (run.cost_USD or {}).get("per_million_tokens"), slower),
    )
    for name, unit, value, around in rows:
        effect = Effect(name, unit, value(a), value(b))
        if effect.a is None and effect.b is None:
            continue
        if around and effect.change is not None:
            low, high = sorted((1 + effect.change) * edge - 1 for edge in around)
            effect = Effect(name, unit, effect.a, effect.b, low, high)
        yield effect


def _efficiency(scaling: str) -> Callable[[Run], float | None]:
    return lambda run: (run.efficiency or {}).get(scaling)


def _around(scaling: str, drawn: tuple[Drawn, Drawn]) -> tuple[float, float]:
    """The 90 % interval of the ratio of two efficiencies, beside the predicted one."""
    ratios = drawn[1][scaling] / drawn[0][scaling]
    low, high = np.quantile(ratios[1:], _QUANTILES, method="hazen") / ratios[0]
    return float(low), float(high)


def _parts(a: Run, b: Run, drawn: tuple[Drawn, Drawn]) -> Iterator[BreakdownDifference]:
    """The step times by cause, and all of each."""
    for name in (*BREAKDOWN, "step time"):
        a_s, b_s = (run.step_time_s if name == "step time" else run.breakdown_s.get(name, 0.0) for run in (a, b))
        low_s, high_s = np.quantile((drawn[1][name] - drawn[0][name])[1:], _QUANTILES, method="hazen").tolist()
        yield BreakdownDifference(name, a_s, b_s, low_s, high_s)


def _drawn(sides: tuple[_ComparedRun, _ComparedRun]) -> tuple[Drawn, Drawn]:
    """Parts of a step, all of it, and efficiencies, by name: as predicted, and then for each draw of the clusters' numbers, to
    first order. What the simulator leaves out slows a step as a whole, and not what its efficiency is against."""
    a, b = sides
    together = JointDraws(a.scenario, b.scenario, (tuple(a.run.spread), tuple(b.run.spread)))
    found = together.slownesses(normal_draws(_DRAWS, np.zeros(len(together)))) if len(together) else ({}, {})
    result = []
    for side, slownesses in zip(sides, found, strict=True):
        first, growth = _numbers(side.run), side.growth()
        beyond = {name: np.append(0.0, slownesses[name] - 1) for name in growth}
        drawn = {
            name: value + sum((more[name] * beyond[quantity] for quantity, more in growth.items()), np.zeros(1 + _DRAWS))
            for name, value in first.items()
        }
        whole = np.append(1.0, slownesses.get("model", np.ones(_DRAWS)))
        drawn |= {name: drawn[name] * whole for name in BREAKDOWN} | {name: drawn[name] / whole for name in _SCALINGS}
        result.append(drawn | {"step time": sum((drawn[name] for name in BREAKDOWN), np.zeros(1))})
    return result[0], result[1]


def _numbers(run: Run) -> dict[str, float]:
    """Seconds of the parts of a step, and efficiencies."""
    efficiency = run.efficiency or dict.fromkeys(_SCALINGS, 1.0)
    return {name: run.breakdown_s.get(name, 0.0) for name in BREAKDOWN} | {name: efficiency[name] for name in _SCALINGS}


def _column(effect: Effect) -> str:
    """'step_time_s', 'samples_per_s', 'MFU'."""
    if "/" in effect.unit:
        return effect.unit.replace("/", "_per_")
    name = effect.name.replace(" ", "_")
    return f"{name}_{effect.unit}" if effect.unit else name
