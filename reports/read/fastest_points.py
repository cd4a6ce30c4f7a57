"""The selected points of a study: the fastest one of each strategy, predicted again in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from scaleproof.reports.read.study import StudyTable
from scaleproof.simulator.common.errors import ScaleproofError, one_line
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from scaleproof.simulator.analysis.sensitivity.sensitivity import Sensitivity

MOST_CHOSEN: Final = 6


@dataclass(frozen=True)
class FastestPoint:
    """The fastest point of a strategy. sets: the `--set` options that turn the study's scenario into the point's."""

    line: str
    point: pd.Series[Any]
    scenario: Scenario
    sets: tuple[str, ...]
    run: Run


def chosen(study: StudyTable, notes: list[str]) -> list[FastestPoint]:
    """The fastest point of each strategy under the circumstances of the best point, the best first. Points that cannot be
    predicted again are noted."""
    best, definition = study.best, study.found.study
    if best is None or definition is None:
        return []
    good = study.under(best["choices"])
    result = []
    for line in study.lines[:MOST_CHOSEN]:
        mine = good[good["line"] == line]
        if mine.empty:
            continue
        point = mine.iloc[int(mine["rate"].argmax())]
        places = definition.places_of(int(point["point"]))
        try:
            scenario = definition.scenario(places)
            run = predict(scenario)
        except ScaleproofError as error:
            notes.append(f"point {point['point']} cannot be predicted again: {one_line(error)}")
            continue
        sets = tuple(axis.overrides()[place] for axis, place in zip(definition.axes, places, strict=True))
        result.append(FastestPoint(line, point, scenario, sets, run))
    return result


def sensitivity_of(best: FastestPoint, notes: list[str]) -> Sensitivity | None:
    """The elasticities of the best point's throughput; None, with a note, if they cannot be computed."""
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity

    try:
        return sensitivity(best.scenario)
    except ScaleproofError as error:
        notes.append(f"the sensitivity of throughput cannot be computed: {one_line(error)}")
        return None
