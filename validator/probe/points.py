"""Measured points of probes, one row each, and their tables, from which a cluster can be fitted again."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError

# Reasons for which a probe stopped repeating.
NARROW: Final = "narrow"
TIME: Final = "time"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
# Group of matrix products that were computed for seconds without a pause.
SUSTAINED: Final = "sustained"
# Name of all-to-alls in which one rank receives twice the mean, which no prediction uses.
UNEVEN_ALL_TO_ALL: Final = "alltoall uneven"
# What is timed of a folder of samples, by the probe "loading".
FILES_READ: Final = "files read"
FILES_DECODED: Final = "files decoded"

_COLUMNS: Final = (
    "probe", "what", "where", "ranks", "group", "size", "unit", "seconds", "stopped", "cores_busy", "numbers",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """Times of one probe at one size.

    probe: matmul | attention | memory | launch | host_copy | optimizer | layer | message | collective | overlap | update |
    loading | host_adam. what: what was timed, such as "fp32 512x512x512", "all_reduce" or "send". where: the ranks, such as
    "rank 0 to rank 3". group: class, such as "same socket" or "across" for messages, "4 ranks on 4 nodes" for collectives,
    "sustained" for products over seconds; "" otherwise. size: in `unit`, which is bytes, flops, samples, parameters or
    kernels. seconds: one per repetition after the warm-up, of the slowest rank if several take part. stopped: "narrow" if
    the interval of the median is narrow enough, "time" if the time or the number of repetitions was exhausted, "failed:
    why" or "skipped: why" without times. cores_busy: cores that all its ranks together kept busy. numbers: further numbers
    by name.
    """

    probe: str
    what: str
    where: str
    ranks: tuple[int, ...]
    group: str
    size: float
    unit: str
    seconds: tuple[float, ...]
    stopped: str
    cores_busy: float = 0.0
    numbers: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """The point with the data that `plain` returned."""
        return cls(**{**plain, "ranks": tuple(plain["ranks"]), "seconds": tuple(plain["seconds"])})

    def plain(self) -> dict[str, Any]:
        """The point as data for JSON."""
        return asdict(self)

    @property
    def median_s(self) -> float:
        """Median seconds of a repetition. Needs at least one."""
        return statistics.median(self.seconds)


def timed(points: Iterable[Point], probe: str, what: str | None = None) -> list[Point]:
    """Points of a probe that have times; only those of `what` if it is given."""
    return [point for point in points if point.probe == probe and point.seconds and what in (None, point.what)]


def count(points: Sequence[Point]) -> int:
    """Number of repetitions of all points."""
    return sum(len(point.seconds) for point in points)


def write(points: Iterable[Point], path: Path) -> None:
    """Writes points as a Parquet table, atomically."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    rows = [point.plain() | {"numbers": json.dumps(dict(point.numbers))} for point in points]
    text, number = pa.string(), pa.float64()
    types = dict.fromkeys(_COLUMNS, text) | {"size": number, "cores_busy": number}
    types |= {"ranks": pa.list_(pa.int64()), "seconds": pa.list_(number)}
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(types)), buffer)
    write_atomically(path, buffer.getvalue())


def read(path: Path) -> list[Point]:
    """Reads the points of a table. Raises InputError if the file cannot be read, is damaged, or has invalid sizes or times."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(io.BytesIO(path.read_bytes())).to_pylist()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; give a table of points that calibrate wrote") from None
    except pa.ArrowException:
        raise InputError(f"{path}: not a Parquet file; give a table of points that calibrate wrote") from None
    return [_point(path, number, row) for number, row in enumerate(rows, start=1)]


def _point(path: Path, number: int, row: Mapping[str, Any]) -> Point:
    missing = [name for name in _COLUMNS if row.get(name) is None]
    if missing:
        raise InputError(f"{path}: row {number} has no {', '.join(missing)}; give a table of points that calibrate wrote")
    try:
        point = Point.of({name: row[name] for name in _COLUMNS} | {"numbers": json.loads(row["numbers"])})
        sound = math.isfinite(point.size) and point.size >= 0 and _are_times(point.seconds)
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise InputError(f"{path}: row {number} is not a valid point: sizes and seconds must be 0 or more; remove the row")
    return point


def _are_times(seconds: Sequence[float]) -> bool:
    return all(math.isfinite(second) and second >= 0 for second in seconds)
