"""Provenance of runs: the machine and its software."""

from __future__ import annotations

from scaleproof.validator.measure import measure
from scaleproof.validator.record.provenance import combined
from tests.validator.conftest import TINY_GPT, MakeScenario


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
