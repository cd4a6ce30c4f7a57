"""Worker processes respond again after any failed request."""

from __future__ import annotations

import os
import time

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
        assert worker.ask(Question("fast")) not in (first, second)
    finally:
        worker.close()
