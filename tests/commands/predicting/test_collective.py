from __future__ import annotations

from pathlib import Path

import pytest

import scaleproof
from tests.validator.calibration.imports.logs import nccl_log


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    log, path = tmp_path / "a.log", tmp_path / "ours.yaml"
    log.write_text(nccl_log("all_reduce", ["one"] * 8 + ["two"] * 8, 40e-6, 90e9))
    assert scaleproof.main(["import", "nccl-tests", str(log), "--cluster", "dgx-h100", "--out", str(path)]) == 0
    return path


def test_an_imported_cluster_repeats_its_measured_times(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert scaleproof.main(["collective", "--measured", str(imported)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "collectives on ours"
    assert lines[2] == "all_reduce on 16 ranks on 2 nodes"
    assert lines[3].split("(")[0].strip() == "size"
    assert "0.0 % off at the median" in lines[-1]


def test_measured_times_are_compared_with_another_cluster(imported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert scaleproof.main(["collective", "allreduce", "--measured", str(imported), "--cluster", "dgx-h100"]) == 0
    assert "on dgx-h100" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("arguments", "algorithm"),
    [
        (["allreduce", "--ranks", "64", "--size", "64MiB"], "tree"),
        (["allreduce", "--ranks", "64", "--size", "64MiB", "--set", "cluster.network.in_network_reduction=true"], "nvls"),
        (
            ["allgather", "--ranks", "8", "--size", "8KiB", "--set", "cluster.collectives.nccl.buffers=symmetric"],
            "symmetric_ll",
        ),
    ],
)
def test_the_table_names_the_algorithm_that_is_chosen_on_the_changed_cluster(
    arguments: list[str], algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaleproof.main(["collective", *arguments, "--cluster", "dgx-h100"]) == 0
    assert capsys.readouterr().out.split()[-1] == algorithm


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["allreduce", "--ranks", "8", "--cluster", "dgx-h100", "--set", "network.latency=2us"],
            "--set network.latency=2us: expected a field of the cluster, such as cluster.network.latency=2us",
        ),
        (
            ["allreduce", "--ranks", "8", "--cluster", "dgx-h100", "--set", "cluster.collectives.nccl.buffers=fast"],
            "collectives.nccl.buffers: 'fast' is not known; give 'plain', 'registered' or 'symmetric'",
        ),
        (["--published", "--set", "cluster.network.latency=2us"], "--set changes the cluster"),
        ([], "give an operation, --ranks and --cluster, or measured times"),
        (["allreduce", "--ranks", "8"], "give an operation, --ranks and --cluster"),
        (["broadcast", "--published"], "no time of this operation"),
        (["--measured", "dgx-h100"], "no measured times next to it"),
        (["--measured", "nowhere.csv"], "no such file"),
    ],
)
def test_wrong_arguments_are_refused_in_words(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["collective", *arguments]) == 2
    assert why in capsys.readouterr().err
