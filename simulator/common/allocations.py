"""Allocations and frees of a rank: the tensors of a step, in the order in which it allocates and frees them."""

from __future__ import annotations

from typing import NamedTuple


class Allocation(NamedTuple):
    """An allocation: its number, bytes, stream, the holder, module and line of the script that it belongs to, and the phase of
    the step in which it is made, "start" before the step. at: place in the step: number of passes over microbatches before
    it where a strategy wrote the step, its row where a script was captured."""

    number: int
    size_bytes: int
    stream: int
    holder: str
    module: str
    line: str
    phase: str = "start"
    at: int = 0


class Free(NamedTuple):
    """The end of an allocation. at: see `Allocation`."""

    number: int
    at: int = 0
