"""A server, and pages of it in a browser, for the explorer's tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import uvicorn

from scaleproof.reports.explorer.answer import answer
from scaleproof.reports.explorer.question import Shelf
from scaleproof.reports.explorer.server import app, own_hosts
from scaleproof.reports.explorer.serving import listen

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def explorer() -> Iterator[str]:
    """The address of a server in this process."""
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    config = uvicorn.Config(app(Shelf(), answer, answer, own_hosts("127.0.0.1", port)), log_level="warning")
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
