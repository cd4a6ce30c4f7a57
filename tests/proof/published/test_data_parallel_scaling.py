from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import scaleproof
from scaleproof.proof.published.calibrations import shipped_fits
from scaleproof.proof.published.data_parallel_scaling import predict, predict_among
from scaleproof.simulator.common import catalog
from scaleproof.simulator.published.tables import read_table
from tests.docs.accuracy_page import ALL, shown
from tests.validator.kernels.made import written
from tests.validator.verdicts import in_bulk

TABLE = catalog.ROOT / "published" / "data_parallel_scaling.csv"
BASE = "the base that the rest is predicted from"
FITTED = "constants were fitted on it"
# a series that communicates over the network after each of several passes
SERIES = {
    "source_set": "made up", "model": "BERT-large", "cluster": "DGX A100", "gpu": "A100-80GB", "gpus": "8", "nodes": "1",
    "gpus_per_node": "8", "inter_node": "8x HDR", "method": "ring_allreduce: DDP", "servers": "", "batch_per_gpu": "16",
    "grad_accum": "2", "seq_len": "128", "precision": "mixed fp16", "optimizer": "lamb", "samples_per_s": "3000",
    "software": "PyTorch",
}  # fmt: skip
Row = Mapping[str, str]


def rows() -> list[dict[str, str]]:
    return [dict(row) for row in read_table(TABLE)[1]]


