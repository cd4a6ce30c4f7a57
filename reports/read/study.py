"""A study that `sweep` wrote, with its axes classified as strategies, sizes, or circumstances.

Nothing in the folder is trusted: files may be missing, cut short, or from someone else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.reports.read.dimensions import Dimension, dimensions
from scaleproof.reports.read.study_folder import StudyFolder
from scaleproof.simulator.common.errors import ScaleproofError

if TYPE_CHECKING:
    import pandas as pd

# maximum number of lines in a figure
MOST_LINES: Final = 8
# maximum number of values of a circumstance that replaces strategies as lines
_FEW: Final = 7
# maximum number of combinations whose ranks are computed from scenarios, 15 ms each
_MOST_COMBINATIONS: Final = 400
_IMAGES: Final = ("resnet", "vgg", "alexnet", "inception_v3")


@dataclass(frozen=True)
class StudyTable:
    """A study for figures.

    points: the table, with added columns `line`, `x`, `x_words`, `gpus`, `rate`, `rate_low`, `rate_high`, `cost_USD` (of a
    million units), and `choices` (the words of all circumstances). across: name of x. unit: unit of rates. strategies: whether
    lines are settings rather than quantities.
    """

    found: StudyFolder
    points: pd.DataFrame
    across: str
    circumstances: tuple[Dimension, ...]
    unit: str
    strategies: bool

    @cached_property
    def good(self) -> pd.DataFrame:
        """Points with a result that fit into memory, as far as known."""
        return self.points[self.points["rate"].notna() & ~self.points["fits"].eq(False)]

    def under(self, choices: tuple[str, ...]) -> pd.DataFrame:
        """The good points under some circumstances."""
        return self.good[[one == choices for one in self.good["choices"]]]

    @property
    def best(self) -> pd.Series[Any] | None:
        """The fastest point; the first of several equally fast ones."""
        good = self.good
        return good.iloc[int(good["rate"].argmax())] if len(good) else None

    @cached_property
    def lines(self) -> list[str]:
        """Names of lines, the fastest first, at most as many as a figure can show."""
        shown = self.points if self.good.empty else self.good
        fastest = shown.groupby("line", sort=False)["rate"].max().sort_values(ascending=False, kind="stable")
        return [str(name) for name in fastest.index[:MOST_LINES]]

    @property
    def choices(self) -> list[tuple[str, ...]]:
        """Combinations of circumstances with points, those of the best point first."""
        best = self.best
        found = dict.fromkeys(self.points["choices"])
        return list(found) if best is None else list(dict.fromkeys([best["choices"], *found]))


def studied(found: StudyFolder) -> StudyTable:
    """Classifies the axes of a study and adds the columns that figures need."""
    points = found.points.copy()
    all_dimensions = dimensions(found)
    points["gpus"] = _gpus(found)
    settings = [one for one in all_dimensions if not one.numbers]
    numeric = [one for one in all_dimensions if one.numbers]
    sizes = [one for one in numeric if _changes_gpus(one, all_dimensions, points)]
    circumstances = [one for one in numeric if one not in sizes]
    across = None if sizes or not circumstances else max(circumstances, key=lambda one: (_is_batch(one), len(one.words)))
    if across is not None:
        circumstances.remove(across)
    strategies = bool(settings)
    lines, others = _as_many_lines_as_readable(settings)
    if not lines:
        lines = [one for one in circumstances if len(one.words) <= _FEW][:1]
        circumstances = [one for one in circumstances if one not in lines]
    circumstances += others
    points["line"] = _line(lines, strategies, found)
    points["x"] = points["gpus"] if across is None else np.array(across.numbers)[across.codes]
    points["x_words"] = [f"{x:,.0f}" for x in points["gpus"].fillna(0)] if across is None else across.of_points
    choices = zip(*(one.of_points for one in circumstances), strict=True)
    points["choices"] = list(choices) if circumstances else [()] * len(points)
    unit = _rates(points, found.model_kind)
    return StudyTable(found, points, across.name if across else "GPUs", tuple(circumstances), unit, strategies)


def _is_batch(one: Dimension) -> bool:
    return one.name.startswith(("batch", "per worker", "total"))


def _as_many_lines_as_readable(settings: Sequence[Dimension]) -> tuple[list[Dimension], list[Dimension]]:
    """The settings whose combinations are lines, and those that are choosers because there would be too many lines."""
    lines: list[Dimension] = []
    others: list[Dimension] = []
    for one in settings:
        (lines if math.prod(len(two.words) for two in (*lines, one)) <= MOST_LINES or not lines else others).append(one)
    return lines, others


def _line(lines: Sequence[Dimension], strategies: bool, found: StudyFolder) -> list[str]:
    if not lines:
        return [found.strategy_name] * len(found.points)
    columns = [one.of_points if strategies else [f"{one.name} {words}" for words in one.of_points] for one in lines]
    return [", ".join(words) for words in zip(*columns, strict=True)]


def _rates(points: pd.DataFrame, model_kind: str) -> str:
    """Adds the rate with its interval, and the cost of a million units, to the points. Returns the unit."""
    tokens = points["tokens_per_s"].notna().any()
    points["rate"] = points["tokens_per_s"] if tokens else points["samples_per_s"]
    for ours, theirs in (("rate_low", "high_s"), ("rate_high", "low_s")):
        points[ours] = points["rate"] * points["step_time_s"] / points[theirs]
    points["cost_USD"] = points["cost_USD_per_million_samples"] * points["samples_per_s"] / points["rate"]
    if tokens:
        return "tokens"
    return "images" if model_kind in _IMAGES else "samples"


def _gpus(found: StudyFolder) -> list[float]:
    """Number of training ranks of each point, by its scenario; all ranks if that is not known."""
    study, points = found.study, found.points
    ranks: list[float] = points["ranks"].astype(float).tolist()
    if study is None:
        return ranks
    others = [i for i in range(len(study.axes)) if i not in study.numbers]
    places = study.places(points["point"].to_numpy())
    combinations, first, which = np.unique(places[:, others], axis=0, return_index=True, return_inverse=True)
    if len(combinations) > _MOST_COMBINATIONS:
        return ranks
    known = []
    for i in first.tolist():
        try:
            known.append(float(study.scenario(places[i]).strategy.training_ranks))
        except ScaleproofError:
            known.append(ranks[i])
    return [known[i] for i in which.ravel().tolist()]


def _changes_gpus(one: Dimension, among: Sequence[Dimension], points: pd.DataFrame) -> bool:
    """Whether points that differ only in this dimension train on different numbers of GPUs."""
    others = [str(list(codes)) for codes in zip(*(two.codes for two in among if two is not one), strict=True)]
    counts = points.groupby(others or [""] * len(points))["gpus"].nunique()
    return bool((counts > 1).any())
