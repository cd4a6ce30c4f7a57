"""Runs the commands of the console blocks in README.md and docs, and compares what they print with what the blocks show, or
writes it into them.

    python docs/scripts/console.py [--check] [--measured] [--all] [PAGE ...]

The first line of a block says how it is treated:

    console                 runs, and prints exactly this
    console measured        runs, and prints this but for how long the command took and how much memory it used
    console … needs REASON  runs with --all alone: it needs root, minutes, GPUs, or a quiet machine
    console with …          is of another script, which runs it

Commands build on one another, so all of them run in one folder, and those of a page in their order.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import multiprocessing
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import scaleproof
from scaleproof.simulator.common.errors import ExitCode

ROOT: Final = Path(__file__).resolve().parents[2]
_BLOCK: Final = re.compile(r"^```console( measured)?( (?:needs|with) [^\n]*)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_OTHER_SCRIPT: Final = " with "
# Exit codes of commands that are shown.
_SHOWN: Final = (ExitCode.DONE, ExitCode.OUT_OF_MEMORY)
# What differs between two runs of a measured command: its duration, and the memory of its processes.
_RUN_COSTS: Final = re.compile(r"\bin [\d.,]+ (?:min|h|s|ms|us)\b|\bat most [\d.,]+ [KMG]iB each\b")
# Numbers with their units and the space that aligns them.
_NUMBER: Final = r"[ +-]*\d[\d.,]*( ?(d|h|min|s|ms|us|ns|%|GB/s|MB/s|GFLOP/s|TFLOP/s)(?!\w))?"


class Command(NamedTuple):
    """A command of a block, and the output that is shown. measured: whether it depends on the machine; needs: why it does not
    run everywhere, as the block says, empty if it does."""

    words: str
    shown: str
    measured: bool
    needs: str

    def comparable(self, text: str) -> str:
        """An output without what depends on the machine."""
        if not self.measured:
            return text
        return without_numbers(text) if self.needs else without_run_costs(text)

    def agrees(self, printed: str) -> bool:
        """Whether an output is the one that is shown, as far as it does not depend on the machine."""
        return self.comparable(printed) == self.comparable(self.shown)


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit code and errors."""

    printed: str
    code: int
    errors: str

    @property
    def failed(self) -> bool:
        """Whether the command failed, so that its output is not shown."""
        return self.code not in _SHOWN


def pages() -> list[Path]:
    """README.md and all pages in docs, in the order in which their commands run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(text: str) -> list[Command]:
    """The commands of a page's blocks, in their order."""
    return [command for match in _BLOCK.finditer(text) for command in _of_block(match)]


def _of_block(match: re.Match[str]) -> Iterator[Command]:
    for part in re.split(r"^\$ ", match[3], flags=re.MULTILINE)[1:]:
        words, _, shown = part.partition("\n")
        yield Command(words, shown.rstrip("\n"), match[1] is not None, (match[2] or "").strip())


def without_run_costs(text: str) -> str:
    """The output of a measured command without what differs between two runs."""
    return _RUN_COSTS.sub("#", text)


def without_numbers(text: str) -> str:
    """The output of a measurement without numbers, and without what the machine's noise decides."""
    text = re.sub(r"(worst \S+) \([^)]*\)", r"\1 (some run)", text)
    text = re.sub(r"^  [+-]\S+ ms = .*(?:\n  .*)*", "  (why)", text, flags=re.MULTILINE)
    # which groups can be fitted, and whether another line holds from a size on
    text = re.sub(r"^(  all_reduce over .*\n)+", "  (sums)\n", text, flags=re.MULTILINE)
    text = re.sub(r" +(yes|no)$", " (whether)", text, flags=re.MULTILINE)
    return re.sub(_NUMBER, " #", text)


def run(page: Sequence[Command], folder: Path, everything: bool) -> list[Outcome | None]:
    """Outcomes of a page's commands, run in a folder in this process; None for those that are not run."""
    with contextlib.chdir(folder):
        return [_run(command) if _is_run(command, everything) else None for command in page]


def _is_run(command: Command, everything: bool) -> bool:
    return not command.needs or (everything and not f" {command.needs}".startswith(_OTHER_SCRIPT))


