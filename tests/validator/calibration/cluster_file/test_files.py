"""Updates of cluster files change only the lines of changed numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.cluster.quantities import Interval, slowed, uncertain
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.cluster_file.files import rewritten

TEXT = """\
# measured in the cellar
name: cellar
nodes: 4          # of which one is loud
node: {devices: 1}
network:
  bandwidth: 500 Mbit/s
  latency: 60 us
# what computes
device: cpu-core
source: >
  By a person
  with a watch.

provenance:
  host: cellar
collectives: {library: gloo}
"""


def changed(path: Path, slowdown_interval: dict[str, float]) -> str:
    before = load_cluster(path)
    after = slowed(before, slowdown_interval).model_copy(
        update={
            "uncertainty": {"network.latency": Interval(low="50 us", high="70 us", measurements=3)},
            "provenance": {**before.provenance, "updated": "today"},
        }
    )
    text = rewritten(path, before, after)
    path.write_text(text)
    again = load_cluster(path)
    assert again.uncertainty == after.uncertainty
    assert again.provenance == after.provenance
    for name in slowdown_interval:
        assert slowed(before, {name: 2.0}) != before
    return text


def test_only_sections_with_changed_numbers_are_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "cellar.yaml"
    path.write_text(TEXT)
    text = changed(path, {"network.bandwidth": 1.25})

    assert "bandwidth: 400 Mbit/s" in text
    kept = [line for line in TEXT.splitlines() if "500 Mbit/s" not in line]
    assert [line for line in text.splitlines() if line in kept] == kept


def test_a_named_device_becomes_a_base_with_changes(tmp_path: Path) -> None:
    path = tmp_path / "cellar.yaml"
    path.write_text(TEXT)
    before = load_cluster(path).device
    text = changed(path, {"device": 1.6})
    after = load_cluster(path).device

    assert "base: cpu-core" in text
    assert after.peak_flops["fp32"] == pytest.approx(before.peak_flops["fp32"] / 1.6, rel=1e-3)
    assert before.kernels is not None
    assert after.kernels is not None
    assert after.kernels.launch_s == pytest.approx(before.kernels.launch_s * 1.6, rel=1e-3)
    assert after.kernels.host_slowdown == pytest.approx(before.kernels.host_slowdown * 1.6, rel=1e-3)
    assert after.kernels.tile_share == before.kernels.tile_share
    assert after.memory_bytes == before.memory_bytes


@pytest.mark.parametrize("name", ["cpu-2core", "netlab-500mbit", "netlab-tree", "p100-25gbe", "dgx-h100", "aws-p4d"])
def test_shipped_files_can_be_updated(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(catalog.find_part("cluster", name).read_text())
    before = load_cluster(path)
    slowdown_interval = {quantity: 1.1 for quantity in uncertain(before) if quantity != "model"}
    after = slowed(before, slowdown_interval)
    path.write_text(rewritten(path, before, after))

    # written numbers have five digits, on which what is left open may depend
    assert uncertain(load_cluster(path)) == pytest.approx(uncertain(after), rel=1e-3)


def test_a_file_in_flow_style_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "cellar.yaml"
    device = "{name: cpu, peak: {fp32: 1 GFLOP/s}, memory: 1 GiB, memory_bandwidth: 1 GB/s}"
    path.write_text("{nodes: 2, node: {devices: 1}, network: {bandwidth: 1 Gbit/s, latency: 1 us}, device: " + device + "}\n")

    assert "800 Mbit/s" in changed(path, {"network.bandwidth": 1.25}) or "0.8 Gbit/s" in path.read_text()


def test_numbers_in_lists_of_another_file_are_rejected(tmp_path: Path) -> None:
    device = tmp_path / "mine.yaml"
    layer = "{signature: a, precision: fp32, samples: [1], forward: [2 us], backward: [2 us]}"
    device.write_text(
        f"name: cpu\npeak: {{fp32: 1 GFLOP/s}}\nmemory: 1 GiB\nmemory_bandwidth: 1 GB/s\nmeasured_layers: [{layer}]\n"
    )
    path = tmp_path / "cellar.yaml"
    path.write_text("nodes: 1\nnode: {devices: 1}\ndevice: ./mine.yaml\n")
    before = load_cluster(path)

    with pytest.raises(InputError, match=r"measured_layers.0.* is not in this file; write the whole device into it"):
        rewritten(path, before, slowed(before, {"device": 1.1}))
