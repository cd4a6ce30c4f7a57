"""History of every reconciled run and every calibrated quantity, in an SQLite file of the output folder.

`scaleproof.reports.read.history` reads it. Several processes may append concurrently.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import InputError, RunError

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.scenario.schema import Scenario
    from scaleproof.validator.reconciliation.reconcile import ReconciledCase

FILE: Final = "history.sqlite"
# Version of the tables, stored as SQLite's user_version; owner of the file, stored as application_id: "scal" in ASCII.
VERSION: Final = 1
APPLICATION: Final = 0x7363616C
# How long to wait while another process writes.
_PATIENCE_S: Final = 30.0
# Provenance of measured runs that changes over time.
_VERSIONS: Final = ("system", "python", "torch", "nccl", "cuda", "rccl", "hip", "driver")
# Times are in seconds, also in quantities; rates in bytes per second. A run that is reconciled again counts once.
_TABLES: Final = (
    """create table reconciled (
        at text not null, host text not null, scenario text not null, workload text not null, strategy text not null,
        cluster text not null, cluster_digest text not null,
        predicted_s real not null, predicted_low_s real, predicted_high_s real,
        measured_s real not null, measured_low_s real, measured_high_s real,
        error real not null, parts text not null, versions text not null,
        unique (at, host, scenario, predicted_s, measured_s))""",
    """create table calibrated (
        at text not null, host text not null, cluster text not null, cluster_digest text not null,
        quantity text not null, value real not null, low real not null, high real not null,
        unique (at, host, cluster, quantity))""",
)


def append_cases(cases: Sequence[ReconciledCase], out: Path) -> None:
    """Appends the measured cases that nothing disturbed to the history in `out`. Raises InputError or RunError."""
    rows = [_row(case, case.measured) for case in cases if case.measured is not None and not case.disturbed]
    _append("reconciled", rows, out)


def append_cluster(cluster: Cluster, out: Path) -> None:
    """Appends the quantities of a calibrated cluster that have an interval. Raises InputError or RunError."""
    where = {
        "at": cluster.provenance.get("date") or _now(),
        "host": cluster.provenance.get("host") or socket.gethostname(),
        "cluster": cluster.name,
        "cluster_digest": fingerprint(cluster),
    }
    rows = []
    for name, interval in cluster.uncertainty.items():
        quantity = QUANTITIES[name]
        low, high = quantity.parse(interval.low), quantity.parse(interval.high)
        rows.append({**where, "quantity": name, "value": quantity.value(cluster), "low": low, "high": high})
    _append("calibrated", rows, out)


def fingerprint(cluster: Cluster) -> str:
    """Digest of a cluster's numbers; names, texts, intervals and the number of nodes do not count."""
    excluded = {"name", "description", "source", "nodes", "uncertainty", "provenance"}
    return _digest(cluster.model_dump_json(exclude=excluded))


def workload(scenario: Scenario) -> str:
    """Digest of a scenario's work, independent of the cluster."""
    excluded = {"name", "description", "steps", "cluster", "convergence"}
    return _digest(scenario.model_dump_json(exclude=excluded))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _row(case: ReconciledCase, measured: Run) -> dict[str, Any]:
    scenario, predicted = case.scenario, case.predicted
    predicted_low_s, predicted_high_s = predicted.prediction_interval_s or (None, None)
    measured_low_s, measured_high_s = measured.step_time_interval_s or (None, None)
    versions = {name: text for name, text in measured.provenance.items() if name in _VERSIONS}
    return {
        "at": measured.provenance.get("date") or _now(),
        "host": measured.provenance.get("host") or socket.gethostname(),
        "scenario": scenario.name,
        "workload": workload(scenario),
        "strategy": scenario.strategy.kind,
        "cluster": scenario.cluster.name,
        "cluster_digest": fingerprint(scenario.cluster),
        "predicted_s": predicted.step_time_s,
        "predicted_low_s": predicted_low_s,
        "predicted_high_s": predicted_high_s,
        "measured_s": measured.step_time_s,
        "measured_low_s": measured_low_s,
        "measured_high_s": measured_high_s,
        "error": predicted.step_time_s / measured.step_time_s - 1,
        "parts": json.dumps({"predicted_s": dict(predicted.breakdown_s), "measured_s": dict(measured.breakdown_s)}),
        "versions": json.dumps(versions),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _append(table: str, rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    if not rows:
        return
    columns = list(rows[0])
    marks = ", ".join(f":{column}" for column in columns)
    # constant names, not users' text
    insert = f"insert or ignore into {table} ({', '.join(columns)}) values ({marks})"  # noqa: S608
    with _opened(out / FILE) as connection:
        connection.executemany(insert, rows)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Connection in a transaction that excludes other writers; creates the tables of a new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            _prepare(connection, path)
            yield connection
            connection.execute("commit")
    except sqlite3.OperationalError as error:
        raise RunError(f"{path}: {error}; the run is not in the history, make sure that the file can be written") from None
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path}: {error}; move it away to begin a new history") from None


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Creates the tables of a new file. Raises InputError for a file of another application or version."""
    (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
    (version,), (application,) = (
        connection.execute(f"pragma {name}").fetchone() for name in ("user_version", "application_id")
    )
    if not tables and application in (0, APPLICATION):
        for table in _TABLES:
            connection.execute(table)
        connection.execute(f"pragma user_version = {VERSION}")
        connection.execute(f"pragma application_id = {APPLICATION}")
    elif application != APPLICATION:
        raise InputError(f"{path}: a database, but not a history of scaleproof; choose another folder")
    elif version != VERSION:
        raise InputError(f"{path}: a history of version {version}, this is version {VERSION}; move it away to begin a new one")
