"""Rendezvous of ranks started by another launcher: a common store, by which they also report failures to one another.

Process groups break when a rank fails; the store remains, so that all ranks learn of the failure and continue with the next
scenario together. Sockets listen on one network only.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from scaleproof.simulator.common.errors import InputError, RankError, RunError, ScaleproofError
from scaleproof.validator.launch import network_interfaces
from scaleproof.validator.launch.rank_environment import ContactLostError, MeetingPoint, RankEnvironment

_BACKLOG: Final = 1024
# Ranks notice within the timeout that a peer has ended, at different times.
_SLACK_S: Final = 5.0
# Time that rank 0 has to report the cause before the others end.
_LAST_WORDS_S: Final = 2.0


class Meeting:
    """The common store of all ranks."""

    def __init__(self, place: RankEnvironment, point: MeetingPoint, timeout_s: float) -> None:
        """Joins the store. Raises InputError where the port is in use, RankError where it cannot be reached in time."""
        self.place: Final = place
        self._timeout_s = timeout_s
        self._rounds = self._groups = 0
        self._parted = False
        first = place.rank == 0 and not point.hosted
        listener = _listen(point) if first else None
        patience = timedelta(seconds=timeout_s)
        try:
            store = TCPStore(point.host, point.port, None, first, patience, wait_for_workers=False, master_listen_fd=listener)
        except dist.DistError:
            where = f"at {point.host}:{point.port} within {timeout_s:g} s"
            raise RankError(
                f"rank {place.rank} could not connect {where}; is rank 0 running, and its port open to this machine?"
            ) from None
        # torchrun restarts ranks with the same store
        self._store = PrefixStore(f"scaleproof {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def new_group_store(self) -> Store:
        """The store of the next process group."""
        self._groups += 1
        return PrefixStore(f"group {self._groups}", self._store)

    def together(self, function: Callable[[], Any], patience_s: float = 0.0) -> list[Any]:
        """Calls `function` on every rank and returns all results, in rank order, which must be plain data for JSON.

        If it raises a ScaleproofError on some ranks, all ranks raise it. patience_s: allowed seconds beyond the timeout.
        """
        own: dict[str, Any] = {}
        try:
            own["result"] = function()
        except ScaleproofError as error:
            own |= {"error": str(error), "input": isinstance(error, InputError)}
        outcomes = self.agree(own, patience_s)
        failed = [rank for rank, outcome in enumerate(outcomes) if outcome is not None and "error" in outcome]
        if failed:
            first = outcomes[failed[0]]
            everywhere = all(outcome is not None and outcome.get("error") == first["error"] for outcome in outcomes)
            text = first["error"] if everywhere else f"rank {failed[0]}: {first['error']}"
            raise InputError(text) if first["input"] else RunError(text)
        self.check_all_there(outcomes, patience_s)
        return [outcome["result"] for outcome in outcomes]

    def agree(self, own: Mapping[str, Any], patience_s: float = 0.0) -> list[Any]:
        """All-gather of `own` through the store, in rank order, None for ranks that are too late.

        Raises ContactLostError where the store cannot be reached any more.
        """
        self._rounds += 1
        keys = [f"{self._rounds}/{rank}" for rank in range(self.place.ranks)]
        try:
            self._store.set(keys[self.place.rank], json.dumps(own))
            with contextlib.suppress(dist.DistStoreError):
                self._store.wait(keys, timedelta(seconds=self._timeout_s + _SLACK_S + patience_s))
            return [json.loads(self._store.get(key)) if self._store.check([key]) else None for key in keys]
        except dist.DistError:
            self._parted = True
            raise ContactLostError(
                f"rank {self.place.rank} has lost the others: their launcher, or rank 0, has ended"
            ) from None

    def check_all_there(self, messages: Sequence[Any], patience_s: float = 0.0) -> None:
        """Raises ContactLostError naming the first rank without a message in the result of `agree` with `patience_s`."""
        if None in messages:
            self._parted = True
            rank = messages.index(None)
            waited_s = self._timeout_s + _SLACK_S + patience_s
            raise ContactLostError(f"rank {rank} has not responded for {waited_s:g} s; look at its output")

    def give(self, name: str, value: bytes) -> None:
        """Writes bytes for the other ranks, who can read them after the next `agree`."""
        self._store.set(f"{self._rounds + 1}/{self.place.rank}/{name}", value)  # type: ignore[arg-type]

    def given(self, name: str, rank: int) -> bytes:
        """The bytes that `rank` has written by `give` before the last `agree`."""
        return bytes(self._store.get(f"{self._rounds}/{rank}/{name}"))

    def part(self) -> None:
        """Waits for the others' end: launchers end all ranks when the first has failed, and rank 0 may host the store."""
        if self._parted:
            time.sleep(0.0 if self.place.rank == 0 else _LAST_WORDS_S)
            return
        with contextlib.suppress(RankError):
            self.agree({})


_met: list[Meeting] = []


def meet(place: RankEnvironment, point: MeetingPoint, interface: str | None, timeout_s: float) -> Meeting:
    """The meeting that this process has joined, until it ends.

    interface: on which process groups talk; if None, that by which rank 0's machine is reached, unless the variables that gloo
    and NCCL have for it are set. Raises as `Meeting` does, and InputError where an interface is not there or of no use.
    """
    if not _met:
        _choose_interface(place, point, interface)
        _met.append(Meeting(place, point, timeout_s))
        atexit.register(_part)
    return _met[0]


def _part() -> None:
    while _met:
        _met.pop().part()


def _choose_interface(place: RankEnvironment, point: MeetingPoint, interface: str | None) -> None:
    if interface is not None:
        network_interfaces.check(interface)
        # NCCL takes a name as a prefix unless it follows '='
        os.environ |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
        return
    if "GLOO_SOCKET_IFNAME" in os.environ and "NCCL_SOCKET_IFNAME" in os.environ:
        return
    name, own = network_interfaces.route_to(point.host, point.port)
    if network_interfaces.is_loopback(own) and place.local_ranks < place.ranks:
        reason = f"MASTER_ADDR={point.host} is {own} on {socket.gethostname()}, which other machines cannot reach"
        raise InputError(f"{reason}; set it to an address that they can reach, or give --interface NAME")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def _listen(point: MeetingPoint) -> int:
    """The descriptor of a socket that listens only at the meeting point."""
    where = f"{point.host}:{point.port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(point.host, point.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
    except OSError as error:
        raise InputError(f"MASTER_ADDR={point.host}: {error.strerror}; give an address of rank 0's machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"ranks cannot meet at {where}: {error.strerror}; set MASTER_PORT to a free port") from None
    return listener.detach()
