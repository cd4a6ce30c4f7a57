"""crossover: the fastest strategy on a map of two fields, and the values at which the fastest strategy changes.

Every strategy is predicted at every point of a grid. Where the winner changes between neighbours along x, the border is
bisected until x is known to 1 %; this also finds a third strategy that wins between the two. The winner is then known for
every x, unless it changes more than once between two neighbouring points.

Where the scenario models convergence, the winner is the strategy that reaches the target loss first; intervals do not include
the convergence model's own error.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.analysis.alternatives import Contender, contenders
from scaleproof.simulator.analysis.crossover.axes import MapAxis, x_axis, y_axis
from scaleproof.simulator.analysis.study.axes import StudyAxis
from scaleproof.simulator.analysis.study.evaluate import Row, predicted, row_of, table
from scaleproof.simulator.analysis.study.grid import Variants
from scaleproof.simulator.analysis.variants import Variant, frameworks
from scaleproof.simulator.common.errors import InputError, naming_extras
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.prediction.accounting import to_target
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.pairwise import ratio_interval

if TYPE_CHECKING:
    import pandas as pd

# File of a map in its folder.
FILE: Final = "crossover.json"
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


class Point(Variant):
    """The prediction of one strategy at one point of the map, x and y in SI.

    fits: whether it fits in the devices' memory. time_to_target_s: only where the scenario models convergence. wins: whether it
    is the best of the strategies at a grid point.
    """

    x: int | float
    y: int | float
    strategy: str
    step_time_s: float | None = None
    fits: bool | None = None
    time_to_target_s: float | None = None
    wins: bool = False

    @property
    def pace(self) -> float:
        """The value that ranks strategies, higher is better: 1 / time to target where that is modelled, else samples/s."""
        return 1 / self.time_to_target_s if self.time_to_target_s else self.samples_per_s or 0.0


class Border(Record):
    """A value of x at which the winner changes from `below` to `above`; "" where no strategy can be trained.

    low, high: 90 % interval from the uncertainty of the cluster's quantities. Where it extends beyond the map, low is 0 and
    high None; both are None where the interval is not known.
    """

    y: int | float
    x: int | float
    below: str
    above: str
    low: float | None = None
    high: float | None = None


class Crossover(Record):
    """The map. strategies: in words, by name. points: all strategies at all grid points, row by row. borders: row by row, by
    increasing x. tolerance: their relative accuracy."""

    scenario: str
    x: MapAxis
    y: MapAxis
    strategies: dict[str, str]
    points: tuple[Point, ...]
    borders: tuple[Border, ...]
    tolerance: float = TOLERANCE

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
        won = {(point.x, point.y): point.strategy for point in self.points if point.wins}
        return {(x, y): won.get((x, y), "") for y in self.y.values for x in self.x.values}

    def framework_words(self, strategy: str) -> str:
        """The frameworks used for a strategy, such as 'pytorch-ddp, by default'; "" where it cannot be trained anywhere."""
        return frameworks(point for point in self.points if point.strategy == strategy)

    def segments(self, y: float) -> list[tuple[float, str]]:
        """The winners along a row, each with the x from which it wins."""
        first = self.x.values[0]
        return [(first, self.winners[first, y]), *((border.x, border.above) for border in self.borders if border.y == y)]

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per strategy and grid point."""
        return self._frame([point.to_dict() for point in self.points], "x", "y", "strategy")

    @naming_extras()
    def borders_to_frame(self) -> pd.DataFrame:
        """One row per border."""
        return self._frame([border.to_dict() for border in self.borders], *Border.model_fields)

    def _frame(self, rows: list[dict[str, Any]], *first: str) -> pd.DataFrame:
        """A table whose names of columns have the fields of x and y. first: its first columns."""
        import pandas as pd

        table = pd.DataFrame(rows, columns=list(dict.fromkeys([*first, *(name for row in rows[:1] for name in row)])))
        columns = {"x": self.x.column, "y": self.y.column, "low": f"low_{self.x.column}", "high": f"high_{self.x.column}"}
        return table.rename(columns=columns)


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
    predictions = _Predictions(reference, overrides, *axes, contenders(base, strategies))
    grid = predictions.grid()
    if all(point.problem for point in grid):
        raise InputError(f"no strategy can be trained anywhere on the map; {grid[0].strategy}, the first: {grid[0].problem}")
    borders = tuple(border for y_value in axes[1].values for border in predictions.borders(y_value))
    words = {name: contender.words for name, contender in predictions.contenders.items()}
    return Crossover(scenario=base.name, x=axes[0], y=axes[1], strategies=words, points=_with_winners(grid), borders=borders)


