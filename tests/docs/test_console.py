"""The script that compares console blocks with what their commands print, and writes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from docs.scripts.console import commands, main, without_run_costs


def page(folder: Path, *blocks: tuple[str, str, str]) -> Path:
    """A page with blocks of a first line, a command and its output."""
    path = folder / "page.md"
    texts = [f"```{first}\n$ scaleproof {command}\n{output}\n```\n" for first, command, output in blocks]
    path.write_text("# Page\n\n" + "\n".join(texts))
    return path


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Outputs of commands by their words; a command without one fails."""
    outputs: dict[str, str] = {}

    def pretended(words: list[str]) -> int:
        command = " ".join(words)
        print(outputs.get(command, ""))
        if command not in outputs:
            print("no such scenario", file=sys.stderr)
        return 0 if command in outputs else 2

    monkeypatch.setattr("scaleproof.main", pretended)
    return outputs


def test_a_page_that_shows_what_is_printed_passes_and_stays(
    tmp_path: Path, printed: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed |= {"list": "a\nb", "plan x": "estimated in 1.2 s\nNo. 1 takes 3 s"}
    path = page(tmp_path, ("console", "list", "a\nb"), ("console measured", "plan x", "estimated in 680 ms\nNo. 1 takes 3 s"))
    before = path.read_text()
    assert main([str(path), "--check"]) == 0
    assert main([str(path), "--measured"]) == 0
    # the duration alone is no reason to write it again
    assert path.read_text() == before
    assert "2 commands in" in capsys.readouterr().out


def test_stale_figures_are_shown_as_a_difference_and_written(
    tmp_path: Path, printed: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed |= {"list": "a\nc", "plan x": "estimated in 1.2 s\nNo. 1 takes 4 s"}
    path = page(tmp_path, ("console", "list", "a\nb"), ("console measured", "plan x", "estimated in 680 ms\nNo. 1 takes 3 s"))
    before = path.read_text()
    assert main([str(path), "--check"]) == 1
    out = capsys.readouterr().out
    assert "page.md: $ scaleproof list" in out
    assert "-b\n+c" in out
    assert "-No. 1 takes 3 s\n+No. 1 takes 4 s" in out
    assert path.read_text() == before
    # outputs that are exact are written, measured ones where that is wanted
    assert main([str(path)]) == 0
    assert path.read_text() == before.replace("a\nb\n", "a\nc\n")
    assert main([str(path), "--measured"]) == 0
    assert path.read_text() == before.replace("a\nb\n", "a\nc\n").replace(
        "estimated in 680 ms\nNo. 1 takes 3 s", "estimated in 1.2 s\nNo. 1 takes 4 s"
    )
    assert main([str(path), "--check"]) == 0


def test_what_needs_something_is_listed_and_runs_with_all(
    tmp_path: Path, printed: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed |= {"faults": "killed at 3 s"}
    path = page(
        tmp_path,
        ("console measured needs root", "faults", "killed at 2 s"),
        ("console needs minutes", "score", "exact"),
        ("console with the package", "predict gossip", "x"),
    )
    assert main([str(path), "--check"]) == 0
    out = capsys.readouterr().out
    assert "not run: 3" in out
    assert "needs root: $ scaleproof faults" in out
    assert main([str(path), "--check", "--all"]) == 1
    out = capsys.readouterr().out
    # numbers of a measurement may differ; the other one fails
    assert "$ scaleproof faults" not in out
    assert "$ scaleproof score\nends with 2: no such scenario" in out
    assert "with the package: $ scaleproof predict gossip" in out


def test_a_command_that_fails_is_reported_and_its_output_kept(
    tmp_path: Path, printed: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = page(tmp_path, ("console", "predict nowhere", "1 s"))
    before = path.read_text()
    for arguments in ([str(path)], [str(path), "--check"]):
        assert main(arguments) == 1
        assert "ends with 2: no such scenario" in capsys.readouterr().out
    assert path.read_text() == before


def test_durations_and_memory_of_a_run_are_no_figures_and_all_others_are() -> None:
    text = "37 configurations estimated in 680 ms; captured in 42.3 s: at most 303 MiB each\nstep 1.93 s, 41.0 GiB, in 90 %"
    assert without_run_costs(text) == ("37 configurations estimated #; captured #: #\nstep 1.93 s, 41.0 GiB, in 90 %")


def test_a_block_has_several_commands_and_may_print_nothing() -> None:
    found = commands("```console\n$ scaleproof a\n1\n$ scaleproof b\n```\n\n```console measured\n$ scaleproof c\n2\n3\n```\n")
    assert [(one.words, one.shown, one.measured) for one in found] == [
        ("scaleproof a", "1", False), ("scaleproof b", "", False), ("scaleproof c", "2\n3", True),
    ]  # fmt: skip
