"""Cuts: a model cut into stages, of which many are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleproof.simulator.analysis.planner.estimate.factorize import Numbers
from scaleproof.simulator.model.layers import NOT_COUNTED, Counted, Layer, cut_into_stages


@dataclass(frozen=True)
class Cut:
    """A model cut into `count` stages: where each begins and ends, of which kind it is, the first stage of each kind."""

    count: int
    ranges: list[range]
    begins: Numbers
    stops: Numbers
    kind_of: Numbers
    kinds: list[int]

    @classmethod
    def of(cls, layers: Sequence[Layer], count: int, counted: Counted) -> Cut:
        ranges = cut_into_stages(layers, count, counted if count > 1 else NOT_COUNTED)
        known: dict[tuple[str, ...], int] = {}
        kind_of = [known.setdefault(tuple(layers[i].signature for i in stage), len(known)) for stage in ranges]
        begins, stops = (np.array([getattr(stage, end) for stage in ranges]) for end in ("start", "stop"))
        return cls(count, ranges, begins, stops, np.array(kind_of), [kind_of.index(kind) for kind in range(len(known))])
