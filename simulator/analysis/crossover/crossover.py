"""crossover: the fastest strategy on a map of two fields, and the values at which the fastest strategy changes.

Every strategy is predicted at every point of a grid. Where the winner changes between neighbours along x, the border is
bisected until x is known to 1 %; this also finds a third strategy that wins between the two. The winner is then known for
every x, unless it changes more than once between two neighbouring points.

Where the scenario models convergence, the winner is the strategy that reaches the target loss first; intervals do not include
the convergence model's own error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.analysis.alternatives import Contender, contenders
from scaleproof.simulator.analysis.crossover.axes import MapAxis, x_axis, y_axis
from scaleproof.simulator.analysis.study.numeric_axes import NUMBERS, with_numbers
from scaleproof.simulator.analysis.study.priced_points import timed_together
from scaleproof.simulator.common.errors import InputError, naming_extras, one_line
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.prediction.accounting import to_target
from scaleproof.simulator.run.run import framework_words
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import ratio_interval

if TYPE_CHECKING:
    import pandas as pd

# relative accuracy of x at borders
TOLERANCE: Final = 0.01
# Of strategies whose throughputs differ by no more than this share, the one named first wins: the order of such strategies
# fluctuates where the event engine times the steps, and the difference is too small to matter.
SIMILAR: Final = 0.01
# A strategy that wins only between two neighbouring points, in a band narrower than this share of x, may be missed.
BAND: Final = 0.2
# relative change of x in the finite difference of two strategies' throughput ratio at a border
_STEP: Final = 0.05
_MIN_STEEPNESS: Final = 1e-3


@dataclass(frozen=True)
class Point:
    """The prediction of one strategy at one point of the map, x and y in SI.

    problem: why it cannot be trained; the results are None then. fits: whether it fits in the devices' memory.
    time_to_target_s: only where the scenario models convergence. framework: "" where the strategy cannot be trained.
    """

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
        """The value that ranks strategies, higher is better: 1 / time to target where that is modelled, else samples/s."""
        return 1 / self.time_to_target_s if self.time_to_target_s else self.samples_per_s or 0.0


@dataclass(frozen=True)
class Border:
    """A value of x at which the winner changes from `below` to `above`; "" where no strategy can be trained.

    low, high: 90 % interval from the uncertainty of the cluster's quantities; 0 and infinity where it extends beyond the map;
    None where one of the two cannot be trained.
    """

    y: float
    x: float
    below: str
    above: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Crossover:
    """The map. points: all strategies at all grid points, row by row. borders: row by row, by increasing x."""

    scenario: str
    x: MapAxis
    y: MapAxis
    strategies: Mapping[str, str]
    points: tuple[Point, ...]
    borders: tuple[Border, ...]

    def __repr__(self) -> str:
        wins = Counter(filter(None, self.winners.values()))
        words = ", ".join(f"{name} at {count}" for name, count in wins.most_common()) or "none can be trained"
        return f"{self.scenario}: {self.best} over {self.x.name} and {self.y.name}\n  of {len(self.winners)} points: {words}"

    @property
    def best(self) -> str:
        """The criterion by which strategies win, in words."""
        modelled = any(point.time_to_target_s is not None for point in self.points)
        return "the soonest at the target loss, as modelled" if modelled else "the fastest strategy"

    @cached_property
    def winners(self) -> Mapping[tuple[float, float], str]:
        """The winner at each (x, y) of the grid; "" where no strategy can be trained."""
        depends_on_position: dict[tuple[float, float], list[Point]] = {}
        for point in self.points:
            depends_on_position.setdefault((point.x, point.y), []).append(point)
        return {place: _fastest(points) for place, points in depends_on_position.items()}

    def framework_words(self, strategy: str) -> str:
        """The frameworks used for a strategy, such as 'pytorch-ddp, by default'; "" where it cannot be trained anywhere."""
        points = (point for point in self.points if point.strategy == strategy)
        words = dict.fromkeys(framework_words(point.framework, point.framework_is_default) for point in points)
        return " or ".join(filter(None, words))

    def segments(self, y: float) -> list[tuple[float, str]]:
        """The winners along a row, each with the x from which it wins."""
        first = self.x.values[0]
        return [(first, self.winners[first, y]), *((one.x, one.above) for one in self.borders if one.y == y)]

    def plain(self) -> dict[str, Any]:
        """The map as data for JSON; field values in SI."""
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

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per strategy and grid point."""
        import pandas as pd

        rows = [asdict(one) | {"wins": self.winners[one.x, one.y] == one.strategy} for one in self.points]
        return pd.DataFrame(rows).rename(columns={"x": self.x.column, "y": self.y.column})

    @naming_extras()
    def borders_to_frame(self) -> pd.DataFrame:
        """One row per border."""
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
    """Predicts the map of a scenario (a reference as for `load`).

    x, y: a field, or `field=from..to`; y also `field=one,two`. The default of x is the bandwidth between nodes, or of the node
    link where there is one node. strategies: names that `contenders` accepts; empty for its defaults. points: values of x.

    Raises InputError for a field that is not a number, an invalid range, or if no strategy can be trained anywhere.
    """
    base = load(reference, overrides)
    axes = x_axis(base, x, points), y_axis(base, y)
    if axes[0].field == axes[1].field:
        raise InputError(f"--y {y}: the same field as x; give another")
    candidates = contenders(base, strategies)
    predictor = _Predictor(base, reference, tuple(overrides), *axes, candidates)
    for y_value in axes[1].values:
        for one in candidates:
            predictor.predict_row(one, y_value)
    places = [(one, x_value, y_value) for y_value in axes[1].values for x_value in axes[0].values for one in candidates]
    table = tuple(predictor.point(*place) for place in places)
    if all(point.problem for point in table):
        raise InputError(f"no strategy can be trained anywhere on the map; {table[0].strategy}, the first: {table[0].problem}")
    borders = tuple(border for value in axes[1].values for border in predictor.borders(value))
    return Crossover(base.name, *axes, {one.name: one.words for one in candidates}, table, borders)


