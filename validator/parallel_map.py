"""Parallel: a function of each of many items, on all cores of this machine."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final, TypeVar

from scaleproof.validator.record.cpu_usage import usable

# A process takes about a second to start and to import what it needs.
_LEAST: Final = 64
_AT_ONCE: Final = 4
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """`function` of all items, in their order; function, items and results must pickle. Few items stay in this process.

    Raises what the function raises first.
    """
    cores = len(usable())
    if cores == 1 or len(items) < _LEAST:
        return [function(item) for item in items]
    # processes that are not forked from this one have none of its threads' locks
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), _leave_interrupts)
    try:
        return list(pool.map(function, items, chunksize=_AT_ONCE))
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts() -> None:
    """Ctrl-C reaches every process of the terminal; the one that waits for the others tells of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
