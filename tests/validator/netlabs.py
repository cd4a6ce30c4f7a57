"""Labs for tests: whether this machine can build them, and clusters small enough for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.validator.netlab import lab


def _what_is_missing() -> str:
    try:
        lab.require()
    except ScaleproofError as error:
        return str(error)
    return ""


_missing = _what_is_missing()
# In CI a lab that cannot be built is a failure, not a reason to skip.
needs_netlab = pytest.mark.skipif(bool(_missing) and "CI" not in os.environ, reason=_missing or "netlab can be built")


def lab_cluster(nodes: int = 4, bandwidth: str = "500 Mbit/s", **network: Any) -> Cluster:
    """A cluster of `nodes` hosts of one process each; `network` gives further fields of the network."""
    device = {"name": "cpu", "peak": {"fp32": "50 GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "10 GB/s"}
    return Cluster.model_validate(
        {
            "nodes": nodes,
            "node": {"cores": 2},
            "network": {"bandwidth": bandwidth, "latency": "60 us", **network},
            "device": device,
        }
    )


def namespace_numbers(paths: Iterable[Path]) -> set[int]:
    """The inodes that identify namespaces."""
    return {path.stat().st_ino for path in paths}


def still_open(numbers: set[int]) -> set[int]:
    """Those of the namespaces that any process is in or holds open; without either the kernel removes them."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # processes may end during the inspection
        with contextlib.suppress(OSError):
            for place in (process / "ns/net", *(process / "fd").iterdir()):
                with contextlib.suppress(OSError):
                    link = os.readlink(place)
                    if link.startswith("net:["):
                        found.add(int(link[5:-1]))
    return numbers & found
