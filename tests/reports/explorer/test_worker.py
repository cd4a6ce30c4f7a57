"""Worker processes respond again after any failed request."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scaleproof.reports.explorer.question import Question
from scaleproof.reports.explorer.worker import Report, UnansweredError, Worker


def answer(question: Question, report: Report) -> bytes:
    """Returns its process id, unless the request says to sleep or to die."""
    report("working")
    if question.reference == "sleep":
        time.sleep(60)
    if question.reference == "die":
        os._exit(1)
    return str(os.getpid()).encode()


@pytest.mark.full
def test_the_worker_restarts_after_timeouts_and_crashes() -> None:
    worker = Worker(answer, limit_s=0.5, lazy=True)
    progress: list[str] = []
    try:
        first = worker.ask(Question("fast"))
        assert worker.ask(Question("fast"), progress.append) == first
        assert progress == ["working"]
        with pytest.raises(UnansweredError, match=r"longer than 0\.5 s"):
            worker.ask(Question("sleep"))
        second = worker.ask(Question("fast"))
        assert second != first
        with pytest.raises(UnansweredError, match="memory"):
            worker.ask(Question("die"))
        third = worker.ask(Question("fast"))
        assert third not in (first, second)
    finally:
        worker.close()


@pytest.mark.full
def test_a_request_that_is_given_up_ends_at_once() -> None:
    worker = Worker(answer, limit_s=30, lazy=True)
    begun = threading.Event()
    try:
        with ThreadPoolExecutor(1) as pool:
            request = pool.submit(worker.ask, Question("sleep"), lambda _: begun.set())
            assert begun.wait(60)
            worker.stop()
            with pytest.raises(UnansweredError, match="was stopped"):
                request.result(5)
        assert worker.ask(Question("fast"))
        worker.stop()
        assert worker.ask(Question("fast"))
    finally:
        worker.close()
