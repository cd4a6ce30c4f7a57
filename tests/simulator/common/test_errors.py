from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import printable


@given(st.text(max_size=3000))
def test_printable_text_has_no_control_characters(text: str) -> None:
    printed = printable(text)
    assert all(one.isprintable() or one == "\n" for one in printed)
    assert printed.count("\n") == text.count("\n")


def test_printable_text_is_unchanged_and_long_lines_are_cut_in_the_middle() -> None:
    assert printable("model.layers: ‘é’ × 3\nand more") == "model.layers: ‘é’ × 3\nand more"
    assert printable("\x1b[31mred\x9b\ud800") == r"\x1b[31mred\x9b\ud800"
    printed = printable("begin" + "x" * 100_000 + "end")
    assert len(printed) < 1100
    assert printed.startswith("begin")
    assert printed.endswith("end")