def at(gpus: int, **changes: str) -> dict[str, str]:
    nodes = -(-gpus // int(changes.get("gpus_per_node", "8")))
    return SERIES | {"gpus": str(gpus), "nodes": str(nodes), "samples_per_s": str(375 * gpus)} | changes


def predicted(row: Row, *others: Row) -> float:
    found = predict_among(row, [row, *others])
    assert found.skipped == ""
    return found.predicted


def test_every_row_except_baselines_is_scored() -> None:
    found = shown(ALL)["data_parallel_scaling"]
    fitted = sum(row["id"] in fitted.rows for row in rows() for fitted in shipped_fits("data_parallel_scaling"))
    bases = len(rows()) - fitted - sum(line.scored for line in found.sets.values())
    assert f"skipped: {BASE} ({bases} rows), {FITTED} ({fitted} rows)" in found.text.splitlines()


@pytest.mark.parametrize("name", ["tf_benchmarks_2017", "ps_tensorflow", "nvidia_dle", "dlperf"])
def test_every_set_is_within_the_bound(name: str) -> None:
    found = shown(ALL)["data_parallel_scaling"].sets[name]
    assert found.mean is not None
    assert found.mean < 10
    # where there are several of a model on as many GPUs
    assert found.order is None or found.order > 80


@pytest.mark.parametrize(
    ("method", "software"), [("ring_allreduce: DDP", "PyTorch"), *in_bulk(("distributed_replicated", "TensorFlow 1"))]
)
def test_any_run_of_a_series_can_be_its_baseline(method: str, software: str) -> None:
    """What a base communicates is part of what it took: from a larger run, as predicted, the largest is predicted the same."""
    one, sixteen, most = (at(gpus, method=method, software=software) for gpus in (1, 16, 64))
    reached = predicted(sixteen, one)
    assert predicted(most, sixteen | {"samples_per_s": repr(reached)}) == pytest.approx(predicted(most, one), rel=1e-6)


@pytest.mark.parametrize("every", [100, *in_bulk(25)])
def test_predictions_do_not_depend_on_the_rows_measurement(every: int) -> None:
    for row in rows()[1::every]:
        changed = row | {"samples_per_s": str(2 * float(row["samples_per_s"]))}
        others = [other for other in rows() if other["id"] != row["id"]]
        one, other = predict_among(row, [row, *others]), predict_among(changed, [changed, *others])
        assert (one.predicted, one.skipped) == (other.predicted, other.skipped) or one.skipped


def test_gradients_are_accumulated_before_synchronisation() -> None:
    often = predicted(at(64, grad_accum="1"), at(8, grad_accum="1"))
    seldom = predicted(at(64, grad_accum="8"), at(8, grad_accum="8"))
    assert often < seldom < 64 * 375


@pytest.mark.parametrize(
    ("software", "framework"),
    [
        ("TensorFlow b1e174e, CUDA 8.0/cuDNN 5.1, tf_cnn_benchmarks 9165a70", "tensorflow-1-grpc"),
        ("TensorFlow 2.x; xla", "tensorflow-2-mirrored"), ("TensorFlow 1 NGC 20.06 XLA + Horovod", "horovod"),
        ("MXNet NGC + Horovod + DALI", "horovod"), ("MXNet 0.11", "mxnet-kvstore"),
        ("NGC PyTorch; static loss scale", "pytorch-ddp"), ("an unknown one", "pytorch-ddp"),
    ],
)  # fmt: skip
def test_the_framework_follows_from_the_software_column(software: str, framework: str) -> None:
    row, base = at(16, software=software, samples_per_s="1000"), at(8, software=software, samples_per_s="500")
    assert predict_among(row, [row, base]).framework == framework


def test_loader_workers_limit_the_rate_of_a_node() -> None:
    """Eight cores of a node decode as many photographs for eight GPUs as for four."""
    photographs = {"model": "ResNet-50 v1.5", "seq_len": "", "precision": "fp32", "grad_accum": "1", "batch_per_gpu": "128"}
    few, many = (photographs | {"software": f"PyTorch; {workers} loader workers"} for workers in (8, 48))
    rates = {}
    for changes in (few, many):
        base = at(1, samples_per_s="350", **changes)
        rates[changes["software"]] = [predicted(at(gpus, **changes), base) for gpus in (4, 8, 16)]
    (four, eight, sixteen), free = rates.values()
    assert four == pytest.approx(eight) == pytest.approx(sixteen / 2) == pytest.approx(8 / 7.47e-3, rel=0.02)
    assert free[1] > 2 * eight
    # with DALI a core decodes a photograph in half the time
    dali = few | {"software": "PyTorch; 8 loader workers, dali"}
    assert predicted(at(8, **dali), at(1, samples_per_s="350", **dali)) == pytest.approx(8 / 3.56e-3, rel=0.02)


def test_one_bucket_of_all_gradients_is_not_overlapped() -> None:
    """NVIDIA's script for BERT gives apex buckets that are larger than the model."""
    base, row = (at(gpus, grad_accum="1", model="BERT base", batch_per_gpu="64") for gpus in (8, 64))
    buckets = predicted(row, base)
    assert predicted(row | {"software": "NGC PyTorch"}, base | {"software": "NGC PyTorch"}) < buckets


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"cluster": "a new one"}, "cluster"),
        ({"batch_per_gpu": ""}, "batch_per_gpu"),
        ({"optimizer": ""}, "optimizer"),
        ({"inter_node": ""}, "inter_node"),
        ({"inter_node": "not stated (usual)"}, "inter_node"),
        ({"software": "an unknown one"}, "software"),
    ],
)
def test_blank_cells_are_assumed_and_named(changes: dict[str, str], column: str) -> None:
    row, base = at(16, **changes), at(8, **changes)
    assert predict_among(row, [row, base]).assumed == (column,)
    assert predict_among(at(16), [at(16), at(8)]).assumed == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"samples_per_s": ""}, "no samples per second"),
        ({"samples_per_s": "-3"}, "no samples per second"),
        ({"gpus": "many"}, "no number of gpus"),
        ({"model": "LeNet"}, "unknown model: LeNet"),
        ({"gpu": "GTX-970", "cluster": "mine"}, "no device that ships is called GTX-970"),
        ({"precision": "int4"}, "unknown precision: int4"),
        ({"method": "gossip"}, "unknown method: gossip"),
        ({"seq_len": "9999999"}, ""),
        ({"cluster": "dgx1", "gpu": "P100", "samples_per_s": "1000"}, "no network between nodes of dgx1"),
        ({"samples_per_s": "1e12"}, "training.measured_step.time: is shorter than the optimizer's step alone"),
    ],
)
def test_rows_that_cannot_be_predicted_are_skipped_with_their_reason(changes: dict[str, str], reason: str) -> None:
    shared = {key: value for key, value in changes.items() if key != "gpus"}
    row, base = at(16) | changes, at(8) | shared
    found = predict_among(row, [row, base])
    assert found.skipped.startswith(reason)
    assert found.skipped or reason == ""


