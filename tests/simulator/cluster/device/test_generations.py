"""Devices given by data-sheet facts alone, and how the uncertainty of their kernel times depends on what is known."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scaleproof.simulator.cluster.device.device import Device, kernels_deviation
from scaleproof.simulator.cluster.device.kernels.products import TILES
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_device

FACTS: dict[str, Any] = {
    "name": "own", "peak": {"bf16": "989 TFLOP/s"}, "memory": "80 GiB", "memory_bandwidth": "3350 GB/s", "power_limit": "700 W",
    "kernels": {"generation": "hopper", "processors": 132},
}  # fmt: skip
# Vendors and generations in gpu_matmul_efficiency.csv.
FAMILIES = {"A100": "ampere", "H100": "hopper", "H200": "hopper", "B200": "blackwell", "B300": "blackwell", "MI3": "cdna"}


def shipped(name: str) -> Device:
    return load_device(catalog.ROOT / "devices" / f"{name}.yaml")


def by_facts(name: str) -> Device:
    """A shipped device as one would write it from its data sheet."""
    data = yaml.safe_load((catalog.ROOT / "devices" / f"{name}.yaml").read_text(encoding="utf-8"))
    facts = {key: data[key] for key in ("name", "peak", "memory", "memory_bandwidth", "power_limit", "l2")}
    return Device.model_validate(facts | {"kernels": {key: data["kernels"][key] for key in ("generation", "processors")}})


def trained(device: Device, cluster: str) -> Run:
    """A small GPT on eight GPUs of a cluster with another device."""
    model = {"kind": "gpt", "layers": 4, "hidden": 2048, "heads": 16, "vocabulary": 51200, "sequence": 1024, "flash": True}
    given = {
        "model": model, "cluster": cluster, "strategy": {"kind": "data_parallel", "workers": 8}, "batch": 64,
        "training": {"precision": "bf16", "optimizer": "adam"},
    }  # fmt: skip
    scenario = load(given)
    return predict(scenario.copied(cluster=scenario.cluster.model_copy(update={"device": device})))


@pytest.mark.parametrize("generation", sorted(TILES))
def test_generation_and_processors_are_enough(generation: str) -> None:
    device = Device.model_validate(FACTS | {"kernels": {"generation": generation, "processors": 100}})
    assert device.kernels is not None
    assert device.kernels_state in ("data sheet", "assumed")
    assert device.state_of("kernels.memory_share") == "assumed"
    assert device.state_of("kernels.processors") == device.state_of("peak") == "data sheet"
    assert Device.model_validate(device.model_dump(by_alias=True, exclude_unset=True) | FACTS) is not None


@pytest.mark.parametrize(
    ("name", "cluster"),
    [
        ("a100-80gb-sxm", "dgx-a100"), ("a100-80gb-pcie", "dgx-a100"), ("h100-80gb-sxm", "dgx-h100"),
        ("h200-141gb-sxm", "dgx-h100"), ("gh200-96gb", "dgx-h100"), ("b300-270gb-sxm", "dgx-b200"),
    ],
)  # fmt: skip
def test_facts_alone_predict_within_their_interval_of_the_full_device(name: str, cluster: str) -> None:
    found, full = trained(by_facts(name), cluster), trained(shipped(name), cluster)
    assert found.prediction_interval_s is not None
    low_s, high_s = found.prediction_interval_s
    assert low_s < full.step_time_s < high_s


def test_what_the_file_gives_wins_over_the_generation() -> None:
    own = Device.model_validate(FACTS | {"kernels": FACTS["kernels"] | {"tile_share": 0.7, "launch": "9 us"}})
    assert own.kernels is not None
    assert (own.kernels.tile_share, own.kernels.launch_s) == (0.7, 9e-6)
    # what was fitted together with another share of tiles is not taken
    assert (own.kernels.sustained_share, own.kernels.burst_s) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"power_limit": None}, "power_limit: missing; it bounds what kernels sustain"),
        ({"memory_bandwidth": None}, "memory_bandwidth: missing; add it"),
        ({"peak": None}, "peak: missing; add it"),
        ({"kernels": {"processors": 132}}, "kernels.generation: missing; give one of kepler, "),
        ({"kernels": {"generation": "hopper"}}, "kernels.processors: missing; add it"),
        ({"kernels": {"generation": "hoper", "processors": 132}}, "kernels.generation: 'hoper' is not known; give one of"),
        ({"power_limit": "700"}, "'700' has no unit"),
        ({"assumed": ["kernels.tiles"]}, "kernels.tiles: no field of a device has this name"),
    ],
)
def test_the_missing_fact_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in (FACTS | changes).items() if value is not None}))
    with pytest.raises(ScenarioError, match=message) as caught:
        load_device(path)
    assert str(path) in str(caught.value)


def test_less_known_kernels_have_wider_intervals() -> None:
    known = by_facts("h100-80gb-sxm")
    states = ("measured", "data sheet", "assumed")
    devices = [
        known.model_copy(update={"measured": (), "assumed": (), state: ("kernels.tile_share",)}) for state in states[::2]
    ]
    devices.insert(1, known)
    assert [device.kernels_state for device in devices] == list(states)
    widths = []
    for device in devices:
        run = trained(device, "dgx-h100")
        assert run.prediction_interval_s is not None
        widths.append(run.prediction_interval_s[1] / run.prediction_interval_s[0])
    assert widths == sorted(set(widths))


def test_the_widths_follow_from_how_much_best_shapes_differ() -> None:
    """Independent errors: that of the kernel model, and the share of the peak, which is another device's or unknown."""
    logs: dict[str, list[float]] = {}
    with (catalog.ROOT / "published" / "gpu_matmul_efficiency.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["dtype"] == "bf16":
                family = next((family for part, family in FAMILIES.items() if part in row["gpu"]), row["gpu"].split()[0])
                logs.setdefault(family, []).append(math.log(float(row["efficiency_pct"])))
    together = [log for values in logs.values() for log in values]
    squares = sum(float(((np.array(values) - np.mean(values)) ** 2).sum()) for values in logs.values())
    within, overall = math.sqrt(squares / (len(together) - len(logs))), float(np.std(together, ddof=1))
    model = kernels_deviation("measured")
    assert kernels_deviation("data sheet") == pytest.approx(math.hypot(model, within), abs=0.01)
    assert kernels_deviation("assumed") == pytest.approx(math.hypot(model, overall), abs=0.01)
