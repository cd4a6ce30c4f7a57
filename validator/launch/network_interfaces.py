"""Network interfaces of this machine: the one on which ranks listen, so that they do not listen on all of them."""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from scaleproof.simulator.common.errors import InputError

# Offset and length in bytes of an address in struct sockaddr, by family.
_IN_SOCKADDR: Final = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


class _Entry(ctypes.Structure):
    """struct ifaddrs of ifaddrs.h, as far as it is used here."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(ctypes.c_ubyte)),
]


def check(name: str) -> None:
    """Raises InputError where this machine has no interface of that name."""
    known = [known for _, known in socket.if_nameindex()]
    if name not in known:
        raise InputError(f"--interface {name}: {socket.gethostname()} has no such interface; give one of {', '.join(known)}")


def route_to(host: str, port: int) -> tuple[str, str]:
    """The interface by which messages to `host` leave this machine, and its address. Nothing is sent.

    Raises InputError where the name is unknown or there is no route.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    except OSError:
        raise InputError(f"MASTER_ADDR={host}: no host of that name; give the address of the machine of rank 0") from None
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise InputError(
            f"MASTER_ADDR={host} cannot be reached: {error.strerror}; give an address of rank 0's machine"
        ) from None
    return _interface_of(own), own


def is_loopback(address: str) -> bool:
    """Whether the address can be reached only from this machine."""
    return address.startswith("127.") or address == "::1"


def _interface_of(address: str) -> str:
    """The interface with the address; the loopback interface has all that start with 127."""
    wanted = "127.0.0.1" if address.startswith("127.") else address.partition("%")[0]
    with _entries() as entries:
        for name, entry_address in entries:
            if entry_address == wanted:
                return name
    raise InputError(f"no interface of this machine has the address {address}; give --interface NAME")


@contextmanager
def _entries() -> Iterator[Iterator[tuple[str, str]]]:
    """(interface, address) pairs; an interface may have several addresses."""
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if library.getifaddrs(ctypes.byref(first)):
        raise InputError("the interfaces of this machine cannot be listed; give --interface NAME")
    try:
        yield _walk(first)
    finally:
        library.freeifaddrs(first)


def _walk(entry: ctypes._Pointer[_Entry]) -> Iterator[tuple[str, str]]:
    while entry:
        head = entry.contents.address
        if head:
            # BSDs put a length before the family, in one byte each
            family = head[1] if sys.platform == "darwin" else head[0] | head[1] << 8
            if family in _IN_SOCKADDR:
                first, length = _IN_SOCKADDR[socket.AddressFamily(family)]
                raw = bytes(head[first : first + length])
                yield entry.contents.name.decode(), socket.inet_ntop(family, raw)
        entry = entry.contents.next