class _Predictor:
    """Predicts strategies at points of the map, and caches the predictions."""

    def __init__(
        self,
        base: Scenario,
        reference: str | Path,
        overrides: tuple[str, ...],
        x: MapAxis,
        y: MapAxis,
        candidates: Sequence[Contender],
    ) -> None:
        self.base, self.reference, self.overrides = base, reference, overrides
        self.x, self.y, self.contenders = x, y, candidates
        self._points: dict[tuple[str, float, float], Point] = {}
        self._loaded: dict[tuple[str, ...], Scenario] = {}
        self._rows: dict[tuple[str, float], Scenario] = {}
        self._fits: dict[tuple[str, float, float | None], bool | None] = {}

    def point(self, contender: Contender, x: float, y: float) -> Point:
        """The prediction of one strategy at one point."""
        key = (contender.name, x, y)
        if key not in self._points:
            self._points[key] = self._predicted(contender, x, y)
        return self._points[key]

    def _predicted(self, contender: Contender, x: float, y: float) -> Point:
        try:
            scenario = self.scenario(contender, x, y)
            run = timed(scenario)
            steps = to_target(scenario.convergence, run).samples / run.samples if scenario.convergence else None
            return self._point(contender, x, y, run.step_time_s, steps, scenario)
        except InputError as error:
            return Point(x, y, contender.name, problem=one_line(error))

    def _point(self, contender: Contender, x: float, y: float, step_s: float, steps: float | None, scenario: Scenario) -> Point:
        """The point of a predicted step time. steps: steps to the target, where convergence is modelled."""
        # the memory of a rank does not depend on the network
        key = (contender.name, y, None if self._is_link_field else x)
        if key not in self._fits:
            self._fits[key] = memory(scenario).fits
        target_s = None if steps is None else steps * step_s
        framework = scenario.framework.name, scenario.framework_is_default
        return Point(x, y, contender.name, scenario.total_samples / step_s, step_s, self._fits[key], "", target_s, *framework)

    def predict_row(self, contender: Contender, y: float) -> None:
        """Predicts one strategy at all values of x in one replay where possible: x has to be a field of links."""
        if not self._is_link_field:
            return
        try:
            scenario = self.scenario(contender, self.x.values[0], y)
            clusters = [with_numbers(scenario.cluster, {self.x.field: x}) for x in self.x.values]
            times_s = timed_together(scenario, clusters, intervals=False).step_s.tolist()
            # steps that can be replayed together are synchronous: each ends with one update by all samples
            steps = scenario.convergence.steps(scenario.total_samples) if scenario.convergence else None
            batch = {x: self._point(contender, x, y, step_s, steps, scenario)
                     for x, step_s in zip(self.x.values, times_s, strict=True) if math.isfinite(step_s)}  # fmt: skip
        except InputError:
            # each point reports its own problem when it is predicted separately
            return
        self._points |= {(contender.name, x, y): point for x, point in batch.items()}

    @property
    def _is_link_field(self) -> bool:
        """Whether x is a field of links, which changes times only."""
        return self.x.field in NUMBERS

    def scenario(self, contender: Contender, x: float, y: float) -> Scenario:
        """The scenario of one strategy at one point, with nodes added where the strategy needs more. Raises InputError."""
        if not self._is_link_field:
            return self._built(contender, x, y)
        key = (contender.name, y)
        if key not in self._rows:
            self._rows[key] = self._built(contender, self.x.values[0], y)
        row = self._rows[key]
        return row.model_copy(update={"cluster": with_numbers(row.cluster, {self.x.field: x})})

    def _built(self, contender: Contender, x: float, y: float) -> Scenario:
        values = ((self.x, x), (self.y, y))
        overrides = tuple(f"{axis.field}={axis.exactly(value)}" for axis, value in values if not axis.is_of_strategy)
        if overrides not in self._loaded:
            self._loaded[overrides] = load(self.reference, (*self.overrides, *overrides)) if overrides else self.base
        base = self._loaded[overrides]
        strategy = contender.strategy(base, {axis.inner: value for axis, value in values if axis.is_of_strategy})
        cluster = base.cluster.with_nodes(strategy.nodes_needed(base.cluster))
        named = {} if contender.framework is None else {"framework": contender.framework}
        return base.rebuilt(strategy=strategy, cluster=cluster, **named)

    def winner(self, x: float, y: float) -> str:
        """The winner at a point among the strategies that fit; "" if no strategy fits."""
        return _fastest([self.point(one, x, y) for one in self.contenders])

    def borders(self, y: float) -> Iterator[Border]:
        """The borders along a row, by increasing x."""
        for left, right in pairwise(self.x.values):
            yield from self._between(left, right, y, self.winner(left, y), self.winner(right, y))

    def _between(self, left: float, right: float, y: float, below: str, above: str) -> Iterator[Border]:
        """Borders between two values of x with winners `below` and `above`, by bisection of log x or of whole numbers."""
        if below == above:
            return
        middle = self.x.between(left, right, TOLERANCE)
        if middle is None:
            yield self._border(left, right, y, below, above)
            return
        winner = self._winner_among(middle, y, below, above, is_wide=right > left * (1 + BAND))
        yield from self._between(left, middle, y, below, winner)
        yield from self._between(middle, right, y, winner, above)

    def _winner_among(self, x: float, y: float, below: str, above: str, is_wide: bool) -> str:
        """The faster of the winners of two neighbouring points; in a wide band a third strategy if it is clearly faster."""
        points = [self.point(one, x, y) for one in self.contenders if is_wide or one.name in (below, above)]
        pair = [point for point in points if point.strategy in (below, above)]
        third, best = _fastest(points), max((point.pace for point in pair if point.fits), default=0.0)
        is_faster = any(point.pace > best * (1 + SIMILAR) for point in points if point.strategy == third)
        return third if is_faster else _fastest(pair)

    def _border(self, left: float, right: float, y: float, below: str, above: str) -> Border:
        """The border between two neighbouring x. Its interval is that of the throughput ratio divided by the slope of the log
        ratio over log x."""
        x = right if self.x.is_whole else math.sqrt(left * right)
        pair = [one for name in (below, above) for one in self.contenders if one.name == name]
        if len(pair) < 2 or self.x.is_whole or not all(self._runs(one, left, right, y) for one in pair):
            return Border(y, x, below, above)
        rise = self._log_score_ratio(pair, x * (1 + _STEP), y) - self._log_score_ratio(pair, x / (1 + _STEP), y)
        steepness = rise / (2 * math.log1p(_STEP))
        if not steepness >= _MIN_STEEPNESS:
            return Border(y, x, below, above, 0.0, math.inf)
        first, second = (self.scenario(one, x, y) for one in pair)
        speedup = ratio_interval(first, second, ratio=1.0)
        # if `above` is faster than predicted, the border is at a smaller x
        low, high = (math.log(x) - math.log(ratio) / steepness for ratio in (speedup.high, speedup.low))
        is_left, is_right = low > math.log(self.x.values[0]), high < math.log(self.x.values[-1])
        return Border(y, x, below, above, math.exp(low) if is_left else 0.0, math.exp(high) if is_right else math.inf)

    def _runs(self, contender: Contender, left: float, right: float, y: float) -> bool:
        """Whether a strategy can be trained and fits at both ends."""
        return all(self.point(contender, x, y).fits for x in (left, right))

    def _log_score_ratio(self, pair: Sequence[Contender], x: float, y: float) -> float:
        """Log of the second strategy's score over the first's; NaN where either cannot be trained."""
        first, second = (self.point(one, x, y).pace or math.nan for one in pair)
        return math.log(second / first)


def _fastest(points: Sequence[Point]) -> str:
    """The first strategy that fits and is about as fast as the fastest one that fits; "" if no strategy fits."""
    fitting = [(point.pace, point.strategy) for point in points if point.fits and point.samples_per_s is not None]
    best = max((score for score, _ in fitting), default=0.0)
    return next((name for score, name in fitting if score >= best * (1 - SIMILAR)), "")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
