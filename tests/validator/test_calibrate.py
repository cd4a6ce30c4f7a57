from __future__ import annotations

from pathlib import Path

import pytest

from simulator.model import Mlp
from simulator.scenario import load_cluster
from validator.calibrate import Plan, calibrate, write

TINY = Mlp(name="tiny", layers=3, inputs=32, hidden=64, outputs=16)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    told: list[str] = []
    path = tmp_path_factory.mktemp("calibrated") / "cluster.yaml"
    write(calibrate(Plan([TINY], groups=(2,), budget_s=0.01, progress=told.append)), path)
    assert any("compute" in text for text in told)
    assert any("allreduce over 2" in text for text in told)
    return path


def test_what_is_written_is_a_cluster(cluster: Path) -> None:
    read = load_cluster(cluster)
    assert read.nodes == 1
    assert read.node.cores is not None
    assert read.node.cores > 0.2
    assert read.node.link is not None
    assert read.node.link.bandwidth_Bps > 1e6
    assert read.device.peak_flops["fp32"] > 1e8


def test_every_kind_of_layer_is_measured(cluster: Path) -> None:
    device = load_cluster(cluster).device
    measured = {m.signature for m in device.measured_layers}
    assert measured == {layer.signature for layer in TINY.build_layers()}
    for layer in TINY.build_layers():
        forward_s, backward_s = device.layer_s(layer, 64, "fp32")
        assert 0 < forward_s < 1
        assert 0 < backward_s < 1
    assert {m.optimizer for m in device.measured_optimizers} == {"sgd", "momentum", "adam"}


def test_collectives_are_measured_for_the_groups_asked_for(cluster: Path) -> None:
    collectives = load_cluster(cluster).collectives
    assert collectives.measured_allreduce(2) is not None
    assert collectives.measured_allreduce(4) is None


def test_provenance_says_where_and_when(cluster: Path) -> None:
    provenance = load_cluster(cluster).provenance
    assert {"host", "date", "system", "python", "torch", "models"} <= set(provenance)
    assert provenance["models"] == "tiny"
