"""What commands print: a result as text or as JSON on stdout, and their progress on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.status import Status


def print_json(data: Any) -> int:
    """Prints plain data as JSON, and returns exit code 0."""
    print(json.dumps(data, indent=2))
    return 0


def print_result(options: argparse.Namespace, data: Callable[[], Any], text: Callable[[], str]) -> int:
    """Prints a result as JSON with `--json`, otherwise as text, and returns exit code 0."""
    if options.json:
        return print_json(data())
    print(text(), flush=True)
    return 0


def working(text: str) -> Status:
    """A status line on stderr; silent if stderr is not a terminal."""
    from rich.console import Console

    return Console(stderr=True).status(text)


@contextmanager
def progress(text: str, prefix: str = "") -> Iterator[Callable[[str], None]]:
    """Yields a function that shows progress on stderr after a prefix: in a status line, or as lines if it is no terminal."""
    with working(text) as status:

        def report(activity: str) -> None:
            status.update(prefix + activity)
            if not status.console.is_terminal:
                print(prefix + activity, file=sys.stderr, flush=True)

        yield report
