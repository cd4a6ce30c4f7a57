"""Refinement: finer recomputation for those configurations that would be among the best if a little more of them fitted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.estimate import Configurations, every
from scaleproof.simulator.analysis.planner.estimate.configurations import COLUMNS
from scaleproof.simulator.model.recompute import Recompute

Times = NDArray[np.float64]
Numbers = NDArray[np.int64]

# Configurations that are refined at most, and how far from the guess numbers of blocks to recompute are tried.
_MOST_REFINED: Final = 8
_REACH: Final = 3
_EVERY: Final = (2, 3, 4)
# Modules of which all combinations are tried, as far as a model has them.
_MODULES: Final = ("core_attn", "layernorm", "mlp", "moe_act", "mla_up_proj")
# Columns of a space by the field that lists their values.
_LISTED: Final = {"schedule": "schedules", "bucket": "buckets_bytes", "order": "orders"}
_GIVEN: Final = ("tensor", "context", "expert", "stages", "chunks", "samples", "zero")


def refined(found: Candidates, expected_s: Times, held_bytes: Times, capacity_bytes: float) -> Candidates:
    """Configurations with finer recomputation than `found` has, next to those of `found` that are refined.

    expected_s, held_bytes: estimated seconds of a step and bytes of the fullest rank, by row of `found`, of which some fit.
    """
    best_s = float(expected_s[held_bytes <= capacity_bytes].min())
    promising: list[tuple[_Promising, Configurations]] = []
    begin = 0
    for part in found.parts:
        rows = slice(begin, begin + len(part))
        begin = rows.stop
        if isinstance(part, Configurations) and len(part):
            these = _promising(part, expected_s[rows], held_bytes[rows], capacity_bytes)
            promising += ((one, part) for one in these if one.guess_s < best_s)
    promising.sort(key=lambda both: both[0].guess_s)
    parts = [_finer(part, one) for one, part in promising[:_MOST_REFINED]]
    return Candidates.all_of(*(part for part in parts if len(part)))


class _Promising(NamedTuple):
    """A row that does not fit but would with full recomputation. guess_s, share: guesses of the seconds of its step with only
    as much recomputation as the device's memory needs, and of the share of blocks that this is."""

    guess_s: float
    share: float
    row: int


def _promising(part: Configurations, expected_s: Times, held_bytes: Times, capacity_bytes: float) -> Iterator[_Promising]:
    """The most promising rows, the fastest first; one of those that differ in buckets or orders alone. Time and memory are
    taken to lie on a line between those without and those with full recomputation."""
    full = [number for number, one in enumerate(part.space.recompute) if one.kind == "full"]
    if not full:
        return
    way = part.distinct(*(name for name in COLUMNS if name != "recompute")).code
    is_full = part.recompute == full[0]
    row_of = np.full(int(way.max()) + 1, -1)
    row_of[way[is_full]] = np.flatnonzero(is_full)
    rows = np.flatnonzero(~is_full & (held_bytes > capacity_bytes) & (row_of[way] >= 0))
    rows = rows[held_bytes[row_of[way[rows]]] <= capacity_bytes]
    whole = row_of[way[rows]]
    share = (held_bytes[rows] - capacity_bytes) / (held_bytes[rows] - held_bytes[whole])
    guess_s = expected_s[rows] + share * (expected_s[whole] - expected_s[rows])
    kind, seen = part.distinct(*(name for name in COLUMNS if name not in ("recompute", "bucket", "order"))).code, set[int]()
    for at in np.argsort(guess_s, kind="stable").tolist():
        if len(seen) == _MOST_REFINED:
            return
        if (one := int(kind[rows[at]])) not in seen:
            seen.add(one)
            yield _Promising(float(guess_s[at]), float(share[at]), int(rows[at]))


def _finer(part: Configurations, promising: _Promising) -> Configurations:
    """One configuration with every form of finer recomputation that its framework has."""
    space = part.space
    one = {name: int(getattr(part, name)[promising.row]) for name in COLUMNS}
    fields: dict[str, Any] = {name: (one[name],) for name in _GIVEN}
    fields |= {field: (getattr(space, field)[one[name]],) for name, field in _LISTED.items()}
    fields |= {
        "ranks": (one["tensor"] * one["context"] * one["stages"] * one["workers"],),
        "expert_tensor": (one["expert_tensor"] or None,),
        "sequence_parallel": (bool(one["sequence_parallel"]),),
    }
    blocks = sum(not layer.glued for layer in space.scenario.model.build_layers())
    per_stage = -(-blocks // (one["stages"] * one["chunks"]))
    forms = _forms(space.scenario.framework.recomputes, per_stage, math.ceil(promising.share * per_stage))
    return every(replace(space, recompute=tuple(map(Recompute.model_validate, forms)), **fields))


def _forms(supported: Sequence[str], blocks: int, guess: int) -> Iterator[dict[str, Any]]:
    """Finer recomputation of stages that have `blocks` blocks at most, of which about `guess` have to be recomputed."""
    if "layers" in supported:
        yield from ({"layers": count} for count in range(max(1, guess - _REACH), min(blocks, guess + _REACH + 1)))
    if "every" in supported:
        yield from ({"every": count} for count in _EVERY if count <= blocks)
    if "products" in supported:
        yield {"products": "every_second"}
    if "modules" in supported:
        sizes = range(1, len(_MODULES))
        yield from ({"modules": names} for size in sizes for names in itertools.combinations(_MODULES, size))
