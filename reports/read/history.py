"""The history of reconciled runs and calibrations (history.sqlite) as tables, and the detection of drift."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from scaleproof.simulator.common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

FILE: Final = "history.sqlite"
# Version of the tables and application id ("scal" in ASCII), as in scaleproof.validator.reconciliation.history.
_VERSION: Final = 1
_APPLICATION: Final = 0x7363616C
_PATIENCE_S: Final = 30.0
# Confidence level of drift.
_SURE: Final = 0.99
# Half-width of a 95 % interval in standard deviations, and standard deviation per median absolute deviation (normal).
_IN_95: Final = 1.9600
_MAD: Final = 1.4826
# Minimum number of earlier runs to estimate their scatter.
_FEWEST: Final = 3
# Minimum relative deviation between runs, whatever their own intervals: cores heat up, others use the network.
_LEAST: Final = 0.01

Verdict = Literal["steady", "drifts", "too few"]


@dataclass(frozen=True)
class History:
    """Two tables, oldest first; times as `at`, in UTC.

    reconciled: a row for each measured run: host, scenario, workload (the same for the same work), strategy, cluster,
    cluster_digest (the same for the same numbers), predicted_s, its 90 % interval predicted_low_s to predicted_high_s,
    measured_s, its 95 % interval, error, parts (breakdowns of both sides), versions of what it ran with.
    calibrated: host, cluster, cluster_digest, quantity, value and its 90 % interval low to high, in SI units.
    """

    reconciled: pd.DataFrame
    calibrated: pd.DataFrame


@dataclass(frozen=True)
class Drift:
    """A scenario's latest step time against the median of those before.

    change: relative to the median. reach: largest change of a steady cluster in 99 of 100 runs; infinite if there are too few
    runs to estimate it.
    """

    scenario: str
    host: str
    runs: int
    latest_s: float
    earlier_s: float
    change: float
    reach: float

    @property
    def verdict(self) -> Verdict:
        """ "drifts" if the change exceeds the reach, "steady" if not, "too few" without a reach."""
        if not math.isfinite(self.reach):
            return "too few"
        return "drifts" if abs(self.change) > self.reach else "steady"

    def plain(self) -> dict[str, Any]:
        """The drift as plain data for JSON."""
        return asdict(self) | {"reach": self.reach if math.isfinite(self.reach) else None, "verdict": self.verdict}


def read(place: Path) -> History:
    """Reads the history in a folder or file. Raises InputError if it is not a history."""
    path = place / FILE if place.is_dir() else place
    if not path.is_file():
        folder = path.parent if path.suffix else path
        raise InputError(f"{path}: no history here; scaleproof reconcile --out {folder} creates one")
    try:
        # escape characters of the path that are special in a URI
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_PATIENCE_S)) as connection:
            _check(connection, path)
            return History(_table(connection, "reconciled"), _table(connection, "calibrated"))
    except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: cannot be read as a history ({error}); move it away to begin a new one") from None


def _check(connection: sqlite3.Connection, path: Path) -> None:
    application, version = (connection.execute(f"pragma {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if application != _APPLICATION:
        raise InputError(f"{path}: a database, but not a history of scaleproof; give a folder that reconcile wrote with --out")
    if version != _VERSION:
        raise InputError(
            f"{path}: a history of version {version}, expected version {_VERSION}; use the version of scaleproof that wrote it"
        )


def _table(connection: sqlite3.Connection, name: str) -> pd.DataFrame:
    """Raises ValueError where a value cannot be read."""
    import pandas as pd

    cursor = connection.execute(f"select * from {name}")  # noqa: S608 - a name of our own
    table = pd.DataFrame(cursor.fetchall(), columns=[column for column, *_ in cursor.description])
    table["at"] = pd.to_datetime(table["at"], utc=True, format="ISO8601")
    for column in table.columns:
        if column.endswith("_s") or column in ("value", "low", "high", "error"):
            table[column] = table[column].astype(float)
        elif column in ("parts", "versions"):
            table[column] = table[column].map(json.loads)
    return table.sort_values("at", kind="stable", ignore_index=True)


def drifts(reconciled: pd.DataFrame) -> list[Drift]:
    """The drift of each scenario on each host with more than one run of the same work."""
    result = []
    for _, runs in reconciled.groupby(["scenario", "host", "workload"], sort=False):
        if len(runs) > 1:
            result.append(_drift(runs))
    return result


def _drift(runs: pd.DataFrame) -> Drift:
    """The drift of runs of the same work, oldest first."""
    times_s = runs["measured_s"].to_numpy()
    intervals_s = runs["measured_high_s"] - runs["measured_low_s"]
    own = [float(share) for share in (intervals_s / runs["measured_s"] / (2 * _IN_95)).dropna()]
    earlier_s = float(runs["measured_s"].iloc[:-1].median())
    return Drift(
        scenario=str(runs["scenario"].iloc[-1]),
        host=str(runs["host"].iloc[-1]),
        runs=len(runs),
        latest_s=float(times_s[-1]),
        earlier_s=earlier_s,
        change=float(times_s[-1]) / earlier_s - 1,
        reach=_reach([float(t) / earlier_s - 1 for t in times_s[:-1]], own),
    )


def _reach(earlier: Sequence[float], own: Sequence[float]) -> float:
    """Largest relative change of one more run from the median of earlier runs, by their scatter and the runs' own intervals.

    earlier: deviations of earlier runs from their median, relative to it. own: relative standard deviations within runs.
    """
    import numpy as np
    from scipy.stats import t

    count = len(earlier)
    if count < _FEWEST:
        return math.inf
    deviation = max(_MAD * float(np.median(np.abs(earlier))), float(np.median(own)) if own else 0.0, _LEAST)
    # the variance of a median is pi / 2 times that of a mean
    return float(t.ppf((1 + _SURE) / 2, count - 1)) * deviation * math.sqrt(1 + math.pi / 2 / count)
