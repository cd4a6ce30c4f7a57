"""Values of options: numbers with and without units."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from scaleproof.commands.arguments import duration, share
from scaleproof.reports.descriptions.goodput import assumed


@pytest.mark.parametrize(("text", "days"), [("54", 54.0), ("36 h", 1.5), ("1 d", 1.0)])
def test_times_may_have_a_unit(text: str, days: float) -> None:
    assert duration("days", 86400.0)(text) == pytest.approx(days)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "3 GB", "nan"])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a positive number of days, or a time such as '90 min'"):
        duration("days", 86400.0)(text)


@pytest.mark.parametrize("text", ["4%", "0.04"])
def test_shares_may_be_in_per_cent(text: str) -> None:
    assert share(text) == pytest.approx(0.04)


def test_assumed_times_are_said_with_how_to_give_them() -> None:
    assert list(assumed({})) == []
    assert list(assumed({"detection": 600.0})) == [
        "detection 600 s, as sites see them; give your own, as --set 'reliability.detection=3 min'"
    ]
