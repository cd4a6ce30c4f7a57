"""Finer recomputation for configurations that would be among the best if they needed a little less memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.estimate import Configurations
from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS
from scaleproof.simulator.model.recompute import Recompute

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]

# Maximum number of configurations that are refined, and the range of block counts that are tried around the guess.
_MAX_REFINED: Final = 8
_REACH: Final = 3
# Largest guess relative to the best time so far: time is not quite linear in the number of recomputed blocks.
_GUESS: Final = 1.02
_EVERY: Final = (2, 3, 4)
# Modules to recompute; all combinations of those that a model has are tried.
_MODULES: Final = ("core_attn", "layernorm", "mlp", "moe_act", "mla_up_proj")


def refined(candidates: Candidates, expected_s: Times, memory_bytes: Times, capacity_bytes: float) -> Candidates:
    """Configurations with finer recomputation than the most promising ones of `candidates`.

    expected_s, memory_bytes: estimated seconds of a step and bytes of the fullest rank, by row of `candidates`; some rows fit.
    """
    best_s = float(expected_s[memory_bytes <= capacity_bytes].min())
    promising: list[tuple[_Promising, int]] = []
    begin = 0
    for number, part in enumerate(candidates.parts):
        rows = slice(begin, begin + len(part))
        begin = rows.stop
        if isinstance(part, Configurations) and len(part):
            in_part = _promising(part, expected_s[rows], memory_bytes[rows], capacity_bytes)
            promising += ((row, number) for row in in_part if row.guess_s < _GUESS * best_s)
    promising = sorted(promising)[:_MAX_REFINED]
    parts = ((part, [row for row, number in promising if candidates.parts[number] is part]) for part in candidates.parts)
    finer = (_finer(part, rows) for part, rows in parts if rows and isinstance(part, Configurations))
    return Candidates(tuple(finer))


class _Promising(NamedTuple):
    """A row that does not fit but would fit with full recomputation.

    guess_s: approximate seconds of its step with just enough recomputation to fit. share: approximate share of blocks that
    have to be recomputed for that.
    """

    guess_s: float
    share: float
    row: int


def _promising(part: Configurations, expected_s: Times, memory_bytes: Times, capacity_bytes: float) -> Iterator[_Promising]:
    """The most promising rows, the fastest first; only one of those that differ only in buckets or orders.

    Time and memory are interpolated linearly between no recomputation and full recomputation.
    """
    full_row, is_full = part.fully_recomputed, part.fully_recomputed == np.arange(len(part))
    rows = np.flatnonzero(~is_full & (memory_bytes > capacity_bytes) & (full_row >= 0))
    rows = rows[memory_bytes[full_row[rows]] <= capacity_bytes]
    recomputed = full_row[rows]
    share = (memory_bytes[rows] - capacity_bytes) / (memory_bytes[rows] - memory_bytes[recomputed])
    guess_s = expected_s[rows] + share * (expected_s[recomputed] - expected_s[rows])
    kind, seen = part.distinct(*(name for name in COLUMNS if name not in ("recompute", "bucket", "order"))).code, set[int]()
    for at in np.argsort(guess_s, kind="stable").tolist():
        if len(seen) == _MAX_REFINED:
            return
        if (row_kind := int(kind[rows[at]])) not in seen:
            seen.add(row_kind)
            yield _Promising(float(guess_s[at]), float(share[at]), int(rows[at]))


def _finer(part: Configurations, promising: Sequence[_Promising]) -> Configurations:
    """Some configurations with every finer form of recomputation that their framework supports."""
    space, supported = part.space, part.space.scenario.framework.recomputes
    forms, rows = list(space.recompute), list[dict[str, int]]()
    for one, values in zip(promising, part.values(np.array([one.row for one in promising])), strict=True):
        layers = space.layers(space.plan(values).shard) or []
        blocks = sum(not layer.pinned_to_end for layer in layers)
        per_stage = -(-blocks // (values["stages"] * values["chunks"]))
        for given in _forms(supported, per_stage, math.ceil(one.share * per_stage)):
            form = Recompute.model_validate(given)
            if form.suits(layers):
                forms += [form] * (form not in forms)
                rows.append({**values, "recompute": forms.index(form)})
    return Configurations.of(replace(space, recompute=tuple(forms)), rows)


def _forms(supported: Sequence[str], blocks: int, guess: int) -> Iterator[dict[str, Any]]:
    """Forms of finer recomputation for stages of at most `blocks` blocks, of which about `guess` have to be recomputed."""
    if "layers" in supported:
        yield from ({"layers": count} for count in range(max(1, guess - _REACH), min(blocks, guess + _REACH + 1)))
    if "every" in supported:
        yield from ({"every": count} for count in _EVERY if count <= blocks)
    if "products" in supported:
        yield {"products": "every_second"}
    if "modules" in supported:
        sizes = range(1, len(_MODULES))
        yield from ({"modules": names} for size in sizes for names in itertools.combinations(_MODULES, size))
