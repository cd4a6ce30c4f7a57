"""Worker processes for requests, so that the page stays responsive.

One that takes too long, or dies, is replaced.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

from scaleproof.reports.explorer.question import Question

# seconds after which nobody waits any longer in front of a page
LIMIT_S: Final = 15.0
# to import what predicts, on a busy machine
_READY_S: Final = 60.0
_NICE: Final = 10
_LEAST_MEMORY_BYTES: Final = 4 * 2**30

Report = Callable[[str], None]
Answer = Callable[[Question, Report], bytes]


class UnansweredError(Exception):
    """Raised for a request without a response; the message is the reason."""


def unreported(_: str) -> None:
    """Ignores progress."""


class Worker:
    """A process that handles requests one after another, by `answer`. yields: run at low priority. lazy: start with the first
    request."""

    def __init__(self, answer: Answer, limit_s: float = LIMIT_S, yields: bool = False, lazy: bool = False) -> None:
        self._answer = answer
        self._limit_s = limit_s
        self._yields = yields
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        if not lazy:
            self._start()

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._answer, self._yields), daemon=True)
        self._process.start()
        theirs.close()
        self._is_ready = False
        return self._connection

    def ask(self, question: Question, report: Report = unreported) -> bytes:
        """The response to a request, one at a time. report: called with progress messages. Raises UnansweredError."""
        with self._lock:
            if self._connection is not None and not self._process.is_alive():
                self.close()
            connection = self._connection or self._start()
            try:
                if not self._is_ready:
                    self._is_ready = connection.poll(_READY_S) and connection.recv() is None
                connection.send(question)
                found = self._received(connection, report)
            except (EOFError, OSError):
                self.close()
                raise UnansweredError(
                    "The prediction was stopped: it needs more memory than this page may use, or a later request replaced it; "
                    "give smaller numbers, such as of workers or steps."
                ) from None
            if found is not None:
                return found
            self.close()
        raise UnansweredError(
            f"The prediction takes longer than {self._limit_s:g} s, too long for this page; give smaller numbers, such as of "
            "microbatches, workers or steps, or run the command below in a terminal."
        )

    def _received(self, connection: Connection, report: Report) -> bytes | None:
        """The response, after its progress messages; None after the time limit."""
        end_s = time.monotonic() + self._limit_s
        while connection.poll(max(0.0, end_s - time.monotonic())):
            found = connection.recv()
            if isinstance(found, bytes):
                return found
            report(found)
        return None

    def stop(self) -> None:
        """Gives up the request that is being handled: it raises UnansweredError, and the next one has another process."""
        if self._connection is not None:
            self._process.kill()
            self._process.join()

    def close(self) -> None:
        """Ends the process at once; no request must be in progress."""
        if self._connection is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._connection = None


def _serve(connection: Connection, answer: Answer, yields: bool) -> None:
    """The main loop of the process: reports that it is ready, then handles requests until the connection closes."""
    import gc
    import os
    import resource
    import signal

    # the terminal's Ctrl-C is for the server, which ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE if yields else 0)
    has_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    resource.setrlimit(resource.RLIMIT_AS, (max(_LEAST_MEMORY_BYTES, has_bytes // 2), resource.RLIM_INFINITY))
    answer(Question("gpt3-1.3b-diloco-wan"), unreported)
    # what was imported stays: looking through it again and again is time lost
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    try:
        connection.send(None)
        while True:
            connection.send(answer(connection.recv(), connection.send))
    except (EOFError, BrokenPipeError):
        pass
