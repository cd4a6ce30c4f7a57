"""Which rank torchrun or Slurm has started this process as, if any has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from simulator.errors import InputError


@dataclass(frozen=True)
class Place:
    """A process among those that somebody else started: numbers among all, and among those of its machine."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int

    @classmethod
    def of(cls, environment: Mapping[str, str], names: tuple[str, str, str, str]) -> Self:
        try:
            return cls(*(int(environment[name]) for name in names))
        except (KeyError, ValueError):
            raise InputError(
                f"the environment has {names[0]}, but not {', '.join(names[1:])} as numbers; set them, or none"
            ) from None


def place_in(environment: Mapping[str, str]) -> Place | None:
    """The place that the environment describes; None where ranks are to be started here.

    Slurm alone does not say where to meet, so its variables count only with MASTER_ADDR and MASTER_PORT. Raises InputError
    where a description is not complete.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        local = {"LOCAL_RANK": environment["RANK"], "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"]}
        return Place.of(local | dict(environment), ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if "SLURM_PROCID" in environment and "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        local = {"SLURM_NTASKS_PER_NODE": environment.get("SLURM_NTASKS", "")}
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
        return Place.of(local | dict(environment), names)
    return None
