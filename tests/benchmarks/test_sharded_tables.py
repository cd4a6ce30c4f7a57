"""What the benchmark of divided tables compares measured bytes with."""

from __future__ import annotations

import pytest

from benchmarks.sharded_tables import cases, pushed_bytes
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.scenario.load import load

_TABLES, _ROWS, _WIDTH, _SHARE = 8, 20_000, 64, 0.055
# of the bottom layer, and of the top layers, which read 64 features and 36 products of pairs of nine vectors
_MLPS = 16 * 64 + 64 + (64 + 36) * 64 + 64 + 64 + 1


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "stale"])
def test_pushes_have_the_looked_up_rows_with_their_numbers_and_the_mlps(mode: str) -> None:
    fields = dict(cases())[f"servers-8-{mode}"]
    scenario = load({"name": "pushed", "cluster": "netlab-100mbit", **fields})
    assert isinstance(scenario.strategy, ParameterServer)
    rows = _TABLES * _SHARE * _ROWS * (4 * _WIDTH + 2 * 8)
    assert pushed_bytes(scenario, scenario.strategy).sum() == pytest.approx(rows + 4 * _MLPS)
