"""Ranks on different machines synchronise their clocks."""

from __future__ import annotations

import re

import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.measure import measure
from tests.validator import faults
from tests.validator.conftest import MakeScenario


def test_ranks_of_one_machine_need_no_correction() -> None:
    assert run_on_ranks(faults.clock_correction, 3, False) == [None, None, None]


def test_the_offset_between_clocks_is_recovered() -> None:
    here, *far = run_on_ranks(faults.clock_correction, 3, True)

    assert here is None
    assert far[0] == far[1], "ranks of a machine share its clock, and what is found of it"
    # these clocks are one, which messages there and back must find out
    assert abs(far[0]["offset_s"]) <= far[0]["uncertainty_s"] < 0.1
    assert abs(far[0]["drift"]) <= far[0]["drift_uncertainty"]


def test_spans_of_different_machines_use_one_clock(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.train_on_two_machines)

    run = measure(make_scenario({"kind": "data_parallel", "workers": 2, "bucket": "1 MiB"}, steps=60))

    reported = re.fullmatch(r"aligned to ±(\d+) us, drift up to \d+\.\d ppm", run.provenance["clocks"])
    assert reported is not None
    spans = run.spans
    assert spans is not None
    buckets = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.phase == Phase.SYNCHRONISE))
    first, second = (buckets.where(buckets.rank == rank) for rank in range(2))
    # an allreduce ends no earlier, for either of two ranks, than the last of them comes
    off_s = int(reported[1]) * 1e-6 + 1e-6
    assert (first.end_s > second.arrival_s - off_s).all()
    assert (second.end_s > first.arrival_s - off_s).all()
