"""Evaluates claims: predicts an experiment's lines along its axis, and finds where the claim holds.

The claim is tested at the values of the axis; between two values with different results, the border is bisected.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, cast

from scaleproof.proof.claims.claim import Claim, ClaimAxis, ClaimExperiment, Place, number_text
from scaleproof.proof.claims.quantities import KINDS
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run, framework_words
from scaleproof.simulator.scenario.load import build
from scaleproof.simulator.scenario.schema import Scenario

Verdict = Literal["holds", "holds when", "does not hold"]
Forecast = Callable[[Scenario], Run]

# borders are found to this share of the axis' value
TOLERANCE: Final = 0.01


@dataclass(frozen=True)
class AxisPoint:
    """A value of the axis. values: the quantity of each line. says: whether the claim applies there."""

    x: Place
    values: Mapping[str, float]
    says: bool
    holds: bool


@dataclass(frozen=True)
class Stretch:
    """A part of the axis where the claim holds. An end is None at the end of the axis."""

    begin: float | None
    end: float | None


@dataclass(frozen=True)
class ExperimentResult:
    """The result of an experiment. points: in the order of the axis. borders: values where the claim begins or ceases to
    hold, in the same order; None if not computed. frameworks: of each line; empty if measured."""

    experiment: ClaimExperiment
    points: tuple[AxisPoint, ...]
    borders: tuple[float, ...] | None
    frameworks: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def telling(self) -> tuple[AxisPoint, ...]:
        """The points to which the claim applies."""
        return tuple(point for point in self.points if point.says)

    @property
    def verdict(self) -> Verdict:
        """Verdict over the points where the claim applies."""
        holding = [point.holds for point in self.telling]
        if self.borders or len(set(holding)) == 2:
            return "holds when"
        return "holds" if all(holding) else "does not hold"

    @property
    def condition(self) -> str:
        """Text of where the claim holds; empty if everywhere or nowhere."""
        axis = self.experiment.axis
        if self.verdict != "holds when":
            return ""
        if self.borders is None:
            return f"{axis.name} {self._where(True)}; not {self._where(False)}"
        return " or ".join(_words(axis, stretch) for stretch in self.stretches)

    def _where(self, holds: bool) -> str:
        return listed([self.experiment.axis.text(one.x) for one in self.telling if one.holds == holds])

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """The stretches of the axis where the claim holds."""
        assert self.borders is not None, "measured points have no borders between them"
        edges: list[float | None] = [None, *self.borders, None]
        first = self.telling[0].holds
        pairs = [pair for number, pair in enumerate(pairwise(edges)) if (number % 2 == 0) == first]
        return tuple(Stretch(begin, end) for begin, end in pairs)

    def tested(self, point: AxisPoint) -> float:
        """The value that is compared with the bound."""
        return self.experiment.test.value(point.values)


def listed(texts: Sequence[str]) -> str:
    """'1, 2 or 4'."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _words(axis: ClaimAxis, stretch: Stretch) -> str:
    """Text of a condition: 'workers ≥ 8'."""
    begin, end = stretch.begin, stretch.end
    if axis.whole and end is not None:
        end -= 1
    if begin is None:
        assert end is not None, "else it holds everywhere"
        return f"{axis.name} ≤ {axis.text(end)}"
    if end is None:
        return f"{axis.name} ≥ {axis.text(begin)}"
    if begin == end:
        return f"{axis.name} {axis.text(end)}"
    return f"{axis.name} between {number_text(begin)} and {axis.text(end)}"


class ExperimentScenarios:
    """The scenarios of an experiment and their values. Each scenario is predicted once."""

    def __init__(self, claim: Claim, experiment: ClaimExperiment, forecast: Forecast = timed) -> None:
        self._claim, self._experiment, self._forecast = claim, experiment, forecast
        self._runs: dict[tuple[str, ...], tuple[Scenario, list[Run]]] = {}
        self._base, self._path = _base(claim, experiment)

    def scenario(self, line: str, place: Place) -> Scenario:
        """The scenario of a line at a value of the axis. Raises ScenarioError."""
        return build(copy.deepcopy(self._base), self._path, self._experiment.overrides(line, place))

    def value(self, line: str, place: Place) -> float:
        """The quantity of a line at a value of the axis."""
        key = tuple(self._experiment.overrides(line, place))
        if key not in self._runs:
            self._runs[key] = (self.scenario(line, place), [])
        scenario, made = self._runs[key]

        def run() -> Run:
            if not made:
                made.append(self._forecast(scenario))
            return made[0]

        return read(self._experiment, line, place, scenario, run)

    def frameworks(self, place: Place) -> dict[str, str]:
        """The framework of each line at a value of the axis: 'pytorch-ddp, by default'."""
        scenarios = {line: self.scenario(line, place) for line in self._experiment.lines}
        return {line: framework_words(one.framework.name, one.framework_is_default) for line, one in scenarios.items()}

    def point(self, place: Place, lines: Sequence[str]) -> AxisPoint:
        """A point of the given lines, which include those of the test."""
        return point_of(self._experiment, place, {line: self.value(line, place) for line in lines})


