"""The command calibrate: separate probes, refits of saved tables, and one-line errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import scaleproof
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.cluster_file.files import points_path
from scaleproof.validator.probe import points as tables
from tests.validator.calibration.made import BANDWIDTH_BPS, BASE, all_pairs, facts, sends, sums


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "lab.points.parquet"
    slow = sends(all_pairs(4), rate=lambda one, other: BANDWIDTH_BPS / (2 if 3 in (one, other) else 1))
    tables.write([*slow, *sums(4, 4, 1e-3, 30e6), facts().point()], path)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, list[str], list[str]]:
    try:
        code = scaleproof.main(["calibrate", *map(str, arguments)])
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    return code, out.splitlines(), err.splitlines()


@pytest.mark.full
def test_one_selected_probe_runs_and_its_results_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    described, out = tmp_path / "mine.yaml", tmp_path / "measured.yaml"
    described.write_text(yaml.safe_dump(BASE | {"nodes": 1, "node": {"devices": 4, "cores": 2}, "network": None}))
    budget = ("--probe", "message", "--budget", "1 s", "--groups", "2")
    code, printed, errors = run(capsys, "--on", "local", "--cluster", described, "--out", out, *budget)
    assert code == 0
    assert [line for line in errors if line.startswith("calibrating")] == ["calibrating: messages between two ranks"]
    cluster = load_cluster(out)
    assert cluster.node.link is not None
    assert cluster.node.link.bandwidth_Bps > 1e6
    assert cluster.device.peak_flops == {"fp32": 50e9}
    assert set(cluster.uncertainty) == {"node.link.bandwidth", "node.link.latency"}
    assert {"host", "date", "system", "python", "torch", "models", "probes", "stopped"} <= set(cluster.provenance)
    assert printed[0] == f"{out}: four hosts; measured"
    assert any(line.strip().startswith("node.link.latency") for line in printed)
    assert {point.probe for point in tables.read(points_path(out))} == {"message", "site"}


def test_a_saved_table_is_refitted_without_measuring(capsys: pytest.CaptureFixture[str], tmp_path: Path, table: Path) -> None:
    out = tmp_path / "again.yaml"
    code, printed, errors = run(capsys, "--from", table, "--out", out)
    assert code == 0
    assert any(line == "note: host 3 is 2.0 times as slow to all others" for line in errors)
    assert any("500 Mbit/s" in line and "network.bandwidth" in line for line in printed)
    cluster = load_cluster(out)
    assert cluster.network is not None
    assert cluster.network.exceptions[0].at == (3,)
    assert cluster.provenance["date"] == "2026-01-01"
    assert tables.read(points_path(out)) == tables.read(table)
    before = table.read_bytes()
    assert run(capsys, "--from", table, "--out", tmp_path / "lab.yaml")[0] == 0
    assert table.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "."], "--out . is a folder; give the name of the cluster file"),
        (["--out", f"{__file__}/lab.yaml"], "is not a writable folder; give another file"),
        (["--out", "c.yaml", "--probe", "nothing"], "--probe nothing: no such probe; give one of matmul"),
        (["--out", "c.yaml", "--budget", "fast"], "--budget: "),
        (["--out", "c.yaml", "--budget", "0 s"], "--budget must be above 0"),
        (["--out", "c.yaml", "--groups", "1"], "--groups: a group needs at least 2 ranks"),
        (["--out", "c.yaml", "--on", "netlab"], "name the cluster with --cluster"),
        (["--out", "c.yaml", "--hosts", "3"], "--hosts 3: only a lab has hosts"),
        (["--out", "c.yaml", "--on", "cluster"], "started by torchrun, accelerate, srun or mpirun"),
        (["--out", "c.yaml", "--cluster", "nowhere"], "nowhere"),
        (["--out", "c.yaml", "--from", "none.parquet"], "none.parquet: No such file"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    (line,) = err
    assert message in line


def test_invalid_measurement_tables_give_a_one_line_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, out = tmp_path / "other.parquet", tmp_path / "c.yaml"
    path.write_text("op,size\nall_reduce,8\n")
    code, _, (line,) = run(capsys, "--from", path, "--out", out)
    assert (code, "not a Parquet file" in line) == (2, True)
    tables.write(sends(all_pairs(2)), path)
    code, _, (line,) = run(capsys, "--from", path, "--out", out)
    assert code == 2
    assert "no row says where its points were measured" in line
    assert not out.exists()
