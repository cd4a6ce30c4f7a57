"""Writing of a cluster as a readable YAML file, and of its points to a table next to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.run.files import write_atomically
from scaleproof.validator.probe import points as tables
from scaleproof.validator.probe.points import Point

_HEADER: Final = "Measured by `scaleproof calibrate`. Every number may be edited; `scaleproof predict` uses what stands here."
_COMMENTS: Final = {
    "node": "one machine: what its ranks share, and the link between them",
    "network": "links between nodes: payload rate of large messages, latency of small ones",
    "device": "the device of a rank",
    "collectives": "each takes latency + size / bandwidth, with the size of the whole buffer",
    "uncertainty": "90 % intervals; shares are of all times of that kind; a prior applies to what is not listed",
    "provenance": "where the numbers come from; the measured times are in the table next to this file",
}


def write(cluster: Mapping[str, Any], path: Path, points: Iterable[Point] = ()) -> None:
    """Writes a cluster as YAML, and its points to a table next to it. Raises InputError if a file cannot be written."""
    parts = [f"# {_HEADER}\n"]
    for name, value in cluster.items():
        comment = f"\n# {_COMMENTS[name]}\n" if name in _COMMENTS else ""
        parts.append(comment + yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True, width=120))
    rows = list(points)
    try:
        if rows:
            tables.write(rows, points_path(path))
        write_atomically(path, "".join(parts).encode())
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}; give a path that can be written") from None


def points_path(path: Path) -> Path:
    """Path of the table of points of a cluster file."""
    return path.with_suffix(".points.parquet")
