"""Tables, bars and paragraphs on the console."""

from __future__ import annotations

import pytest

from scaleproof.commands.text.tables import WIDTH, bar, sections, table, wrapped


def test_columns_are_as_wide_as_their_cells_and_aligned() -> None:
    rows = [("name", "time", "note"), ("  a longer name", "12.3 ms", "x"), ("b", "1 s", "")]
    assert table(rows, "<><", indent=" ") == [
        " name                time  note",
        "   a longer name  12.3 ms  x",
        " b                    1 s",
    ]
    assert table([("a", "b", "c")], widths=(3, 3), gap=1) == ["a     b c"]
    assert table([]) == []


def test_nothing_is_cut_wrapped_or_coloured_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    name, text = "n" * 300, "[red]markup[/red] :smile: 'quoted' 12.5"
    assert table([(name, text)], "<") == [f"{name}  {text}"]


def test_bars_are_accurate_to_an_eighth() -> None:
    assert [bar(share, 8) for share in (-0.1, 0.0, 0.5, 9 / 64, 1.0)] == ["", "", "████", "█▏", "█" * 8]


def test_a_title_stands_in_front_of_the_first_line_of_its_section() -> None:
    lines = sections({"first": ["one", "two"], "empty": [], "last": ["word " * 30]})
    assert lines[:2] == ["  first          one", "                 two"]
    assert lines[2].startswith("  last           word word")
    assert lines[3].startswith("                   word")
    assert len(lines) == 4


def test_paragraphs_are_wrapped_between_words_only() -> None:
    lines = wrapped(f"{'x' * WIDTH}y a-hyphenated-{'z' * WIDTH} end", "- ", "  ")
    assert [line.strip() for line in lines] == [f"- {'x' * WIDTH}y", f"a-hyphenated-{'z' * WIDTH}", "end"]


@pytest.mark.parametrize("number", ["98 %", "79.2 GiB"])
def test_a_number_and_its_unit_are_not_wrapped(number: str) -> None:
    words = "x" * (WIDTH - 3)
    assert wrapped(f"{words} {number}") == [words, f"  {number}"]
