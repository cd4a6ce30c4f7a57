"""Histories accept concurrent appends, and reject files of other programs."""

from __future__ import annotations

import multiprocessing
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.simulator.cluster.quantities import Interval
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.validator.reconciliation.history import FILE, append_cases, append_cluster, fingerprint, workload
from scaleproof.validator.reconciliation.reconcile import ReconciledCase
from tests.reports.histories import scenario

SCENARIO = scenario("ring")


def case(measured_s: float = 0.02, date: str = "2026-11-20T10:00:00+00:00") -> ReconciledCase:
    predicted = replace(predict(SCENARIO, interval=False), prediction_interval_s=(0.018, 0.022))
    provenance = {"host": "vm", "date": date, "torch": "2.13", "threads": "1"}
    return ReconciledCase(SCENARIO, predicted, replace(_measured(predicted), step_time_s=measured_s, provenance=provenance))


def _measured(run: Run) -> Run:
    return replace(run, origin="measured", step_time_interval_s=(0.019, 0.021), prediction_interval_s=None)


def rows(out: Path, table: str = "reconciled") -> list[sqlite3.Row]:
    connection = sqlite3.connect(out / FILE)
    connection.row_factory = sqlite3.Row
    found = connection.execute(f"select * from {table}").fetchall()
    connection.close()
    return found


def test_a_case_is_recorded_with_intervals_cluster_and_versions(tmp_path: Path) -> None:
    failed = ReconciledCase(SCENARIO, case().predicted, None, "rank 1 died")
    append_cases([case(), failed], tmp_path / "new" / "folder")
    (row,) = rows(tmp_path / "new" / "folder")

    assert (row["scenario"], row["host"], row["cluster"], row["strategy"]) == ("ring", "vm", "lab", "data_parallel")
    assert (row["predicted_low_s"], row["predicted_high_s"]) == (0.018, 0.022)
    assert (row["measured_s"], row["measured_low_s"], row["measured_high_s"]) == (0.02, 0.019, 0.021)
    assert row["error"] == pytest.approx(row["predicted_s"] / 0.02 - 1)
    assert row["cluster_digest"] == fingerprint(SCENARIO.cluster)
    assert row["versions"] == '{"torch": "2.13"}'
    assert '"compute"' in row["parts"]


def test_a_run_reconciled_again_counts_once(tmp_path: Path) -> None:
    append_cases([case()], tmp_path)
    append_cases([case(), case(0.021)], tmp_path)

    assert [row["measured_s"] for row in rows(tmp_path)] == [0.02, 0.021]


def test_quantities_of_a_calibrated_cluster_are_recorded(tmp_path: Path) -> None:
    cluster = SCENARIO.cluster.model_copy(
        update={
            "uncertainty": {
                "node.link.latency": Interval(low="45 us", high="58 us"),
                "device": Interval(low="96 %", high="104 %"),
            },
            "provenance": {"host": "vm", "date": "2026-11-20T10:00:00+00:00"},
        }
    )
    append_cluster(cluster, tmp_path)
    found = {row["quantity"]: (row["low"], row["value"], row["high"]) for row in rows(tmp_path, "calibrated")}

    assert found["node.link.latency"] == pytest.approx((45e-6, 50e-6, 58e-6))
    assert found["device"] == pytest.approx((0.96, 1.0, 1.04))


def test_fingerprints_depend_only_on_numbers() -> None:
    cluster = SCENARIO.cluster

    assert fingerprint(cluster.model_copy(update={"name": "x", "nodes": 7, "provenance": {"a": "b"}})) == fingerprint(cluster)
    assert fingerprint(cluster.model_copy(update={"pue": 1.5})) != fingerprint(cluster)


def test_workloads_do_not_depend_on_names_or_clusters() -> None:
    same = SCENARIO.model_copy(update={"name": "x", "steps": 9, "cluster": SCENARIO.cluster.model_copy(update={"pue": 1.5})})

    assert workload(same) == workload(SCENARIO)
    assert workload(SCENARIO.model_copy(update={"compute": "paced"})) != workload(SCENARIO)


def _append(out: Path, writer: int, count: int) -> None:
    for number in range(count):
        append_cases([case(0.02, f"2026-11-20T10:{writer:02d}:{number:02d}+00:00")], out)


@pytest.mark.full
def test_concurrent_appends_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(tmp_path, writer, 8)) for writer in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)

    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(rows(tmp_path)) == 16


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be one" * 10, b"SQLite format 3\x00" + b"\xff" * 200]
)
def test_a_damaged_file_gives_a_one_line_error_and_is_kept(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(content)

    with pytest.raises(ScaleproofError, match=r"history\.sqlite: .*") as error:
        append_cases([case()], tmp_path)
    assert "\n" not in str(error.value)
    assert (tmp_path / FILE).read_bytes() == content


def test_files_of_other_programs_are_not_modified(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("create table birds (name text)")
    connection.close()

    with pytest.raises(InputError, match="not a history of scaleproof"):
        append_cases([case()], tmp_path)


def test_files_of_a_later_version_are_not_modified(tmp_path: Path) -> None:
    append_cases([case()], tmp_path)
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("pragma user_version = 2")
    connection.close()

    with pytest.raises(InputError, match="of version 2, this is version 1"):
        append_cases([case(0.03)], tmp_path)