def test_a_baseline_faster_than_its_communication_is_rejected() -> None:
    slow_network = {"cluster": "ec2d", "gpu": "K80", "precision": "fp32", "method": "ring_allreduce: DDP", "optimizer": "sgd"}
    rates = {16: "16", 32: "32"}, {16: "3000", 32: "6000"}
    found = []
    for per_s in rates:
        row, base = (at(gpus, **slow_network) | {"samples_per_s": per_s[gpus]} for gpus in (32, 16))
        found.append(predict_among(row, [row, base]).skipped)
    assert found == ["", "the base's communication alone is predicted to take longer than its step"]


def test_a_row_without_a_baseline_is_skipped() -> None:
    row = at(16, model="ResNet-50")
    assert predict_among(row, [row]).skipped == BASE
    assert predict(row).skipped == "no run on fewer GPUs to predict from"


@pytest.mark.parametrize("method", ["parameter_server on cpu", "parameter_server on gpu", "replicated (NCCL) on n/a"])
def test_more_gpus_are_faster_but_not_superlinearly(method: str) -> None:
    series = {"source_set": "made up", "cluster": "dgx1", "gpu": "P100", "model": "VGG16", "batch_per_gpu": "64", "seq_len": ""}
    fields = series | {"method": method, "precision": "fp32", "grad_accum": "1", "optimizer": "sgd", "software": "TensorFlow"}
    base = at(1, **fields) | {"samples_per_s": "150"}
    found = [predicted(at(gpus, **fields), base) for gpus in (2, 4, 8)]
    assert found == sorted(found)
    assert all(per_s < 150 * gpus * (1 + 1e-9) for gpus, per_s in zip((2, 4, 8), found, strict=True))


def test_the_command_prints_the_score(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = written(tmp_path / "some.csv", *(row for row in rows() if row["cluster"] == "DGX-2"))
    assert scaleproof.main(["score", str(table)]) == 0
    out = capsys.readouterr().out
    assert "nvidia_dle" in out
    assert f"skipped: {BASE} (1 rows)" in out


def test_a_rows_nodes_are_those_that_it_has() -> None:
    """Two GPUs of two nodes synchronise over the network, which is slower than two GPUs of one node."""
    where = {"cluster": "somewhere", "gpu": "T4", "gpus_per_node": "4", "inter_node": "50 Gbit/s"}
    base = at(1, **where, precision="fp32", samples_per_s="10")
    together, separate, slow = (
        predicted(base | {"gpus": "2", "nodes": nodes, "inter_node": rate}, base)
        for nodes, rate in (("1", "50 Gbit/s"), ("2", "50 Gbit/s"), ("2", "10 Gbit/s"))
    )
    assert slow < separate < together


def test_a_run_on_one_gpu_is_the_base_of_software_that_adds_synchronisation() -> None:
    base = at(1, method="single GPU", software="TensorFlow 2017, tf_cnn_benchmarks")
    assert predicted(at(16, method="allreduce", software="TensorFlow 2017, tf_cnn_benchmarks, Horovod"), base) > 0


@pytest.mark.parametrize("method", ["parameter_server on cpu", "distributed_replicated"])
def test_machines_exchange_each_variable_once(method: str) -> None:
    """With four times the GPUs in each machine, servers move no more bytes, so that steps limited by them take as long."""
    fields = {"cluster": "somewhere", "gpus_per_node": "4", "inter_node": "40 Gbit/s", "gpu": "P100", "model": "VGG16"}
    fields |= {"batch_per_gpu": "64", "seq_len": "", "precision": "fp32", "grad_accum": "1", "optimizer": "sgd"}
    fields |= {"software": "TensorFlow 2017", "method": method, "servers": "2"}
    base = at(1, **fields) | {"samples_per_s": "150"}
    few, many = (predicted(at(gpus, **fields) | {"nodes": "2"}, base) for gpus in (2, 8))
    assert many == pytest.approx(4 * few, rel=0.2)
