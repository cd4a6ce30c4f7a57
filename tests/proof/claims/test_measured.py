"""Saved measurements of claims, from which verdicts are computed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.claims.claim import names, read
from scaleproof.proof.claims.measured import FILE, ClaimRecord, keep, measured, read_all
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from tests.proof.claims.example import SCENARIO, claim

NETLAB = {
    "scenario": SCENARIO,
    "axis": {"name": "bandwidth", "set": {"cluster.network.bandwidth": "$x Gbit/s"}, "values": [1, 100]},
    "lines": {"ring": {}},
}
PROVENANCE = {"host": "secret", "date": "2026-11-22T12:00:00+00:00", "torch": "2.13", "warnings": "a busy machine"}


def train(scenario: Scenario) -> Run:
    """A prediction in the form of a measurement."""
    return replace(timed(scenario), origin="measured", provenance=PROVENANCE, step_time_interval_s=(0.1, 0.2))


@pytest.fixture
def record(tmp_path: Path) -> ClaimRecord:
    return measured(claim(tmp_path, netlab=NETLAB), train)


def test_measurements_are_read_back_unchanged(tmp_path: Path, record: ClaimRecord) -> None:
    keep(tmp_path, "one", record)
    keep(tmp_path, "two", replace(record, date="2026-11-23T12:00:00+00:00"))
    again = read_all(tmp_path)
    assert list(again) == ["one", "two"]
    assert json.loads(json.dumps(again["one"].points)) == [dict(point) for point in record.points]
    assert (again["one"].date, again["one"].warnings) == (PROVENANCE["date"], ("a busy machine",))


def test_records_do_not_contain_host_names(tmp_path: Path, record: ClaimRecord) -> None:
    keep(tmp_path, "one", record)
    assert "secret" not in (tmp_path / FILE).read_text()
    assert record.machine == {"torch": "2.13"}


def test_the_verdict_follows_from_the_numbers_and_the_test(tmp_path: Path, record: ClaimRecord) -> None:
    ring = [point["values"]["ring"] for point in record.points]
    assert ring == sorted(ring)
    for bound, verdict in ((ring[0] / 2, "holds"), (ring[1], "holds when"), (1.0, "does not hold")):
        found = record.found(claim(tmp_path, netlab=NETLAB | {"test": {"of": "ring", "at_least": bound}}))
        assert found is not None
        assert found.verdict == verdict


def test_measurements_of_another_experiment_are_ignored(tmp_path: Path, record: ClaimRecord) -> None:
    assert record.found(claim(tmp_path)) is None
    axis = NETLAB["axis"] | {"values": [1, 10]}  # type: ignore[operator]
    assert record.found(claim(tmp_path, netlab=NETLAB | {"axis": axis})) is None
    assert record.found(claim(tmp_path, netlab=NETLAB | {"lines": {"ring": {}, "tree": {}}})) is None


def test_claims_without_an_experiment_are_not_measured(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is nothing to measure"):
        measured(claim(tmp_path), train)


@pytest.mark.parametrize("text", ["[", "[]", '{"a": 1}', '{"a": {"date": 1}}'])
def test_damaged_records_give_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(InputError, match="no record of measured claims; remove it"):
        read_all(tmp_path)


def test_shipped_records_belong_to_shipped_claims() -> None:
    records = read_all(catalog.ROOT / "claims")
    assert set(records) <= set(names())
    for name, record in records.items():
        assert record.found(read(name)) is not None, f"{name} has changed; measure it again with --on netlab"