def _run(command: Command) -> Outcome:
    program, *words = shlex.split(command.words)
    if program != "scaleproof":
        return Outcome("", 1, f"{program}: only scaleproof's commands are run")
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = scaleproof.main(words)
    return Outcome(printed.getvalue().rstrip("\n"), code, errors.getvalue())


def rewritten(text: str, outcomes: Sequence[Outcome | None], measured: bool) -> str:
    """A page's text with what its commands printed. measured: also in measured blocks, where more than run costs differs."""
    left = iter(outcomes)

    def block(match: re.Match[str]) -> str:
        parts = [_rewritten(command, next(left), measured) for command in _of_block(match)]
        return f"```console{match[1] or ''}{match[2] or ''}\n{''.join(parts)}```"

    return _BLOCK.sub(block, text)


def _rewritten(command: Command, outcome: Outcome | None, measured: bool) -> str:
    stays = outcome is None or outcome.failed or command.agrees(outcome.printed) or (command.measured and not measured)
    output = command.shown if stays or outcome is None else outcome.printed
    return f"$ {command.words}\n{output}\n" if output else f"$ {command.words}\n"


def differences(place: str, page: Sequence[Command], outcomes: Sequence[Outcome | None]) -> Iterator[str]:
    """Texts on commands that fail, and on those whose output is not the one that is shown."""
    for command, outcome in zip(page, outcomes, strict=True):
        if outcome is None:
            continue
        if outcome.failed:
            yield f"{place}: $ {command.words}\nends with {outcome.code}: {outcome.errors.strip()}"
        elif not command.agrees(outcome.printed):
            sides = (command.comparable(text).splitlines() for text in (command.shown, outcome.printed))
            lines = difflib.unified_diff(*sides, "shown", "printed", lineterm="", n=1)
            yield "\n".join([f"{place}: $ {command.words}", *lines])


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for commands, with the folders that they read."""
    with tempfile.TemporaryDirectory() as name:
        for linked in ("scenarios", "examples"):
            (Path(name) / linked).symlink_to(ROOT / linked)
        yield Path(name)


def _outcomes(found: Mapping[Path, Sequence[Command]], everything: bool) -> dict[Path, list[Outcome | None]]:
    """Outcomes of the commands of all pages, which run in parallel unless measurements would disturb one another. Pages with
    most commands begin first, so that none of them runs alone at the end."""
    workers = 1 if everything else len(os.sched_getaffinity(0))
    longest = sorted((page for page, own in found.items() if own), key=lambda page: -len(found[page]))
    with _folder() as folder, ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        futures = {page: pool.submit(run, found[page], folder, everything) for page in longest}
        return {page: futures[page].result() for page in found if page in futures}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares the pages given, or all, or rewrites them. Returns 1 where a command fails, or prints what is not shown."""
    parser = argparse.ArgumentParser(description="Run the commands of console blocks, and compare or write their output.")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="pages (README.md and all in docs)")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--measured", action="store_true", help="write the output of measured commands, too")
    parser.add_argument("--all", action="store_true", help="also run what needs root, minutes, GPUs or a quiet machine")
    options = parser.parse_args(arguments)
    texts = {page.resolve(): page.read_text(encoding="utf-8") for page in options.pages or pages()}
    found = {page: commands(text) for page, text in texts.items()}
    begin_s = time.monotonic()
    outcomes = _outcomes(found, options.all)
    stale: list[str] = []
    for page, own in outcomes.items():
        place = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else str(page)
        different = list(differences(place, found[page], own))
        if options.check:
            stale += different
            continue
        stale += [text for text in different if "\nends with " in text]
        changed = rewritten(texts[page], own, options.measured)
        if changed != texts[page]:
            page.write_text(changed, encoding="utf-8")
            print(place)
    pairs = [pair for page, own in outcomes.items() for pair in zip(found[page], own, strict=True)]
    left_out = [f"  {command.needs}: $ {command.words}" for command, outcome in pairs if outcome is None]
    print(f"{len(pairs) - len(left_out)} commands in {time.monotonic() - begin_s:.0f} s; not run: {len(left_out)}")
    print("\n".join(left_out))
    if stale:
        print("\n\n".join(["", *stale]))
        print(f"\n{len(stale)} commands do not print what is shown; python docs/scripts/console.py [--measured] writes it")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
