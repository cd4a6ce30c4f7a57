"""Objectives of a plan."""

from __future__ import annotations

from typing import Final, Literal, get_args

Objective = Literal["time", "cost", "energy", "tokens-per-dollar"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)
