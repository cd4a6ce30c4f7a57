"""Interruption of commands: SIGTERM ends a command as Ctrl-C does, and both say what they interrupted and how it continues."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from scaleproof.simulator.common.errors import ExitCode


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Makes SIGTERM raise Terminated, once, unless the process has a handler of its own or this is not its main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    # `timeout` sends it twice, and the second one must not interrupt what ends processes and writes results
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def interruption(error: KeyboardInterrupt, options: argparse.Namespace) -> tuple[str, int]:
    """A line that says what was interrupted and how it continues, and the exit code.

    error: its notes say what is finished, and how the command continues. options: of the command line.
    """
    notes = getattr(error, "__notes__", [])
    if not notes and hasattr(options, "resume") and options.out:
        notes = [f"--out {options.out} --resume continues"]
    by, code = (" by SIGTERM", ExitCode.TERMINATED) if isinstance(error, Terminated) else ("", ExitCode.INTERRUPTED)
    return "; ".join([f"{options.prog} interrupted{by}", *notes]), code
