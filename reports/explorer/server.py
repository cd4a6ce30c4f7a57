"""The HTTP server of the explorer: page, scripts, styles, results and exports, for requests to its own host names."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scaleproof.reports.explorer.controls.library import scenario_groups
from scaleproof.reports.explorer.question import Look, Question, Shelf
from scaleproof.reports.explorer.responses.answer import as_yaml
from scaleproof.reports.explorer.worker import Report, UnansweredError, unreported
from scaleproof.simulator.common.errors import ScaleproofError


class Responder(Protocol):
    """What responds to requests: a worker process."""

    def ask(self, question: Question, report: Report = unreported) -> bytes:
        """The response to a request. Raises UnansweredError."""

    def stop(self) -> None:
        """Gives up the request that is being handled."""


_STATIC: Final = Path(__file__).parent / "static"
# what all pages do first: the theme that was chosen last
_HEAD: Final = Path(__file__).parents[1] / "templates" / "head.js"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_LONGEST_QUERY: Final = 16_000
# number of cached responses, for going back and forward
_KEPT: Final = 64
# questions that may wait for an answer
_MOST_WAITING: Final = 32
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Desk:
    """A queue of requests for a worker, one at a time. Requests of closed connections are dropped."""

    def __init__(self, worker: Responder) -> None:
        self._worker = worker
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._kept: OrderedDict[Question, bytes] = OrderedDict()

    async def answer(self, question: Question, gone: Callable[[], Awaitable[bool]]) -> bytes:
        """Raises UnansweredError; also where too many wait, and where nobody waits for this answer any longer."""
        if question in self._kept:
            self._kept.move_to_end(question)
            return self._kept[question]
        if self._waiting >= _MOST_WAITING:
            raise UnansweredError("Too many questions wait for an answer; try again in a moment.")
        self._waiting += 1
        try:
            async with self._turn:
                if await gone():
                    raise UnansweredError("Nobody waits for this answer any longer.")
                found = await run_in_threadpool(self._worker.ask, question)
        finally:
            self._waiting -= 1
        self._kept[question] = found
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return found

    async def lines(self, question: Question) -> AsyncIterator[bytes]:
        """Lines of JSON: progress messages, then the response. A request that nobody reads any longer is given up, and so is
        one when the next comes."""
        if self._turn.locked():
            self._worker.stop()
        async with self._turn:
            loop, texts = asyncio.get_running_loop(), asyncio.Queue[str | None]()

            def report(text: str | None) -> None:
                loop.call_soon_threadsafe(texts.put_nowait, text)

            def finish(done: asyncio.Future[bytes]) -> None:
                # also where nobody reads the result, which would be reported as an error
                if not done.cancelled():
                    done.exception()
                texts.put_nowait(None)

            request = asyncio.ensure_future(run_in_threadpool(self._worker.ask, question, report))
            request.add_done_callback(finish)
            try:
                while (text := await texts.get()) is not None:
                    yield json.dumps({"progress": text}).encode() + b"\n"
                try:
                    yield request.result() + b"\n"
                except UnansweredError as error:
                    yield _refusal(str(error)) + b"\n"
            finally:
                if not request.done():
                    self._worker.stop()


def app(shelf: Shelf, workers: Mapping[Look, Responder], hosts: Callable[[str], bool]) -> ASGIApp:
    """The web application. workers: what responds to each kind of request. hosts: accepted Host headers."""
    by_worker = {id(worker): Desk(worker) for worker in workers.values()}
    desks = {look: by_worker[id(worker)] for look, worker in workers.items()}

    async def answer(request: Request) -> Response:
        try:
            question = shelf.question(request.query_params.multi_items())
            if question.look == "plan":
                return StreamingResponse(desks["plan"].lines(question), media_type="application/x-ndjson")
            return _json(await desks[question.look].answer(question, request.is_disconnected))
        except (ScaleproofError, UnansweredError) as error:
            return _json(_refusal(str(error)), 400 if isinstance(error, ScaleproofError) else 503)

    async def scenario_yaml(request: Request) -> Response:
        try:
            question = shelf.question(request.query_params.multi_items())
            text = await run_in_threadpool(as_yaml, question)
        except ScaleproofError as error:
            return _text(f"{error}\n", 400)
        return _text(text, 200, {"content-disposition": 'attachment; filename="scenario.yaml"'})

    async def library(request: Request) -> Response:
        begin = shelf.begin
        return _json(json.dumps({"groups": scenario_groups(shelf.own), "query": begin.query()}).encode())

    routes = [Route(f"/{path.name}", _file(path)) for path in _STATIC.iterdir() if path.suffix in _TYPES]
    inner = Starlette(
        routes=[
            Route("/", _file(_STATIC / "page.html")),
            Route("/head.js", _file(_HEAD)),
            Route("/api/answer", answer),
            Route("/api/library", library),
            Route("/scenario.yaml", scenario_yaml),
            *routes,
        ],
        exception_handlers={404: _missing, 405: _missing},
    )
    # what is not there is not looked for elsewhere
    inner.router.redirect_slashes = False
    return _guarded(inner, hosts)


def _guarded(inner: ASGIApp, hosts: Callable[[str], bool]) -> ASGIApp:
    """Refuses cross-site and oversized requests, and adds security headers to all responses."""

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.decode("latin-1") not in _HEADERS]
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": kept + added}
            await send(message)

        refused = _refused(scope, hosts)
        await (refused or inner)(scope, receive, sent)

    return guard


def _refused(scope: Scope, hosts: Callable[[str], bool]) -> Response | None:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    if not hosts(headers.get("host", "")):
        return _text("This server is not called that; use the address that it printed.\n", 421)
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"] != "/":
        return _text("Other sites' pages may not ask here.\n", 403)
    if len(scope["query_string"]) > _LONGEST_QUERY:
        return _text(f"The address is too long; it has {_LONGEST_QUERY:,} characters at most.\n", 414)
    return None


def own_hosts(host: str, port: int) -> Callable[[str], bool]:
    """Accepted Host headers of a server on an address and port. Other names are refused because of DNS rebinding.

    A server on all addresses cannot know its names: it accepts IP addresses, which cannot be rebound, and localhost.
    """
    known = {host, "localhost"}
    try:
        is_any = ipaddress.ip_address(host).is_unspecified
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_any, is_loopback = False, host == "localhost"
    if is_loopback:
        known |= {"127.0.0.1", "::1"}

    def is_own(header: str) -> bool:
        name, colon, number = header.rpartition(":")
        if not colon or not number.isdecimal() or header.endswith("]"):
            name, number = header, "80"
        name = name.removeprefix("[").removesuffix("]").lower()
        return number == str(port) and (name in known or (is_any and _is_number(name)))

    return is_own


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _file(path: Path) -> Callable[[Request], Awaitable[Response]]:
    async def send(request: Request) -> Response:
        # read each time: a file of some kB, and a page that is being written is seen at once
        return Response(path.read_bytes(), media_type=f"{_TYPES[path.suffix]}; charset=utf-8")

    return send


async def _missing(request: Request, error: Exception) -> Response:
    return _text("There is nothing here; the page is at /.\n", getattr(error, "status_code", 404))


def _refusal(message: str) -> bytes:
    return json.dumps({"error": {"field": "", "message": message, "remedies": []}}).encode()


def _json(content: bytes, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")


def _text(content: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="text/plain; charset=utf-8")
