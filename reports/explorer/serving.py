"""Serves the explorer on an address of this machine until it is interrupted."""

from __future__ import annotations

import contextlib
import socket
import webbrowser
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from scaleproof.reports.explorer.question import Look, Shelf
from scaleproof.reports.explorer.responses.answer import answer, scenario_of
from scaleproof.reports.explorer.server import app, own_hosts
from scaleproof.reports.explorer.worker import Worker
from scaleproof.simulator.common.errors import RunError

# seconds in which a client must send a whole request
_PATIENCE_S: Final = 10.0
# in which a plan must be found
_PLAN_LIMIT_S: Final = 120.0


class Connection(H11Protocol):
    """A connection that is closed when a request is not complete in time."""

    _timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Waits for the rest of a request, or no longer if it is complete."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        """Starts the timer if a request is incomplete, and stops it if not."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(_PATIENCE_S, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def serve(shelf: Shelf, host: str, port: int, opens: bool, say: Callable[[str], None] = print) -> None:
    """Serves the page until Ctrl-C. opens: open it in a browser.

    Raises RunError if the address is not available, InputError if the scenario cannot be read.
    """
    scenario_of(shelf.begin)
    listening = listen(host, port)
    port = listening.getsockname()[1]
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    with _workers() as workers:
        config = uvicorn.Config(
            app(shelf, workers, own_hosts(host, port)),
            log_level="warning",
            access_log=False,
            http=Connection,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        say(f"{where}{shelf.begin.query()}\nCtrl-C ends it")
        if not _is_loopback(host):
            say(f"whoever reaches {host} can use it; leave --host out to keep it to this machine")
        if opens:
            webbrowser.open(where + shelf.begin.query())
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt as interrupt:
            # Ctrl-C is how serving ends; a subclass stands for another signal
            if type(interrupt) is not KeyboardInterrupt:
                raise


@contextlib.contextmanager
def _workers() -> Iterator[Mapping[Look, Worker]]:
    """Workers for each kind of request, so that slow ones do not delay first looks. A plan starts its own when it is wanted."""
    first, full, around = Worker(answer), Worker(answer, yields=True), Worker(answer, yields=True)
    planner = Worker(answer, limit_s=_PLAN_LIMIT_S, yields=True, lazy=True)
    try:
        yield {"first": first, "full": full, "curves": around, "comparison": around, "plan": planner}
    finally:
        for worker in (first, full, around, planner):
            worker.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises RunError if the address is in use, or does not belong to this machine."""
    if not 0 <= port < 2**16:
        raise RunError(f"--port {port}: ports go up to 65535; give another, or 0 for any that is free")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            # who comes before the server is up waits
            listening.listen()
        except OSError:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(f"--host {host} --port {port}: {reason}; give another --port, or 0 for any that is free") from None
    return listening


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
