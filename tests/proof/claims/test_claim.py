"""Claims are read from YAML, and errors are reported with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.proof.claims.claim import Bound, ClaimAxis, ClaimLine, names, read
from scaleproof.simulator.common.errors import NotFoundError, ScenarioError
from tests.proof.claims.example import CLAIM, claim


@given(low=st.integers(1, 100), factor=st.integers(2, 1000), points=st.integers(2, 20), whole=st.booleans())
def test_ranges_are_ascending_and_include_both_ends(low: int, factor: int, points: int, whole: bool) -> None:
    axis = ClaimAxis.model_validate({"name": "x", "from": low, "to": low * factor, "points": points, "whole": whole})
    places = axis.places
    assert places[0] == low
    assert places[-1] == low * factor
    assert len(places) <= points
    assert all(isinstance(place, int) for place in places) or not whole
    assert list(places) == sorted(places)  # type: ignore[type-var]


def test_the_axis_value_replaces_every_x_placeholder(tmp_path: Path) -> None:
    axis = {
        "name": "slowdown",
        "set": {"unevenness.stragglers": [{"ranks": [1], "slowdown": "$x"}], "cluster.network.bandwidth": "$x Gbit/s"},
        "values": [2],
    }
    found = claim(tmp_path, axis=axis)
    assert found.overrides("ring", 2) == [
        'unevenness.stragglers=[{"ranks": [1], "slowdown": 2}]',
        "cluster.network.bandwidth=2 Gbit/s",
    ]


def test_overrides_of_a_line_take_precedence_over_the_axis(tmp_path: Path) -> None:
    axis = {"name": "workers", "set": {"strategy.workers": "$x"}, "values": [4]}
    found = claim(tmp_path, axis=axis, lines={"ring": {"strategy": {"kind": "data_parallel"}}, "one": {"strategy.workers": 1}})
    assert found.overrides("ring", 4) == ['strategy={"kind": "data_parallel"}', "strategy.workers=4"]
    assert found.overrides("one", 4) == ["strategy.workers=1"]


@given(trials=st.integers(1, 1000), at_once=st.integers(1, 64))
def test_rounds_cover_all_trials_without_an_extra_round(trials: int, at_once: int) -> None:
    rounds = ClaimLine.model_validate({"set": {}, "trials": "$x", "at_once": at_once}).rounds(trials)
    assert (rounds - 1) * at_once < trials <= rounds * at_once


def test_a_bound_compares_a_value_or_a_ratio() -> None:
    between = Bound(of="a", at_least=0.4, at_most=0.5)
    assert [between.holds({"a": value}) for value in (0.39, 0.4, 0.5, 0.51)] == [False, True, True, False]
    ratio = Bound(of="a", against="b", at_least=2)
    assert ratio.holds({"a": 4.0, "b": 2.0})
    # scenarios that do not fit have zero throughput: x / 0 is infinite, and 0 / 0 is not a number
    assert ratio.holds({"a": 1.0, "b": 0.0})
    assert not ratio.holds({"a": 0.0, "b": 0.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantity": "beauty"}, "no quantity is called 'beauty'; give one of efficiency"),
        ({"test": {"of": "tree", "at_least": 1}}, "there is no line 'tree'; give one of ring, one worker"),
        ({"test": {"of": "ring"}}, "give at_least, at_most, or both"),
        ({"axis": {"name": "x", "from": 1}}, "give from and to, or values"),
        ({"axis": {"name": "x", "from": 2, "to": 1}}, "give the smaller number first"),
        ({"lines": {"ring": {"set": {}, "trials": "$x"}}, "test": {"of": "ring", "at_least": 1}}, "give an axis that is whole"),
        ({"netlab": {"scenario": "netlab-ring", "axis": {"name": "x", "values": [1]}, "quantity": "memory"}}, "not measured"),
        ({"netlab": {"scenario": "netlab-ring", "axis": {"name": "x", "from": 1, "to": 2}}}, "give the axis values"),
        ({"sense": 1}, "sense: unknown key; leave it out"),
        ({"name": "../../elsewhere"}, "name: unknown key; the file's own is taken"),
    ],
)
def test_invalid_claims_give_a_one_line_error_with_its_place(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        claim(tmp_path, **changes)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/example.yaml:")
    assert len(str(caught.value).splitlines()) == 1


def test_files_without_a_mapping_and_unknown_names_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ScenarioError, match="a claim is a mapping"):
        read(str(tmp_path / "list.yaml"))
    with pytest.raises(NotFoundError, match="no such file"):
        read(str(tmp_path / "none.yaml"))
    with pytest.raises(NotFoundError, match="no claim is called 'nonsense'; give one of "):
        read("nonsense")


def test_all_shipped_claims_are_valid() -> None:
    found = [read(name) for name in names()]
    assert len(found) >= 18
    assert sum(one.netlab is not None for one in found) >= 10
    assert all(one.claim.endswith(".") for one in found)
    assert CLAIM["claim"] not in [one.claim for one in found]


def test_a_claim_is_found_by_the_words_of_its_text() -> None:
    assert read("parameter servers reach only 50%").name == "servers-reach-half"
    with pytest.raises(NotFoundError, match="several claims have the words 'Parameter servers'; give one of asynchrony"):
        read("Parameter servers")
