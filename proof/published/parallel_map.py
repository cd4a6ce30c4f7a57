"""Calls a function for each of many items, on all cores of this machine."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final, TypeVar

from scaleproof.validator.record.cpu_usage import usable

# Least number of items for which processes pay: they take about a second to start and import their modules.
_LEAST: Final = 64
_CHUNK: Final = 4
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(function: Callable[[_Item], _Result], items: Sequence[_Item], least: int = _LEAST) -> list[_Result]:
    """Results of `function` for all items, in order; function, items and results must pickle. Fewer than `least` items stay in
    this process.

    Raises the first error of the function.
    """
    cores = len(usable())
    if cores == 1 or len(items) < least:
        return [function(item) for item in items]
    # spawned processes do not inherit locked locks of other threads, as forked ones would
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), _ignore_interrupts)
    try:
        return list(pool.map(function, items, chunksize=_CHUNK if len(items) >= _LEAST else 1))
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Makes a worker ignore Ctrl-C, which reaches every process of the terminal; the parent process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
