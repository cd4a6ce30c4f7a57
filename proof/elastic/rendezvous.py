"""Duration of torchrun's c10d rendezvous after a failure.

Hosts that leave the old round join the next one: immediately if all have left, otherwise from a waiting list, polling every
second (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, as in torch 2.11 to 2.13). A round is complete when it has
its largest number of hosts, or its smallest number and none has joined during the last call. A dead host counts as present
until enough heartbeats are missing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

POLL_S: Final = 1.0
# Upper bound of the random delay with which agents leave the first round.
PUT_OFF_S: Final = 0.3
# Seconds for which an agent uses its cached state of the rendezvous.
CACHED_S: Final = 1.0


@dataclass(frozen=True)
class Settings:
    """Settings of torchrun. hosts: smallest and largest number. monitor_s: between an agent's polls of its ranks. keep_alive_s:
    between heartbeats. attempts: number of heartbeats that may be missing. last_call_s: see above."""

    hosts: tuple[int, int]
    monitor_s: float = 0.1
    keep_alive_s: int = 1
    attempts: int = 3
    last_call_s: int = 2
    restarts: int = 3

    def arguments(self, endpoint: str, own_address: str, hosts_store: bool) -> list[str]:
        """torchrun's command line up to the program."""
        configuration = {
            "is_host": int(hosts_store),
            "keep_alive_interval": self.keep_alive_s,
            "keep_alive_max_attempt": self.attempts,
            "last_call_timeout": self.last_call_s,
        }
        options = {
            "nnodes": ":".join(map(str, self.hosts)),
            "nproc-per-node": 1,
            "rdzv-backend": "c10d",
            "rdzv-endpoint": endpoint,
            "rdzv-id": "elastic",
            "rdzv-conf": ",".join(f"{name}={value}" for name, value in configuration.items()),
            "max-restarts": self.restarts,
            "monitor-interval": self.monitor_s,
            "local-addr": own_address,
        }
        return [f"--{name}={value}" for name, value in options.items()]

    @property
    def missing_s(self) -> float:
        """Seconds without heartbeats after which a host counts as gone."""
        return self.keep_alive_s * self.attempts


def met_s(leave_s: Sequence[float], settings: Settings, gone_s: float = -math.inf, waiting_s: Sequence[float] = ()) -> float:
    """When the last host joins the new round, given when each leaves the old one. gone_s: when a dead host counts as gone, if
    there is one. waiting_s: when each host that was not in the old round looks first."""
    old = set(range(len(leave_s)))
    new: set[int] = set()
    deadline_s, complete = math.inf, False
    looks = [(at_s, host) for host, at_s in enumerate([*leave_s, *waiting_s])]
    heapq.heapify(looks)
    fewest, most = settings.hosts
    at_s = 0.0
    while looks:
        at_s, host = heapq.heappop(looks)
        old.discard(host)
        if old or at_s <= gone_s:
            heapq.heappush(looks, (at_s + POLL_S, host))
            continue
        if host not in new and not complete:
            new.add(host)
            deadline_s = at_s + settings.last_call_s if len(new) == fewest else deadline_s
            complete = len(new) == most
        elif len(new) >= fewest and deadline_s <= at_s:
            complete = True
        if not complete or host not in new:
            heapq.heappush(looks, (at_s + POLL_S, host))
    return at_s
