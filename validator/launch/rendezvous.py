"""Meeting: how ranks that somebody else started find one another, and agree on what has become of them.

Process groups break when a rank fails; the store by which they were made stays, so that all ranks learn of the failure and go
on with the next scenario together. Nothing listens on more networks than it has to.
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
from scaleproof.validator.launch.rank_environment import MeetingPoint, PartedError, RankEnvironment

_BACKLOG: Final = 1024
# Ranks learn within the timeout that a peer is gone, not all at the same moment.
_SLACK_S: Final = 5.0
# Rank 0 has that long to tell why, where ranks cannot agree any more.
_LAST_WORDS_S: Final = 2.0


class Meeting:
    """The store that all ranks have in common."""

    def __init__(self, place: RankEnvironment, point: MeetingPoint, timeout_s: float) -> None:
        """Joins it. Raises InputError where the port is taken, RankError where nobody is there before the timeout."""
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
                f"rank {place.rank} found nobody {where}; is rank 0 running, and its port open to this machine?"
            ) from None
        # torchrun starts ranks again in the same store
        self._store = PrefixStore(f"scaleproof {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def new_group_store(self) -> Store:
        """Where the next process group is made."""
        self._groups += 1
        return PrefixStore(f"group {self._groups}", self._store)

    def together(self, function: Callable[[], Any], patience_s: float = 0.0) -> list[Any]:
        """Calls `function` on every rank and returns what each comes to, in rank order, which must be plain data for JSON.

        Where it raises an error of ours on some ranks, all raise it. patience_s: how long one may take beyond the timeout.
        """
        own: dict[str, Any] = {}
        try:
            own["result"] = function()
        except ScaleproofError as error:
            own |= {"error": str(error), "input": isinstance(error, InputError)}
        told = self.agree(own, patience_s)
        failed = [rank for rank, one in enumerate(told) if one is not None and "error" in one]
        if failed:
            first = told[failed[0]]
            everywhere = all(one is not None and one.get("error") == first["error"] for one in told)
            text = first["error"] if everywhere else f"rank {failed[0]}: {first['error']}"
            raise InputError(text) if first["input"] else RunError(text)
        self.check_all_there(told)
        return [one["result"] for one in told]

    def agree(self, own: Mapping[str, Any], patience_s: float = 0.0) -> list[Any]:
        """What each rank tells, in rank order, and None for those that tell nothing in time. Raises PartedError where the store
        is gone."""
        self._rounds += 1
        keys = [f"{self._rounds}/{rank}" for rank in range(self.place.ranks)]
        try:
            self._store.set(keys[self.place.rank], json.dumps(own))
            with contextlib.suppress(dist.DistStoreError):
                self._store.wait(keys, timedelta(seconds=self._timeout_s + _SLACK_S + patience_s))
            return [json.loads(self._store.get(key)) if self._store.check([key]) else None for key in keys]
        except dist.DistError:
            self._parted = True
            raise PartedError(f"rank {self.place.rank} has lost the others: what started them, or rank 0, has ended") from None

    def check_all_there(self, told: Sequence[Any]) -> None:
        """Raises PartedError naming the first rank that told nothing."""
        if None in told:
            self._parted = True
            rank = told.index(None)
            raise PartedError(f"rank {rank} has not answered for {self._timeout_s + _SLACK_S:g} s; look for what it printed")

    def give(self, what: str, value: bytes) -> None:
        """Leaves bytes for the others, to be told of by `agree`."""
        self._store.set(f"{self._rounds + 1}/{self.place.rank}/{what}", value)  # type: ignore[arg-type]

    def given(self, what: str, rank: int) -> bytes:
        """What `rank` gave before it told something in the last round."""
        return bytes(self._store.get(f"{self._rounds}/{rank}/{what}"))

    def part(self) -> None:
        """Waits for the others' end: launchers end all ranks when the first has failed, and rank 0 may have the store."""
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
        # NCCL takes a name for the beginning of one, unless told that it is all of it
        os.environ |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
        return
    if "GLOO_SOCKET_IFNAME" in os.environ and "NCCL_SOCKET_IFNAME" in os.environ:
        return
    name, own = network_interfaces.route_to(point.host, point.port)
    if network_interfaces.is_loopback(own) and place.local_ranks < place.ranks:
        reason = f"MASTER_ADDR={point.host} is {own} on {socket.gethostname()}, which other machines cannot reach"
        raise InputError(f"{reason}; set it to an address that they can, or give --interface NAME")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def _listen(point: MeetingPoint) -> int:
    """The descriptor of a socket that listens where the ranks meet, and nowhere else."""
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
