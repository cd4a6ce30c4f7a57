"""Regret of the layouts that the predictor chooses among measured ones.

Rows with equal `choices` trained the same model with the same batch on the same GPUs in different layouts. Of the layouts
that are predicted to fit into memory as surely as plans do, the one with the least predicted step time is
chosen, as `scaleproof plan` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from scaleproof.proof.published.prediction import Prediction


def regrets(scored: Iterable[Prediction]) -> list[float]:
    """Regret of each group of at least two layouts: measured time of the chosen layout over the best measured time, minus 1.

    Repeated runs of a layout count as one, with their median. If no layout of a group is predicted to fit, the choice is among
    all of them, since they were measured. Rows without `choices` are left out.
    """
    return [_regret(layouts) for layouts in _groups(scored) if len(layouts) > 1]


def _groups(scored: Iterable[Prediction]) -> Iterator[Sequence[Sequence[Prediction]]]:
    """Groups with equal choices, each as its layouts, each as its repeated runs."""
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Prediction]]] = defaultdict(lambda: defaultdict(list))
    for prediction in scored:
        if prediction.choices:
            groups[prediction.choices][prediction.inputs].append(prediction)
    for layouts in groups.values():
        yield list(layouts.values())


def _regret(layouts: Sequence[Sequence[Prediction]]) -> float:
    """Regret of the choice among layouts, each with its repeated runs, whose predictions are equal."""
    fitting = [runs for runs in layouts if runs[0].fits] or layouts
    chosen = min(fitting, key=lambda runs: runs[0].predicted)
    return _measured(chosen) / min(map(_measured, layouts)) - 1


def _measured(runs: Sequence[Prediction]) -> float:
    return median(run.measured for run in runs)
