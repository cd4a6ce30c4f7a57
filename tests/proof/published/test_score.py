"""The score of predictions, and collectives predicted from a table's columns."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

import scaleproof
from scaleproof.proof.published.collectives import leaving_out, predict
from scaleproof.proof.published.prediction import LEAVE_OUT_SOURCE, Options, Prediction
from scaleproof.proof.published.score import score, summarise, tables_at, totals
from scaleproof.simulator.cluster.collectives.nccl.constants import pytorch_call_s
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError, NotFoundError
from scaleproof.simulator.published.tables import opened, read_table
from scaleproof.simulator.uncertainty.error_model import RAW, shipped
from scaleproof.validator.collectives.rows import network_of
from tests.docs.accuracy_page import ALL, shown
from tests.validator.kernels.made import written

TABLE = catalog.ROOT / "published" / "collectives.csv"
ROW = {
    "collective": "all_reduce", "gpu": "H100-80GB", "n_gpus": "16", "n_nodes": "2", "gpus_per_node": "8",
    "instance_or_system": "somewhere", "intra_node": "NVLink4", "inter_node": "8x400 Gb/s InfiniBand", "algorithm": "",
    "size_bytes": "1073741824", "time_us_out_of_place": "4500", "note": "",
}  # fmt: skip


def pair(predicted: float, measured: float, name: str = "a", inputs: str = "") -> Prediction:
    return Prediction(name, predicted, measured, inputs=(inputs or f"{predicted}-{measured}",))


def test_errors_are_absolute_fractions_of_what_was_measured() -> None:
    found = summarise([pair(90, 100), pair(120, 100), pair(130, 100)])["a"]
    assert (found.rows, found.scored) == (3, 3)
    assert (found.mean, found.median, found.worst) == pytest.approx((0.2, 0.2, 0.3))
    assert found.p95 == pytest.approx(0.29)
    assert found.floor is None


def test_order_is_the_share_of_pairs_predicted_in_measured_order() -> None:
    found = summarise([pair(1, 10), pair(2, 30), pair(3, 20)])["a"]
    assert found.order_right == pytest.approx(2 / 3)
    assert summarise([pair(1, 10)])["a"].order_right is None


def test_the_floor_is_the_difference_of_rows_with_equal_inputs() -> None:
    found = summarise([pair(1, 90, inputs="same"), pair(1, 110, inputs="same"), pair(1, 5, inputs="other")])["a"]
    assert found.floor == pytest.approx((10 / 90 + 10 / 110) / 2)


def test_coverage_is_the_share_of_rows_inside_their_intervals() -> None:
    inside, below, untold = ((0.9, 1.1), (1.2, 1.3), None)
    rows = [Prediction("a", 1.0, 1.0, interval=interval) for interval in (inside, inside, below, untold)]
    assert summarise(rows)["a"].coverage90 == pytest.approx(2 / 3)
    assert summarise([pair(1, 1)])["a"].coverage90 is None


def test_the_width_is_the_geometric_mean_of_upper_over_lower_ends() -> None:
    rows = [Prediction("a", 1.0, 1.0, interval=interval) for interval in ((0.5, 1.0), (0.25, 2.0), None)]
    assert summarise(rows)["a"].width90 == pytest.approx(4.0)
    assert summarise([pair(1, 1)])["a"].width90 is None


def test_intervals_can_leave_out_the_rows_own_source_or_all_errors() -> None:
    assert Options(raw=True).errors("dgxc") is RAW
    assert Options().errors("dgxc") is shipped()
    assert Options(leave_out=LEAVE_OUT_SOURCE).errors("dgxc") is shipped().without["dgxc"]
    assert Options(leave_out=LEAVE_OUT_SOURCE).errors("unknown") is shipped()


def test_every_row_is_scored_or_skipped_and_assumptions_are_counted() -> None:
    rows = [pair(1, 1), Prediction("a", skipped="no time"), Prediction("b", skipped="no time")]
    assumed = Prediction("a", 1.0, 2.0, assumed=("inter_node",))
    found = summarise([*rows, assumed])
    assert (found["a"].rows, found["a"].scored, found["a"].skipped, found["a"].assumed) == (
        3, 2, {"no time": 1}, {"inter_node": 1},
    )  # fmt: skip
    assert (found["b"].scored, found["b"].median) == (0, None)


@pytest.mark.parametrize(
    ("text", "Gbps", "cards"),
    [
        ("8x400 Gb/s", 3200, 8),
        ("EFA v1 4x100 Gb/s = 400 Gb/s per node", 400, 4),
        ("8x NDR 400 Gb/s InfiniBand (ib_write_bw 39.5-45 GB/s per HCA)", 3200, 8),
        ("32 GbE TCP", 32, 1),
        ("400 Gb/s per GPU", 3200, 8),
        ("3.2 Tb/s RDMA", 3200, 8),
        ("50 GB/s", 400, 1),
        ("InfiniBand NDR", 3200, 8),
        ("RoCE", 0, 1),
        ("", 0, 1),
    ],
)
def test_the_network_rate_is_parsed_from_text(text: str, Gbps: float, cards: int) -> None:
    rate_Bps, found = network_of(text, 8)
    assert (rate_Bps * 8 / 1e9, found) == (pytest.approx(Gbps), cards)


def test_an_unknown_system_is_predicted_from_its_columns() -> None:
    fast, slow = predict(ROW), predict(ROW | {"inter_node": "4x100 Gb/s", "gpu": "A100-80GB"})
    assert not fast.skipped
    assert abs(fast.error) < 0.3
    assert slow.predicted > 3 * fast.predicted
    assert fast.set_name == "somewhere >=1MiB"
    assert predict(ROW | {"size_bytes": "8"}).set_name == "somewhere <1MiB"


def test_link_and_transport_names_affect_the_prediction() -> None:
    small = ROW | {"gpu": "A100-80GB", "inter_node": "4x100 Gb/s", "size_bytes": "8"}
    assert predict(small | {"inter_node": "EFA v1 4x100 Gb/s"}).predicted > 4 * predict(small).predicted
    alone = ROW | {"n_gpus": "8", "n_nodes": "1"}
    assert predict(alone | {"intra_node": "PCIe5"}).predicted > 3 * predict(alone).predicted


def test_a_rack_of_72_is_one_nvlink_domain() -> None:
    rack = ROW | {"gpu": "GB200", "n_gpus": "72", "n_nodes": "18", "gpus_per_node": "4", "inter_node": ""}
    inside, outside = predict(rack | {"intra_node": "NVLink5 NVL72"}), predict(rack)
    assert inside.predicted < outside.predicted
    assert (inside.assumed, outside.assumed) == (("algorithm",), ("inter_node", "algorithm"))


def test_shipped_systems_agree_with_their_columns() -> None:
    known = predict(ROW | {"instance_or_system": "BM.GPU.H100.8"})
    roce = ROW | {"inter_node": ROW["inter_node"].replace("InfiniBand", "RoCE")}
    assert known.predicted == pytest.approx(predict(roce).predicted)


def test_assumed_blank_cells_are_named() -> None:
    assert predict(ROW).assumed == ("algorithm",)
    assert predict(ROW | {"inter_node": "", "intra_node": "", "algorithm": "Ring"}).assumed == ("intra_node", "inter_node")
    alone = ROW | {"n_gpus": "8", "n_nodes": "1", "inter_node": ""}
    assert predict(alone).assumed == ("algorithm",)


def test_a_missing_time_is_computed_from_the_bandwidth() -> None:
    row = ROW | {"time_us_out_of_place": "", "busbw_GBps_out_of_place": "", "busbw_GBps_in_place": "450"}
    assert predict(row).measured == pytest.approx(2**30 * 2 * 15 / 16 / 450e9)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"collective": "alltoall_v2"}, "no collective is called 'alltoall_v2'"),
        ({"gpu": "TPU v4"}, "unknown GPU: TPU v4"),
        ({"time_us_out_of_place": ""}, "no time or bandwidth"),
        ({"time_us_out_of_place": "soon"}, "no time or bandwidth"),
        ({"size_bytes": "large"}, "no size or number of GPUs"),
        ({"size_bytes": "1e999"}, "no size or number of GPUs"),
        ({"n_gpus": "0"}, "no size or number of GPUs"),
        ({"n_gpus": "1e300"}, "no size or number of GPUs"),
        ({"algorithm": "magic"}, "no algorithm 'magic' for all_reduce"),
    ],
)
def test_rows_that_cannot_be_scored_are_skipped_with_a_reason(change: dict[str, str], reason: str) -> None:
    assert predict(ROW | change).skipped == reason


def test_a_collective_called_from_pytorch_takes_longer_than_in_nccl_tests() -> None:
    node = ROW | {"gpu": "H200", "n_gpus": "8", "n_nodes": "1", "inter_node": "", "size_bytes": "32768"}
    more_s = predict(node | {"note": "all_reduce_bench.py (PyTorch)"}).predicted - predict(node).predicted
    assert more_s == pytest.approx(pytorch_call_s())


@pytest.mark.nightly
def test_leaving_out_sources_changes_rows_of_fitted_sources_only() -> None:
    predict_without = leaving_out(Options())
    a100 = ROW | {"gpu": "A100-80GB-SXM", "n_gpus": "8", "n_nodes": "1", "inter_node": "", "size_bytes": "512"}
    fitted, unknown = ({**a100, "source": source} for source in ("ai-dynamo/aiconfigurator@0 file", "some/where@0 file"))
    assert predict_without(unknown).predicted == pytest.approx(predict(unknown).predicted, rel=0.01)
    assert predict_without(fitted).predicted != pytest.approx(predict(fitted).predicted, rel=0.05)


def test_systems_are_predicted_within_their_bound() -> None:
    large = [line for name, line in shown(ALL)["collectives"].sets.items() if name.endswith(">=1MiB")]
    assert statistics.median(line.median for line in large if line.median is not None) < 15


def test_totals_count_speed_rows_and_pairs_within_sets() -> None:
    large = [replace(pair(*both, name="b"), nodes=3) for both in ((10, 10), (12, 10))]
    rows = [pair(1, 2), *large, Prediction("b memory", 5.0, 1.0, of="memory"), Prediction("b", skipped="no time")]
    found = totals(rows)
    assert list(found) == ["all", "more than 2 nodes"]
    assert (found["all"].rows, found["all"].scored, found["all"].worst) == (4, 3, 0.5)
    assert (found["more than 2 nodes"].rows, found["more than 2 nodes"].mean) == (2, pytest.approx(0.1))
    wrong = [pair(1, 2), replace(pair(2, 1), set_name="b")]
    assert totals(wrong)["all"].order_right is None
    assert totals([]) == {}


def test_several_tables_are_scored_in_one_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = written(tmp_path / "b.csv", ROW), written(tmp_path / "a.csv", ROW, ROW | {"n_gpus": "32", "n_nodes": "4"})
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert scaleproof.main(["score", str(first), str(second), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [table["totals"]["all"]["rows"] for table in plain["tables"]] == [1, 2]
    assert {name: total["rows"] for name, total in plain["totals"].items()} == {"all": 3, "more than 2 nodes": 1}
    assert scaleproof.main(["score", str(tmp_path)]) == 0
    found, *others, together = capsys.readouterr().out.split("\n\n")
    assert found.splitlines()[0] == others[0].splitlines()[0] == "collectives"
    assert together.startswith("all tables\n")
    assert len({line.index(" rows") for line in (*found.splitlines(), *together.splitlines()) if line.startswith("set ")}) == 1


def test_shipped_tables_are_scored_by_default(tmp_path: Path) -> None:
    assert [path.name.partition(".")[0] for path in tables_at([])] == [name for name in shown(ALL) if name != "all tables"]
    assert tables_at([TABLE]) == [TABLE]
    with pytest.raises(InputError, match="no table that can be scored"):
        tables_at([tmp_path])


def test_other_files_give_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="not a table that can be scored"):
        score(other)
    other.write_bytes(b"\xff\xfe\x00a,b\n")
    with pytest.raises(InputError):
        score(other)
    with pytest.raises(NotFoundError, match="no such file"):
        score(tmp_path / "missing.csv")
    assert scaleproof.main(["score", str(TABLE.with_name("pipeline_schedules.csv")), "--calibrated"]) == 2
    assert "pipeline_schedules has no constants to fit; remove --calibrated" in capsys.readouterr().err


@pytest.mark.parametrize("table", tables_at([]), ids=lambda table: table.name)
def test_tables_without_rows_are_rejected(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(opened(table).readline() + "\n")
    for options in ([], ["--json"]):
        assert scaleproof.main(["score", str(path), *options]) == 2
        assert capsys.readouterr().err.endswith("t.csv: no rows below its columns; give at least one\n")


def test_a_measured_time_of_zero_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = read_table(catalog.ROOT / "published" / "layer_times.csv")[1][0]
    table = written(tmp_path / "layers.csv", {**first, "backward_ms": "0"})
    assert scaleproof.main(["score", str(table), "--json", "--rows", str(tmp_path / "rows.csv")]) == 0
    assert "the measured value is not a number above zero" in capsys.readouterr().out
