"""Background traffic on the link of a host, by datagrams that nobody reads.

A sender on the host and one on another host send at a constant rate, whatever the link's queues, as traffic that does not react
to congestion. Its rate counts as frames do that a link's token bucket lets through.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from scaleproof.validator.netlab.lab import Netlab
from scaleproof.validator.netlab.wiring import ETHERNET_BYTES

# The first host's; one for each host, as traffic of several comes from the same other host.
_PORT: Final = 9000
# Headers of IP and UDP, with which a datagram fills a frame; the header of Ethernet counts for the link.
_IP_UDP_BYTES: Final = 28
# Sends a datagram each period until the process that started it ends: arguments are its process id, the address, the port, the
# payload in bytes and the period in seconds. What it receives stays in the socket's buffer, which drops the rest.
_SENDER: Final = """
import os, socket, sys, time
parent, address, port, size, period_s = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
link.bind(("", port))
due_s, datagram = time.monotonic(), bytes(size)
while os.getppid() == parent:
    link.sendto(datagram, (address, port))
    due_s = max(due_s + period_s, time.monotonic() - 10 * period_s)
    time.sleep(max(0.0, due_s - time.monotonic()))
"""


@contextmanager
def background_traffic(lab: Netlab, host: int, other: int, rate_Bps: float) -> Iterator[None]:
    """Sends `rate_Bps` bytes/s of frames from a host to another one and as many back, within the context. Raises RunError where
    the lab is not up."""
    with ExitStack() as stack:
        for source, target in ((host, other), (other, host)):
            period_s = (lab.mtu + ETHERNET_BYTES) / rate_Bps
            arguments = (os.getpid(), lab.address(target), _PORT + host, lab.mtu - _IP_UDP_BYTES, period_s)
            argv = [sys.executable, "-S", "-c", _SENDER, *map(str, arguments)]
            process = subprocess.Popen(lab.command(source, argv))
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
