"""Parallel evaluation keeps the order of items and raises errors unchanged."""

from __future__ import annotations

import functools
import os

import pytest

from scaleproof.proof.published import parallel_map
from scaleproof.simulator.common.errors import InputError


def _process(item: int) -> tuple[int, int]:
    return item, os.getpid()


def _refuse(item: int, refused: int) -> int:
    if item == refused:
        raise InputError(f"{item} is refused")
    return item


@pytest.mark.parametrize("count", [0, 1, 70])
def test_results_are_in_the_order_of_items(count: int) -> None:
    found = parallel_map.each(_process, range(count))
    assert [item for item, _ in found] == list(range(count))
    if count > 64 and len(os.sched_getaffinity(0)) > 1:
        assert os.getpid() not in {process for _, process in found}
    else:
        assert {process for _, process in found} <= {os.getpid()}


def test_errors_of_other_processes_are_raised_unchanged() -> None:
    with pytest.raises(InputError, match=r"^69 is refused$"):
        parallel_map.each(functools.partial(_refuse, refused=69), range(70))
