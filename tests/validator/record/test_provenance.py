"""Provenance of runs: the machine, and load by other work."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import pytest

from scaleproof.validator.measure import measure
from scaleproof.validator.record import provenance
from scaleproof.validator.record.provenance import Usage, combined, foreign_loads, warned
from tests.validator.conftest import TINY_GPT, MakeScenario


def usage(own_s: float, elapsed_s: float = 10.0, **cores_s: float) -> Mapping[str, Any]:
    return {"elapsed_s": elapsed_s, "cores_s": cores_s, "own_s": own_s}


def test_a_measured_run_describes_its_machine(make_scenario: MakeScenario) -> None:
    reported = measure(make_scenario({"kind": "data_parallel", "workers": 2}, TINY_GPT)).provenance

    known = {"host", "date", "system", "python", "torch", "backend", "cpu", "cores", "threads", "load_average", "device"}
    assert known <= set(reported)
    assert (reported["backend"], reported["threads"]) == ("gloo", "1")
    assert "GLOO_SOCKET_IFNAME=lo" in reported["settings"]
    assert all(isinstance(value, str) and value for value in reported.values())


def test_properties_that_differ_between_ranks_are_listed_for_all() -> None:
    hosts = [{"host": f"n{number // 2}", "torch": "2.13", "date": str(number)} for number in range(4)]

    assert combined(hosts) == {"host": "n0; n1", "torch": "2.13", "date": "0"}
    many = [{"host": str(number), "date": "0"} for number in range(100)]
    assert combined(many)["host"] == "0; 1; 2; 3; 4; 5; 6; 7; and 92 more"


def test_foreign_load_is_usage_minus_that_of_the_ranks() -> None:
    # two machines of two cores for ten seconds; on the first, ranks computed for 5 + 4 s of the 15 s that cores worked
    first, second = usage(5.0, c0=9.0, c1=6.0), usage(4.0, c0=9.0, c1=6.0)
    alone = usage(19.0, c0=10.0, c1=9.0)

    loads = foreign_loads(["a", "a", "b"], [first, second, alone])

    assert loads == {"a": pytest.approx(6 / 20), "b": 0.0}


def test_foreign_load_is_computed_over_cores_of_all_ranks() -> None:
    loads = foreign_loads(["a", "a"], [usage(1.0, c0=2.0), usage(1.0, c1=4.0)])

    assert loads == {"a": pytest.approx(4 / 20)}


def test_very_short_runs_give_no_foreign_load() -> None:
    assert foreign_loads(["a"], [usage(0.0, elapsed_s=0.1, c0=0.1)]) == {}
    assert foreign_loads(["a"], [usage(0.0)]) == {}


def test_usage_counts_this_process() -> None:
    before = Usage.now()
    until_s = time.process_time() + 0.1
    while time.process_time() < until_s:
        pass

    used = Usage.now().since(before)

    assert used["own_s"] >= 0.1
    assert used["elapsed_s"] >= 0.1
    assert set(used["cores_s"]) <= {str(core) for core in os.sched_getaffinity(0)}


@pytest.mark.parametrize(("numbers", "text"), [([0, 1, 2, 3, 8], "0-3,8"), ([5], "5"), ([0, 2, 3], "0,2-3"), ([], "")])
def test_lists_of_cores_are_abbreviated(numbers: list[int], text: str) -> None:
    assert provenance._numbers(numbers) == text


def test_empty_warnings_are_dropped() -> None:
    assert warned(["", "too loud", "too slow"]) == {"warnings": "too loud\ntoo slow"}
    assert warned([""]) == {}
