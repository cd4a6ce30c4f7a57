"""crossover: which strategy is the fastest where, on a map of two fields, and at which values the fastest changes.

Every strategy is predicted at every point of a grid. Where the fastest changes from one point to the next along x, the border
between them is bisected, until x is known to a hundredth; a third that is the fastest between the two is found on the way. What
is the fastest along x is then known everywhere, as far as it does not change to and fro between two neighbouring points.

Where the scenario models convergence, the fastest is the one that is at the target first; what is the model's own error is in
no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.simulator.analysis.alternatives import Contender, contenders
from scaleproof.simulator.analysis.crossover.axes import MapAxis, x_axis, y_axis
from scaleproof.simulator.analysis.sensitivity.sensitivity import rebuilt, with_nodes
from scaleproof.simulator.analysis.study.batched_replay import step_times_s
from scaleproof.simulator.analysis.study.numeric_axes import NUMBERS, Differences, with_numbers
from scaleproof.simulator.common.errors import InputError, one_line
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import framework_words
from scaleproof.simulator.scenario.convergence import to_target
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import apart

if TYPE_CHECKING:
    import pandas as pd

# borders are found to this share of x
TOLERANCE: Final = 0.01
# Of two whose throughputs differ by no more than this share the one that is named first wins: what is so close changes to and
# fro, where events time the steps, and matters to nobody.
TIE: Final = 0.01
# of a strategy that is the fastest nowhere but between two neighbouring points, and there for a narrower band, nothing is told
BAND: Final = 0.2
# by this share x is varied to see how fast the two that meet at a border part
_BESIDE: Final = 0.05
_STEEP_ENOUGH: Final = 1e-3


@dataclass(frozen=True)
class Point:
    """One strategy at one place of the map, x and y in SI. problem: why it cannot be trained so; all but it is None then.

    fits: whether it does into its devices' memory. time_to_target_s: where the scenario models convergence. framework: that it
    is trained with, "" where it cannot be trained."""

    x: float
    y: float
    strategy: str
    samples_per_s: float | None = None
    step_time_s: float | None = None
    fits: bool | None = None
    problem: str = ""
    time_to_target_s: float | None = None
    framework: str = ""
    framework_is_default: bool = False

    @property
    def pace(self) -> float:
        """What it is ranked by: how soon it is at the target, where that is modelled, else samples a second."""
        return 1 / self.time_to_target_s if self.time_to_target_s else self.samples_per_s or 0.0


@dataclass(frozen=True)
class Border:
    """Where the fastest changes: below x it is one strategy, from x on another; "" where none can be trained.

    low, high: between them the border is with a probability of 90 %, as far as the cluster's numbers are uncertain; 0 and
    infinite where that leads off the map; None where either cannot be trained.
    """

    y: float
    x: float
    below: str
    above: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Crossover:
    """The map. points: of all strategies, row by row. borders: row by row, from the left."""

    scenario: str
    x: MapAxis
    y: MapAxis
    strategies: Mapping[str, str]
    points: tuple[Point, ...]
    borders: tuple[Border, ...]

    @property
    def best(self) -> str:
        """What the strategies on the map are, in words."""
        modelled = any(point.time_to_target_s is not None for point in self.points)
        return "the soonest at the target loss, as modelled" if modelled else "the fastest strategy"

    @cached_property
    def winners(self) -> Mapping[tuple[float, float], str]:
        """The fastest at each point of the grid, by x and y; "" where none can be trained."""
        places: dict[tuple[float, float], list[Point]] = {}
        for point in self.points:
            places.setdefault((point.x, point.y), []).append(point)
        return {place: _fastest(found) for place, found in places.items()}

    def framework_words(self, strategy: str) -> str:
        """'pytorch-ddp, by default': the frameworks that a strategy is trained with; "" where it cannot be trained anywhere."""
        points = (point for point in self.points if point.strategy == strategy)
        words = dict.fromkeys(framework_words(point.framework, point.framework_is_default) for point in points)
        return " or ".join(filter(None, words))

    def segments(self, y: float) -> list[tuple[float, str]]:
        """The strategies that win along a row, each with the x from which on it does."""
        first = self.x.values[0]
        return [(first, self.winners[first, y]), *((one.x, one.above) for one in self.borders if one.y == y)]

    def plain(self) -> dict[str, Any]:
        """As data for JSON; numbers of fields in SI."""
        axes = {name: {"field": axis.field, "unit": axis.symbol, "values": axis.values}
                for name, axis in (("x", self.x), ("y", self.y))}  # fmt: skip
        borders = [asdict(one) | {end: _finite(getattr(one, end)) for end in ("low", "high")} for one in self.borders]
        return {
            "scenario": self.scenario,
            **axes,
            "strategies": dict(self.strategies),
            "points": [asdict(one) | {"wins": self.winners[one.x, one.y] == one.strategy} for one in self.points],
            "borders": borders,
            "tolerance": TOLERANCE,
        }

    def table(self) -> pd.DataFrame:
        """A row for each strategy at each point."""
        import pandas as pd

        rows = [asdict(one) | {"wins": self.winners[one.x, one.y] == one.strategy} for one in self.points]
        return pd.DataFrame(rows).rename(columns={"x": self.x.column, "y": self.y.column})

    def border_table(self) -> pd.DataFrame:
        """A row for each border."""
        import pandas as pd

        columns = {"x": self.x.column, "y": self.y.column, "low": f"low_{self.x.column}", "high": f"high_{self.x.column}"}
        names = ["y", "x", "below", "above", "low", "high"]
        return pd.DataFrame([asdict(one) for one in self.borders], columns=names).rename(columns=columns)


def crossover(
    reference: str | Path,
    x: str = "",
    y: str = "workers",
    strategies: Sequence[str] = (),
    points: int = 9,
    overrides: Sequence[str] = (),
) -> Crossover:
    """The map of a scenario that is given as `load` takes it. x, y: a field, or `field=from..to`; y also `field=one,two`; x is
    the bandwidth between nodes, or inside the only one, if none. strategies: names as `contenders` has them, a choice for the
    scenario if none. points: of x.

    Raises InputError where a field is no number, a range is none, or no strategy can be trained anywhere.
    """
    base = load(reference, overrides)
    axes = x_axis(base, x, points), y_axis(base, y)
    if axes[0].field == axes[1].field:
        raise InputError(f"--y {y}: the same field as x; give another")
    found = contenders(base, strategies)
    ground = _Predictor(base, reference, tuple(overrides), *axes, found)
    for y_value in axes[1].values:
        for one in found:
            ground.predict_row(one, y_value)
    places = [(one, each, y_value) for y_value in axes[1].values for each in axes[0].values for one in found]
    table = tuple(ground.point(*place) for place in places)
    if all(point.problem for point in table):
        raise InputError(f"no strategy can be trained anywhere on the map; {table[0].strategy}, the first: {table[0].problem}")
    borders = tuple(border for value in axes[1].values for border in ground.borders(value))
    return Crossover(base.name, *axes, {one.name: one.words for one in found}, table, borders)


class _Predictor:
    """Predicts strategies at places of the map, each once."""

    def __init__(
        self,
        base: Scenario,
        reference: str | Path,
        overrides: tuple[str, ...],
        x: MapAxis,
        y: MapAxis,
        found: Sequence[Contender],
    ) -> None:
        self.base, self.reference, self.overrides, self.x, self.y, self.contenders = base, reference, overrides, x, y, found
        self._points: dict[tuple[str, float, float], Point] = {}
        self._loaded: dict[tuple[str, ...], Scenario] = {}
        self._rows: dict[tuple[str, float], Scenario] = {}
        self._fits: dict[tuple[str, float, float | None], bool | None] = {}

    def point(self, contender: Contender, x: float, y: float) -> Point:
        """One strategy at one place."""
        key = (contender.name, x, y)
        if key not in self._points:
            self._points[key] = self._predicted(contender, x, y)
        return self._points[key]

    def _predicted(self, contender: Contender, x: float, y: float) -> Point:
        try:
            scenario = self.scenario(contender, x, y)
            run = timed(scenario)
            steps = to_target(scenario.convergence, run)["samples"] / run.samples if scenario.convergence else None
            return self._told(contender, x, y, run.step_time_s, steps, scenario)
        except InputError as error:
            return Point(x, y, contender.name, problem=one_line(error))

    def _told(self, contender: Contender, x: float, y: float, step_s: float, steps: float | None, scenario: Scenario) -> Point:
        """What there is to tell of a step time. steps: that it takes to the target, where that is modelled."""
        # what a rank holds does not follow from numbers of links
        key = (contender.name, y, None if self._is_number else x)
        if key not in self._fits:
            self._fits[key] = memory(scenario).fits
        target_s = None if steps is None else steps * step_s
        framework = scenario.framework.name, scenario.framework_is_default
        return Point(x, y, contender.name, scenario.total_samples / step_s, step_s, self._fits[key], "", target_s, *framework)

    def predict_row(self, contender: Contender, y: float) -> None:
        """One strategy at all values of x together, where that is a number of links and can be."""
        if not self._is_number:
            return
        try:
            scenario = self.scenario(contender, self.x.values[0], y)
            times_s = step_times_s(scenario, Differences({self.x.field: np.array(self.x.values)})).tolist()
            # such steps each end with an update by all samples
            steps = scenario.convergence.steps(scenario.total_samples) if scenario.convergence else None
            found = {x: self._told(contender, x, y, step_s, steps, scenario)
                     for x, step_s in zip(self.x.values, times_s, strict=True) if math.isfinite(step_s)}  # fmt: skip
        except InputError:
            # each says what is wrong with it by itself
            return
        self._points |= {(contender.name, x, y): point for x, point in found.items()}

    @property
    def _is_number(self) -> bool:
        """Whether nothing but times follows from x."""
        return self.x.field in NUMBERS

    def scenario(self, contender: Contender, x: float, y: float) -> Scenario:
        """What is predicted there, with nodes added where it needs more than there are. Raises InputError."""
        if not self._is_number:
            return self._built(contender, x, y)
        key = (contender.name, y)
        if key not in self._rows:
            self._rows[key] = self._built(contender, self.x.values[0], y)
        row = self._rows[key]
        return row.model_copy(update={"cluster": with_numbers(row.cluster, {self.x.field: x})})

    def _built(self, contender: Contender, x: float, y: float) -> Scenario:
        values = ((self.x, x), (self.y, y))
        ours = tuple(f"{axis.field}={axis.exactly(value)}" for axis, value in values if not axis.is_of_strategy)
        if ours not in self._loaded:
            self._loaded[ours] = load(self.reference, (*self.overrides, *ours)) if ours else self.base
        there = self._loaded[ours]
        strategy = contender.strategy(there, {axis.inner: value for axis, value in values if axis.is_of_strategy})
        cluster = with_nodes(there.cluster, strategy.nodes_needed(there.cluster))
        named = {} if contender.framework is None else {"framework": contender.framework}
        return rebuilt(there, strategy=strategy, cluster=cluster, **named)

    def winner(self, x: float, y: float) -> str:
        """The fastest of those that fit there; "" where none does."""
        return _fastest([self.point(one, x, y) for one in self.contenders])

    def borders(self, y: float) -> Iterator[Border]:
        """Along a row, from the left."""
        for left, right in pairwise(self.x.values):
            yield from self._between(left, right, y, self.winner(left, y), self.winner(right, y))

    def _between(self, left: float, right: float, y: float, below: str, above: str) -> Iterator[Border]:
        """By bisection of the logarithm, or of whole numbers."""
        if below == above:
            return
        middle = self.x.between(left, right, TOLERANCE)
        if middle is None:
            yield self._border(left, right, y, below, above)
            return
        here = self._winner_among(middle, y, below, above, is_wide=right > left * (1 + BAND))
        yield from self._between(left, middle, y, below, here)
        yield from self._between(middle, right, y, here, above)

    def _winner_among(self, x: float, y: float, below: str, above: str, is_wide: bool) -> str:
        """Of two neighbours' winners the faster one, unless a third is faster by more than is a tie, in a band that is wide."""
        points = [self.point(one, x, y) for one in self.contenders if is_wide or one.name in (below, above)]
        pair = [point for point in points if point.strategy in (below, above)]
        third, most = _fastest(points), max((point.pace for point in pair if point.fits), default=0.0)
        is_faster = any(point.pace > most * (1 + TIE) for point in points if point.strategy == third)
        return third if is_faster else _fastest(pair)

    def _border(self, left: float, right: float, y: float, below: str, above: str) -> Border:
        """Between neighbours; how sure it is follows from how fast the two part there, and from how sure their ratio is."""
        x = right if self.x.is_whole else math.sqrt(left * right)
        pair = [one for name in (below, above) for one in self.contenders if one.name == name]
        if len(pair) < 2 or self.x.is_whole or not all(self._runs(one, left, right, y) for one in pair):
            return Border(y, x, below, above)
        rise = self._log_ratio(pair, x * (1 + _BESIDE), y) - self._log_ratio(pair, x / (1 + _BESIDE), y)
        steepness = rise / (2 * math.log1p(_BESIDE))
        if not steepness >= _STEEP_ENOUGH:
            return Border(y, x, below, above, 0.0, math.inf)
        first, second = (self.scenario(one, x, y) for one in pair)
        told = apart(first, second, ratio=1.0)
        # where above is better than predicted, the border is further left
        low, high = (math.log(x) - math.log(ratio) / steepness for ratio in (told.high, told.low))
        is_left, is_right = low > math.log(self.x.values[0]), high < math.log(self.x.values[-1])
        return Border(y, x, below, above, math.exp(low) if is_left else 0.0, math.exp(high) if is_right else math.inf)

    def _runs(self, contender: Contender, left: float, right: float, y: float) -> bool:
        """Whether it can be trained and fits on both sides."""
        return all(self.point(contender, x, y).fits for x in (left, right))

    def _log_ratio(self, pair: Sequence[Contender], x: float, y: float) -> float:
        """Of the second's pace to the first's; not a number where either cannot be trained there."""
        first, second = (self.point(one, x, y).pace or math.nan for one in pair)
        return math.log(second / first)


def _fastest(points: Sequence[Point]) -> str:
    """The first of those that are as fast as the fastest and fit; "" where none does."""
    fitting = [(point.pace, point.strategy) for point in points if point.fits and point.samples_per_s is not None]
    most = max((rate for rate, _ in fitting), default=0.0)
    return next((name for rate, name in fitting if rate >= most * (1 - TIE)), "")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
