"""What commands print: a result as text or as JSON on stdout, and their progress on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

# Styles of what is printed in a terminal, by regular expression; later ones win.
_STYLES: Final = {
    r"\A[^\n]*": "bold",
    r"(?m)^(optimal|proved|fastest|evidence|B is)\b[^\n]*": "bold",
    r"(?m)^  (step time|throughput) .*": "bold",
    r"(?m)^  (predicted|measured) +(True|False|Depends)\b": "bold",
    r"(?m)^  1 .*": "bold",
    r"(?im)^.*\bout of memory\b.*": "bold red",
    r"(?m)^( +|[AB] )does not fit.*|^no point fits.*": "bold red",
    r"(?m)^  warning .*": "yellow",
}


def print_json(data: Any) -> int:
    """Prints plain data as JSON, and returns exit code 0."""
    print(json.dumps(data, indent=2))
    return 0


def print_result(options: argparse.Namespace, data: Callable[[], Any], text: Callable[[], str]) -> int:
    """Prints a result as JSON with `--json`, otherwise as text, and returns exit code 0."""
    if options.json:
        return print_json(data())
    show(text())
    return 0


def show(text: str) -> None:
    """Prints a result. In a terminal its headline and its answer are bold, and what does not fit into memory is red."""
    if not sys.stdout.isatty():
        print(text, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES.items():
        styled.highlight_regex(pattern, style)
    Console(highlight=False).print(styled, soft_wrap=True)


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Shows a status line on stderr, and yields a function that changes it; silent if stderr is not a terminal.

    The line ends where the terminal does, so that it can be wiped.
    """
    from rich.console import Console
    from rich.text import Text

    def line(text: str) -> Text:
        return Text(text, no_wrap=True, overflow="ellipsis")

    with Console(stderr=True).status(line(text)) as status:
        yield lambda text: status.update(line(text))


@contextmanager
def progress(text: str, prefix: str = "") -> Iterator[Callable[[str], None]]:
    """Yields a function that shows progress on stderr after a prefix: in a status line, or as lines if it is no terminal."""
    with working(text) as update:

        def report(activity: str) -> None:
            update(prefix + activity)
            if not sys.stderr.isatty():
                print(prefix + activity, file=sys.stderr, flush=True)

        yield report
