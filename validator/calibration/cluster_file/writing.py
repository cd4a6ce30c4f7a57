"""Writing: a cluster as a YAML file that people can read, and its points beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.run.run import write_aside
from scaleproof.validator.probe import points as tables
from scaleproof.validator.probe.points import Point

_HEADER: Final = "Measured by `scaleproof calibrate`. Every number may be edited; `scaleproof predict` uses what stands here."
_COMMENTS: Final = {
    "node": "one machine: what its ranks share, and what joins them",
    "network": "what joins the nodes: payload's rate by large messages, latency by small ones",
    "device": "what a rank computes on",
    "collectives": "each takes latency + size / bandwidth, of the whole buffer",
    "uncertainty": "90 % intervals; shares are of all times of that kind; a prior holds for what is not here",
    "provenance": "where the numbers come from; the times themselves are in the table beside this file",
}


def write(cluster: Mapping[str, Any], path: Path, points: Iterable[Point] = ()) -> None:
    """Writes a cluster as YAML that people can read, and its points beside it. Raises InputError where that cannot be."""
    parts = [f"# {_HEADER}\n"]
    for name, value in cluster.items():
        comment = f"\n# {_COMMENTS[name]}\n" if name in _COMMENTS else ""
        parts.append(comment + yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True, width=120))
    rows = list(points)
    try:
        if rows:
            tables.write(rows, points_path(path))
        write_aside(path, "".join(parts).encode())
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}; give a file that can be written") from None


def points_path(path: Path) -> Path:
    """Where the points of a cluster file are."""
    return path.with_suffix(".points.parquet")
