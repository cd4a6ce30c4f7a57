"""Mutated input files are used or rejected with a message in bounded time, and no partial files are left."""

from __future__ import annotations

import pytest

from tests.trust.corpus import KINDS
from tests.trust.fuzz import Faults, fuzz, main

pytestmark = pytest.mark.full

_INPUTS = 550


# the same inputs each time; new ones are tried nightly
@pytest.mark.parametrize("kind", KINDS)
def test_mutated_inputs_give_a_result_or_a_one_line_error(kind: str) -> None:
    faults: Faults = {}
    tally = fuzz(kind, _INPUTS // len(KINDS), faults=faults)
    assert faults == {}
    assert tally.total() >= _INPUTS // len(KINDS)
    assert tally["accepted"]
    assert tally["refused"]


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)
def test_ten_thousand_more_mutated_inputs_give_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["10000"]) == 0, capsys.readouterr()
