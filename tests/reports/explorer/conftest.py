"""A server, and pages of it in a browser, for the explorer's tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, get_args

import pytest
import uvicorn

from scaleproof.reports.explorer.question import Look, Question, Shelf
from scaleproof.reports.explorer.responses.answer import answer
from scaleproof.reports.explorer.server import app, own_hosts
from scaleproof.reports.explorer.serving import listen
from scaleproof.reports.explorer.worker import Report, unreported

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Here:
    """Responds to requests in this process, in place of a worker."""

    def __init__(self, ask: Callable[[Question, Report], bytes] = answer) -> None:
        self._ask = ask

    def ask(self, question: Question, report: Report = unreported) -> bytes:
        return self._ask(question, report)

    def stop(self) -> None:
        """Does nothing: nothing runs elsewhere."""


def workers(ask: Callable[[Question, Report], bytes] = answer) -> dict[Look, Here]:
    """What responds to each kind of request."""
    return dict.fromkeys(get_args(Look), Here(ask))


@pytest.fixture(scope="session")
def explorer() -> Iterator[str]:
    """The address of a server in this process."""
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    config = uvicorn.Config(app(Shelf(), workers(), own_hosts("127.0.0.1", port)), log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


@pytest.fixture
def page(chromium: Browser, explorer: str) -> Iterator[Page]:
    """A page of a context of its own; what it logs as an error, or requests elsewhere, fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    own = context.new_page()
    wrong: list[str] = []
    own.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    own.on("pageerror", lambda error: wrong.append(str(error)))
    own.on("request", lambda request: wrong.append(request.url) if not request.url.startswith((explorer, "data:")) else None)
    yield own
    context.close()
    assert wrong == []
