"""Parts of a scenario by name, by path, and as another part with changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario

REST = (
    "model: llama-3-8b\nstrategy: {kind: data_parallel, workers: 8}\nbatch: 64\ntraining: {precision: bf16, optimizer: adam}\n"
)


def read(tmp_path: Path, cluster: str, *overrides: str) -> Scenario:
    path = tmp_path / "scenario.yaml"
    path.write_text(f"{REST}cluster: {cluster}\n")
    return load(path, overrides)


def problem(tmp_path: Path, cluster: str, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, cluster, *overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        ("nodes: 16", ["cluster.nodes=16"]),
        ("nodes: 16, node: {link: {bandwidth: 300 GB/s}}", ["cluster.nodes=16", "cluster.node.link.bandwidth=300 GB/s"]),
        ("network: {nics: 4 x 100 Gbit/s}", ["cluster.network.nics=4 x 100 Gbit/s"]),
        ("node: {price: 98 USD/h}", ["cluster.node.price=98 USD/h"]),
        ("device: {memory: 64 GiB}", ["cluster.device.memory=64 GiB"]),
        ("device: h200-141gb-sxm", ["cluster.device=h200-141gb-sxm"]),
        ("device: {base: h200-141gb-sxm, memory: 100 GiB}", ["cluster.device={base: h200-141gb-sxm, memory: 100 GiB}"]),
    ],
)
def test_a_cluster_with_a_base_is_the_base_with_overrides(tmp_path: Path, changes: str, overrides: list[str]) -> None:
    changed = read(tmp_path, f"{{base: dgx-h100, {changes}}}").cluster
    assert changed == read(tmp_path, "dgx-h100", *overrides).cluster
    assert changed == read(tmp_path, "dgx-a100", f"cluster={{base: dgx-h100, {changes}}}").cluster
    assert changed != read(tmp_path, "dgx-h100").cluster


def test_another_base_replaces_the_cluster(tmp_path: Path) -> None:
    found = read(tmp_path, "{base: dgx-h100, nodes: 16}", "cluster.base=dgx-a100").cluster
    assert found == read(tmp_path, "dgx-a100").cluster


def test_a_base_may_have_a_base_and_each_file_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "device.yaml").write_text("base: h100-80gb-sxm\nmemory: 60 GiB\n")
    (tmp_path / "mine" / "cluster.yaml").write_text("base: dgx-h100\ndevice: ./device.yaml\nnodes: 3\n")
    found = read(tmp_path, "{base: ./mine/cluster.yaml, node: {devices: 4}}").cluster
    assert (found.name, found.nodes, found.node.devices, found.device.memory_bytes) == ("cluster", 3, 4, 60 * 2**30)
    assert load_cluster(tmp_path / "mine" / "cluster.yaml").nodes == 3


def test_models_may_have_a_base_too(tmp_path: Path) -> None:
    found = read(tmp_path, "dgx-h100", "model={base: llama-3-8b, layers: 4}").model
    assert found == read(tmp_path, "dgx-h100", "model.layers=4").model


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (
            "{base: dgx-h10, nodes: 3}",
            "scenario.yaml:5:11: cluster.base: no cluster is called 'dgx-h10'; did you mean 'dgx-h100'",
        ),
        ("{base: 3}", "scenario.yaml:5:11: cluster.base: expected the name or path of a cluster, got '3'"),
        ("{base: dgx-h100, nods: 3}", "scenario.yaml:5:27: cluster.nods: unknown key; did you mean 'nodes'?"),
        ("{base: dgx-h100, node: {pric: 3}}", "scenario.yaml:5:34: cluster.node.pric: unknown key; did you mean 'price'?"),
        ("{base: ./own.yaml}", "own.yaml:2:1: cluster.nods: unknown key; did you mean 'nodes'?"),
    ],
)
def test_errors_name_the_file_and_line_of_the_change(tmp_path: Path, cluster: str, message: str) -> None:
    (tmp_path / "own.yaml").write_text("base: dgx-h100\nnods: 3\n")
    assert message in problem(tmp_path, cluster)


def test_an_unknown_field_of_an_override_is_reported_at_the_override(tmp_path: Path) -> None:
    text = "cluster={base: dgx-h100, node: {pric: 3}}"
    assert problem(tmp_path, "dgx-a100", text).startswith(f"--set {text}: cluster.node.pric: unknown key")
