"""A picture of a claim: the compared lines, the bound, and measurements."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.proof.claims.claim import ClaimExperiment, number_text
from scaleproof.proof.claims.evaluate import ExperimentResult
from scaleproof.proof.claims.quantities import KINDS, ratio
from scaleproof.proof.claims.result import Result, day, verdict
from scaleproof.reports.charts import style
from scaleproof.reports.charts.style import Format, label, render
from scaleproof.simulator.common.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE, style.ORANGE, style.SKY, style.INK, style.GREY)
_SHAPES: Final = "os^DvPX*"
_HOLDS: Final = "#DCEFE6"
_PANEL_IN: Final = 3.1
_LONGEST: Final = 90
_LINE: Final = 32
# between ticks, in a unit of bytes, and the number of ticks
_ROUND: Final = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 250)
_MOST_TICKS: Final = 5
# points of a curve at which the bound is tested
_SAMPLES: Final = 400


def figure(result: Result, form: Format) -> bytes:
    """Panels from the top: the lines; the tested ratio, if any; measurements. The claim holds in green areas."""
    panels = 1 + (result.predicted.experiment.test.against is not None) + (result.measured is not None)
    return render(_PANEL_IN * panels, lambda canvas: _draw(canvas, result, panels), form, result.claim.claim)


def _draw(canvas: Figure, result: Result, panels: int) -> None:
    canvas.suptitle(f"{label(result.claim.claim, 100)}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    columns = iter(canvas.subplots(panels, 1, squeeze=False)[:, 0])
    predicted = result.predicted
    axes = next(columns)
    _lines(axes, predicted)
    if predicted.experiment.test.against is None:
        _bounds(axes, predicted.experiment)
    style.title(axes, _title("predicted", predicted))
    if predicted.experiment.test.against is not None:
        axes = next(columns)
        _tested(axes, {"predicted": predicted})
        _bounds(axes, predicted.experiment)
    if result.measured and result.foretold and result.record:
        axes = next(columns)
        _tested(axes, {"predicted": result.foretold, "measured": result.measured})
        _bounds(axes, result.measured.experiment)
        axes.legend(loc="best")
        style.title(axes, _title(f"measured on netlab, {day(result.record.date)}", result.measured))


def _title(side: str, found: ExperimentResult) -> str:
    """The verdict of a panel: 'predicted: true only for workers ≥ 8'."""
    words = verdict(found).removeprefix("Depends: ")
    return textwrap.fill(label(f"{side}: {words[0].lower()}{words[1:]}", 2 * _LONGEST), _LONGEST)


def _lines(axes: Axes, found: ExperimentResult) -> None:
    """Draws the values of each line."""
    experiment = found.experiment
    places = _places(axes, found)
    for number, name in enumerate(experiment.lines):
        values = np.array([point.values[name] for point in found.points])
        # what does not fit has no throughput, which a logarithm cannot show
        values = np.where(values > 0, values, np.nan) if experiment.quantity == "fitting_throughput" else values
        axes.plot(places, values, color=_COLOURS[number], marker=_SHAPES[number], markersize=5, label=label(name))
    quantity = KINDS[experiment.quantity]
    limits = [] if experiment.test.against else _limits(experiment)
    _scaled(axes, quantity.text, [*limits, *(value for point in found.points for value in point.values.values())])
    axes.set_ylabel(_wrapped(quantity.words))
    _shaded(axes, found, places)
    axes.legend(loc="best")


def _tested(axes: Axes, sides: Mapping[str, ExperimentResult]) -> None:
    """Draws the values that are compared with the bound: hollow marks for predictions, filled marks for measurements."""
    last = list(sides.values())[-1]
    test, experiment = last.experiment.test, last.experiment
    places, drawn = _places(axes, last), _limits(experiment)
    for name, found in sides.items():
        values = [found.tested(point) if np.isfinite(found.tested(point)) else np.nan for point in found.points]
        looks: dict[str, Any] = {"linestyle": ":", "linewidth": 1.2} if name == "measured" else {"markerfacecolor": "white"}
        axes.plot(places, values, color=style.BLUE, marker="o", markersize=7, label=name, **looks)
        drawn += values
    quantity = KINDS[experiment.quantity_of(test.of)]
    words = f"{test.of}: {quantity.words}" if test.against is None else f"{test.of}, times that of {test.against}"
    axes.set_ylabel(_wrapped(words))
    _scaled(axes, ratio if test.against else quantity.text, drawn)
    _shaded(axes, last, places)


def _scaled(axes: Axes, text: Callable[[float], str], values: Sequence[float]) -> None:
    """Scales an axis: logarithmic if values span a large ratio, else from zero."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator, NullFormatter

    known = [value for value in values if np.isfinite(value)]
    least, most = min(known), max(known)
    is_share = text(1.0) == "100 %"
    if least > 0 and most > 20 * least and not is_share:
        axes.set_yscale("log", base=2 if text is format_bytes else 10)
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, most * 1.1 or 1)
        if text is format_bytes and most > 0:
            axes.yaxis.set_major_locator(MultipleLocator(_bytes_between_ticks(most)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _bytes_between_ticks(most: float) -> float:
    """A round number of binary units between ticks, of which an axis up to `most` bytes has five at most."""
    unit = 2.0 ** (10 * math.floor(math.log2(most) / 10))
    return unit * next(step for step in _ROUND if most / (step * unit) <= _MOST_TICKS)


def _wrapped(words: str) -> str:
    return "\n".join(textwrap.wrap(label(words, _LONGEST), _LINE))


def _limits(experiment: ClaimExperiment) -> list[float]:
    """The limits of the bound."""
    return [limit for limit in (experiment.test.at_least, experiment.test.at_most) if limit is not None]


def _bounds(axes: Axes, experiment: ClaimExperiment) -> None:
    """Draws the bound as horizontal lines."""
    test = experiment.test
    text = ratio if test.against else KINDS[experiment.quantity_of(test.of)].text
    for name, value in (("at least", test.at_least), ("at most", test.at_most)):
        if value is not None:
            axes.axhline(value, color=style.INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
            place = axes.get_yaxis_transform()
            axes.annotate(
                f"{name} {text(value)}",
                (1, value),
                xycoords=place,
                xytext=(-2, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )


def _places(axes: Axes, found: ExperimentResult) -> list[float]:
    """Positions of axis values: numbers by their logarithms, others one after the other."""
    axis = found.experiment.axis
    places = [point.x for point in found.points]
    if axis.is_number:
        axes.set_xscale("log")
    at = [float(place) if isinstance(place, int | float) else float(number) for number, place in enumerate(places)]
    axes.set_xticks(at, [number_text(place) for place in places])
    axes.minorticks_off()
    axes.set_xlabel(f"{axis.name}, {axis.unit}" if axis.unit else axis.name)
    return at


def _shaded(axes: Axes, found: ExperimentResult, places: list[float]) -> None:
    """Shades where the claim holds: between borders if they are known, else where the curve between the points is within the
    bound, or around each point of an axis without numbers."""
    if found.borders is not None:
        if found.verdict == "does not hold":
            return
        for stretch in found.stretches:
            axes.axvspan(stretch.begin or places[0], stretch.end or places[-1], color=_HOLDS, zorder=0, linewidth=0)
        return
    if found.experiment.axis.is_number:
        at, holds = _within_bound(found, places)
        look: dict[str, Any] = {"color": _HOLDS, "zorder": 0, "linewidth": 0, "transform": axes.get_xaxis_transform()}
        axes.fill_between(at, 0, 1, where=holds, **look)
        return
    for place, point in zip(places, found.points, strict=True):
        if point.holds and point.says:
            axes.axvspan(place - 0.5, place + 0.5, color=_HOLDS, zorder=0, linewidth=0)


def _within_bound(found: ExperimentResult, places: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values of the axis, and whether the tested value is within the bound there, on a line between the points."""
    test, logs = found.experiment.test, np.log(places)
    at = np.unique(np.concatenate([np.linspace(logs[0], logs[-1], _SAMPLES), logs]))
    values = np.interp(at, logs, [found.tested(point) for point in found.points])
    low, high = (limit if limit is not None else end for limit, end in ((test.at_least, -np.inf), (test.at_most, np.inf)))
    says = np.interp(at, logs, [float(point.says) for point in found.points]) == 1
    return np.exp(at), (values >= low) & (values <= high) & says