def read(experiment: ClaimExperiment, line: str, place: Place, scenario: Scenario, run: Callable[[], Run]) -> float:
    """The quantity of a line's run."""
    quantity = KINDS[experiment.quantity_of(line)]
    return quantity.read(scenario, run) * experiment.lines[line].rounds(place)


def point_of(experiment: ClaimExperiment, place: Place, values: Mapping[str, float]) -> AxisPoint:
    """A point with the result of the test."""
    test = experiment.test
    return AxisPoint(place, values, test.says(values), test.holds(values))


def evaluate(claim: Claim, experiment: ClaimExperiment | None = None, forecast: Forecast = timed) -> ExperimentResult:
    """Predicts the result of a claim's experiment, or of a given one.

    Raises ScenarioError for an invalid scenario, InputError if the claim applies nowhere on the axis.
    """
    experiment = experiment or claim
    ground = ExperimentScenarios(claim, experiment, forecast)
    points = tuple(ground.point(place, list(experiment.lines)) for place in experiment.axis.places)
    found = ExperimentResult(experiment, points, None, ground.frameworks(experiment.axis.places[0]))
    if not found.telling:
        raise InputError(f"{claim.path}: test: the condition `where` holds nowhere on the axis; give another axis or condition")
    if not experiment.axis.is_number or experiment.axis.values is not None:
        return found
    found = replace(found, borders=tuple(_borders(ground, experiment, found.telling)))
    unseen = [ground.point(x, list(experiment.lines)) for x in _between_points(found)]
    return replace(found, points=tuple(sorted([*points, *unseen], key=lambda point: cast(float, point.x))))


def _between_points(found: ExperimentResult) -> Iterator[float]:
    """A value in the middle of each stretch that no point is in, so that the values show where the claim holds."""
    for stretch in found.stretches if found.verdict == "holds when" else ():
        begin, end = stretch.begin, stretch.end
        if begin is None or end is None:
            continue
        if any(begin <= cast(float, point.x) <= end for point in found.telling if point.holds):
            continue
        middle = math.sqrt(begin * end)
        rounded = float(f"{middle:.2g}")
        # borders are known to the tolerance, so that a value close to one may be beyond it
        inside = begin * (1 + TOLERANCE) < rounded < end / (1 + TOLERANCE)
        yield math.floor(middle) if found.experiment.axis.whole else rounded if inside else middle


def _borders(ground: ExperimentScenarios, experiment: ClaimExperiment, points: Sequence[AxisPoint]) -> Iterator[float]:
    """The crossings of the bound's ends; two between a point below and a point above the bound."""
    for left, right in pairwise(points):
        assert isinstance(left.x, int | float), "a range is one of numbers"
        assert isinstance(right.x, int | float), "as above"
        ends = [_bisected(ground, experiment, left.x, right.x, side) for side in _crossed(experiment, left, right)]
        # between whole numbers a value may step over what holds
        yield from ends if len(set(ends)) == len(ends) else ()


def _crossed(experiment: ClaimExperiment, left: AxisPoint, right: AxisPoint) -> list[int]:
    """Sides of the bound that are left between two consecutive points, without the last side."""
    first, last = (experiment.test.side(point.values) for point in (left, right))
    return list(range(first, last, 1 if first < last else -1))


def _bisected(ground: ExperimentScenarios, experiment: ClaimExperiment, left: float, right: float, side: int) -> float:
    """The value at which a side is left: the first whole number beyond it, or between two numbers within the tolerance."""
    test = experiment.test
    rises = side < test.side(ground.point(right, test.needed).values)

    def is_left(x: float) -> bool:
        here = test.side(ground.point(x, test.needed).values)
        return here > side if rises else here < side

    while (right - left > 1) if experiment.axis.whole else (right > left * (1 + TOLERANCE)):
        middle = (left + right) // 2 if experiment.axis.whole else math.sqrt(left * right)
        left, right = (left, middle) if is_left(middle) else (middle, right)
    return right if experiment.axis.whole else math.sqrt(left * right)


def _base(claim: Claim, experiment: ClaimExperiment) -> tuple[Located, Path]:
    """The base scenario of all lines, unparsed, and the folder of its relative paths."""
    given = experiment.scenario
    if isinstance(given, str):
        path = claim.path.parent / given if "/" in given else catalog.find_scenario(given)
        return yaml_file.read(path), path
    fields = {"name": claim.name} | dict(given)
    return Located(copy.deepcopy(fields), {(): f"{claim.path}: scenario"}), claim.path