class _Predictions:
    """Predictions of strategies at points of the map, each made once, and the borders between the strategies that win."""

    def __init__(
        self, reference: str | Path, overrides: Sequence[str], x: MapAxis, y: MapAxis, strategies: Sequence[Contender]
    ) -> None:
        self.x, self.y = x, y
        # all strategies at a point have this scenario in common
        self.loaded = functools.cache(lambda *further: load(reference, (*overrides, *further)))
        self.contenders = {contender.name: contender for contender in strategies}
        self._points: dict[tuple[str, float, float], Point] = {}

    def grid(self) -> tuple[Point, ...]:
        """All strategies at all grid points, row by row."""
        strategies = StudyAxis.named_values("strategy", {name: name for name in self.contenders})
        variants = Variants((self.y.of_study, self.x.of_study, strategies), lambda y, x, name: self.scenario(name, x, y))
        places = itertools.product(self.y.values, self.x.values, self.contenders)
        for (y, x, name), row in zip(places, table(variants, _results), strict=True):
            self._points[name, x, y] = Point.of(row, x=x, y=y, strategy=name)
        return tuple(self._points.values())

    def point(self, strategy: str, x: float, y: float) -> Point:
        """The prediction of one strategy at one point, also between those of the grid."""
        if (strategy, x, y) not in self._points:
            row = predicted(lambda: self.scenario(strategy, x, y), _results)
            self._points[strategy, x, y] = Point.of(row, x=x, y=y, strategy=strategy)
        return self._points[strategy, x, y]

    def scenario(self, strategy: str, x: float, y: float) -> Scenario:
        """The scenario of one strategy at one point, with nodes added where the strategy needs more. Raises InputError."""
        values, contender = ((self.x, x), (self.y, y)), self.contenders[strategy]
        overrides = [f"{axis.field}={axis.exactly(value)}" for axis, value in values if not axis.is_of_strategy]
        base = self.loaded(*overrides)
        plan = contender.strategy(base, {axis.inner: value for axis, value in values if axis.is_of_strategy})
        cluster = base.cluster.with_nodes(plan.nodes_needed(base.cluster))
        named = {} if contender.framework is None else {"framework": contender.framework}
        return base.rebuilt(strategy=plan, cluster=cluster, **named)

    def borders(self, y: float) -> Iterator[Border]:
        """The borders along a row, by increasing x."""
        winners = [_fastest([self.point(name, x, y) for name in self.contenders]) for x in self.x.values]
        for ends, names in zip(pairwise(self.x.values), pairwise(winners), strict=True):
            yield from self._between(*ends, y, *names)

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
        points = [self.point(name, x, y) for name in self.contenders if is_wide or name in (below, above)]
        pair = [point for point in points if point.strategy in (below, above)]
        third, best = _fastest(points), max((point.pace for point in pair if point.fits), default=0.0)
        is_faster = any(point.pace > best * (1 + SIMILAR) for point in points if point.strategy == third)
        return third if is_faster else _fastest(pair)

    def _border(self, left: float, right: float, y: float, below: str, above: str) -> Border:
        """The border between two neighbouring x. Its interval is that of the throughput ratio divided by the slope of the log
        ratio over log x."""
        if self.x.is_whole:
            return Border(y=y, x=right, below=below, above=above)
        x, names = math.sqrt(left * right), (below, above)
        if not all(name and self.point(name, end, y).fits for name in names for end in (left, right)):
            return Border(y=y, x=x, below=below, above=above)
        # NaN where a strategy cannot be trained
        (below_left, above_left), (below_right, above_right) = (
            [self.point(name, x * factor, y).pace or math.nan for name in names] for factor in (1 / (1 + _STEP), 1 + _STEP)
        )
        steepness = math.log(above_right / below_right * below_left / above_left) / (2 * math.log1p(_STEP))
        if not steepness >= _MIN_STEEPNESS:
            return Border(y=y, x=x, below=below, above=above, low=0.0)
        speedup = ratio_interval(self.scenario(below, x, y), self.scenario(above, x, y), ratio=1.0)
        # if `above` is faster than predicted, the border is at a smaller x
        low, high = (math.log(x) - math.log(ratio) / steepness for ratio in (speedup.high, speedup.low))
        is_left, is_right = low > math.log(self.x.values[0]), high < math.log(self.x.values[-1])
        ends = {"low": math.exp(low) if is_left else 0.0, "high": math.exp(high) if is_right else None}
        return Border(y=y, x=x, below=below, above=above, **ends)


def _results(scenario: Scenario) -> Row:
    """The columns of a point: those that a map needs, without the efficiency, whose baseline takes as long again."""
    run = timed(scenario)
    convergence = scenario.convergence
    steps = None if convergence is None else to_target(convergence, run).samples / run.samples
    times = {} if steps is None else {"time_to_target_s": steps * run.step_time_s}
    return row_of(run) | {"fits": memory(scenario).fits, **times}


def _with_winners(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points of the grid, of which the winner at each place is marked."""
    rivals: dict[tuple[float, float], list[Point]] = {}
    for point in points:
        rivals.setdefault((point.x, point.y), []).append(point)
    winners = {place: _fastest(here) for place, here in rivals.items()}
    return tuple(point.model_copy(update={"wins": winners[point.x, point.y] == point.strategy}) for point in points)


def _fastest(points: Sequence[Point]) -> str:
    """The first strategy that fits and is about as fast as the fastest one that fits; "" if no strategy fits."""
    fitting = [point for point in points if point.fits]
    best = max((point.pace for point in fitting), default=0.0)
    return next((point.strategy for point in fitting if point.pace >= best * (1 - SIMILAR)), "")
