from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import printable


@given(st.text(max_size=3000))
def test_nothing_that_is_told_steers_a_terminal(text: str) -> None:
    told = printable(text)
    assert all(one.isprintable() or one == "\n" for one in told)
    assert told.count("\n") == text.count("\n")


def test_what_is_printable_stays_and_what_is_long_is_cut_in_its_middle() -> None:
    assert printable("model.layers: ‘é’ × 3\nand more") == "model.layers: ‘é’ × 3\nand more"
    assert printable("\x1b[31mred\x9b\ud800") == r"\x1b[31mred\x9b\ud800"
    told = printable("begin" + "x" * 100_000 + "end")
    assert len(told) < 1100
    assert told.startswith("begin")
    assert told.endswith("end")
