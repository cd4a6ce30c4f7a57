"""The best alternative of a study and its lead over the next one: in throughput, and per dollar where prices are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scaleproof.reports.read.study import StudyTable
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

# leads below this share are not worth a word
NOTHING: Final = 0.01


class Lead(NamedTuple):
    """How far an alternative is ahead of another. share: relative lead. per_gpu: whether it is one per GPU, because their
    numbers of GPUs differ. probability: that the first is ahead, with errors shared by both; None where it is not known."""

    first: str
    second: str
    share: float
    per_gpu: bool
    probability: float | None

    @property
    def is_sure(self) -> bool:
        """Whether predictions distinguish the two."""
        from scaleproof.simulator.uncertainty.pairwise import SURE

        return self.share >= NOTHING and (self.probability is None or self.probability > SURE)


class Ranking(NamedTuple):
    """The leads of the best alternative under the circumstances of the best point; None without a second or a price."""

    speed: Lead | None
    cost: Lead | None


def ranking(study: StudyTable) -> Ranking:
    """Compares the alternatives at the size of the best point, or per GPU if no other has that size."""
    best = study.best
    if best is None:
        return Ranking(None, None)
    rows = alternatives(study, best["choices"], best["x"])
    per_gpu = rows["gpus"].nunique() > 1
    speeds = rows["rate"] / rows["gpus"] if per_gpu else rows["rate"]
    return Ranking(_lead(study, rows, speeds, per_gpu), _lead(study, rows, 1 / rows["cost_USD"], per_gpu=False))


def alternatives(study: StudyTable, choices: tuple[str, ...], x: float) -> pd.DataFrame:
    """The fastest point of each line under some circumstances: at x, or anywhere if there is only one line at x."""
    good = study.under(choices)
    there = good[good["x"] == x]
    rows = there if there["line"].nunique() > 1 else good
    if rows.empty:
        return rows
    return rows.loc[rows.groupby("line")["rate"].idxmax()].set_index("line", drop=False)


def _lead(study: StudyTable, rows: pd.DataFrame, scores: pd.Series[Any], per_gpu: bool) -> Lead | None:
    """The lead of the highest score over the next; None unless at least two are known."""
    ordered = scores.dropna().sort_values(ascending=False, kind="stable")
    if len(ordered) < 2:
        return None
    first, second = (str(line) for line in ordered.index[:2])
    ratio = float(ordered.iloc[0] / ordered.iloc[1])
    slower, faster = (int(rows["point"].loc[line]) for line in (second, first))
    return Lead(first, second, ratio - 1, per_gpu, _probability(study, slower, faster, ratio))


def _probability(study: StudyTable, slower: int, faster: int, ratio: float) -> float | None:
    """The probability that one point is ahead of another by errors that they share; None if it cannot be computed."""
    from scaleproof.simulator.uncertainty.pairwise import ratio_interval

    try:
        a, b = (_scenario(study, point) for point in (slower, faster))
        return ratio_interval(a, b, ratio).ahead if a and b else None
    except ScaleproofError:
        return None


def _scenario(study: StudyTable, point: int) -> Scenario | None:
    definition = study.found.study
    return None if definition is None else definition.scenario(definition.places_of(point))
