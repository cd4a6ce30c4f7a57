"""A study that `sweep` wrote, with its axes classified as strategies, sizes, or circumstances.

Nothing in the folder is trusted: files may be missing, cut short, or from someone else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.reports.read.study_folder import StudyFolder
from scaleproof.simulator.analysis.study.study import Numbers
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_number
from scaleproof.simulator.scenario.fields import GPUS

if TYPE_CHECKING:
    import pandas as pd

# maximum number of lines in a figure
MOST_LINES: Final = 12
# maximum number of values of a circumstance that replaces strategies as lines
_FEW: Final = 7
# maximum number of combinations whose ranks are computed from scenarios, 15 ms each
_MOST_COMBINATIONS: Final = 400
_QUANTITY: Final = re.compile(r"([-+]?[\d_.]+(?:[eE][-+]?\d+)?)\s*(\D*)")
_IMAGES: Final = ("resnet", "vgg", "alexnet", "inception_v3")


@dataclass(frozen=True)
class Dimension:
    """An axis, or several zipped axes. codes: index of each point's value; words, numbers: texts and SI numbers of the
    values, numbers empty if they are not numeric."""

    name: str
    codes: Numbers
    words: tuple[str, ...]
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Studied:
    """A study for figures.

    points: the table, with added columns `line`, `x`, `x_words`, `gpus`, `rate`, `rate_low`, `rate_high`, and `choices` (the
    words of all circumstances). across: name of x. unit: unit of rates. strategies: whether lines are strategies.
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


def studied(found: StudyFolder) -> Studied:
    """Classifies the axes of a study and adds the columns that figures need."""
    points = found.points.copy()
    dimensions = _dimensions(found)
    points["gpus"] = _gpus(found)
    named = [one for one in dimensions if not one.numbers]
    numeric = [one for one in dimensions if one.numbers]
    sizes = [one for one in numeric if _changes_gpus(one, dimensions, points)]
    circumstances = [one for one in numeric if one not in sizes]
    across = None
    if not sizes and circumstances:
        across = max(circumstances, key=lambda one: len(one.words))
        circumstances.remove(across)
    strategies = bool(named)
    if not named:
        named = [one for one in circumstances if len(one.words) <= _FEW][:1]
        circumstances = [one for one in circumstances if one not in named]
    points["line"] = _line(named, strategies, found)
    points["x"] = points["gpus"] if across is None else np.array(across.numbers)[across.codes]
    points["x_words"] = [f"{x:,.0f}" for x in points["gpus"].fillna(0)] if across is None else _words(across)
    points["choices"] = list(zip(*map(_words, circumstances), strict=True)) if circumstances else [()] * len(points)
    unit = _rates(points, found.model_kind)
    return Studied(found, points, across.name if across else "GPUs", tuple(circumstances), unit, strategies)


def _words(one: Dimension) -> list[str]:
    """Words of the value of each point."""
    return [one.words[code] for code in one.codes]


def _line(named: Sequence[Dimension], strategies: bool, found: StudyFolder) -> list[str]:
    if not named:
        return [found.strategy_name] * len(found.points)
    columns = [_words(one) if strategies else [f"{one.name} {words}" for words in _words(one)] for one in named]
    return [", ".join(words) for words in zip(*columns, strict=True)]


def _rates(points: pd.DataFrame, model_kind: str) -> str:
    """Adds the rate with its interval to the points, and returns its unit."""
    tokens = points["tokens_per_s"].notna().any()
    points["rate"] = points["tokens_per_s"] if tokens else points["samples_per_s"]
    for ours, theirs in (("rate_low", "high_s"), ("rate_high", "low_s")):
        points[ours] = points["rate"] * points["step_time_s"] / points[theirs]
    if tokens:
        return "tokens"
    return "images" if model_kind in _IMAGES else "samples"


def _dimensions(found: StudyFolder) -> list[Dimension]:
    """The dimensions by the study, or by the table's columns if the study cannot be read."""
    study, points = found.study, found.points
    if study is None:
        return [_column(points[name], short(name)) for name in found.axes]
    places = study.places(points["point"].to_numpy())
    result = []
    for group in study.groups:
        axes = [study.axes[i] for i in group]
        # names that the study gives say what the values zipped with them are
        axes = [axis for axis in axes if axis.named] or axes
        parts = [axis.table_values if axis.named else [_value_words(value) for value in axis.values] for axis in axes]
        words = tuple(", ".join(dict.fromkeys(row)) for row in zip(*parts, strict=True))
        numbers = (axis.table_values for axis in axes if all(_is_number(value) for value in axis.table_values))
        name = " and ".join(short(axis.field) for axis in axes)
        result.append(Dimension(name, places[:, group[0]], words, tuple(map(float, next(numbers, ())))))
    return result


def _column(values: pd.Series[Any], name: str) -> Dimension:
    import pandas as pd

    codes, found = pd.factorize(values, use_na_sentinel=False)
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    values_list = found.tolist()
    words = tuple(format_number(value) if numeric else str(value) for value in values_list)
    return Dimension(name, codes.astype(np.int64), words, tuple(map(float, values_list)) if numeric else ())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_words(value: object) -> str:
    """'31.6 Gbit/s' from '31.6228 Gbit/s'."""
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value.strip())):
        return f"{format_number(float(match[1]))} {match[2]}".strip()
    return format_number(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def short(field: str) -> str:
    """'network bandwidth' from 'cluster.network.bandwidth'."""
    if field == GPUS:
        return "GPUs"
    parts = field.split(".")
    return " ".join(parts[1:] if len(parts) > 1 else parts).replace("_", " ")


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


def _changes_gpus(one: Dimension, dimensions: Sequence[Dimension], points: pd.DataFrame) -> bool:
    """Whether points that differ only in this dimension train on different numbers of GPUs."""
    others = [str(list(codes)) for codes in zip(*(two.codes for two in dimensions if two is not one), strict=True)]
    counts = points.groupby(others or [""] * len(points))["gpus"].nunique()
    return bool((counts > 1).any())
