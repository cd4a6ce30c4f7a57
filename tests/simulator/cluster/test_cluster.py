from __future__ import annotations

import pytest

from scaleproof.simulator.cluster import Cluster, Device
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul
from scaleproof.simulator.scenario.schema import Scenario

# 2 · 500 · 1000 · 1000 = 1e9 FLOPs forward
LAYER = Layer("a", "kind a", (Matmul("a", 500, 1000, 1000),), tensors=(10, 5), output_elements=3)
PLAIN = {"name": "d", "peak": {"fp32": "1 TFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "100 GB/s"}


def test_a_measured_layer_has_its_measured_time() -> None:
    measured = {
        "signature": "kind a",
        "precision": "fp32",
        "samples": [4, 16],
        "forward": ["9 ms", "33 ms"],
        "backward": ["19 ms", "67 ms"],
    }
    device = Device.model_validate(PLAIN | {"measured_layers": [measured]})
    assert device.layer_s(LAYER, 10, "fp32") == pytest.approx((21e-3, 43e-3))


def test_the_optimizer_is_memory_bound_unless_measured() -> None:
    measured = {"optimizer": "adam", "precision": "fp32", "base": "1 ms", "per_parameter": "2 ns"}
    device = Device.model_validate(PLAIN | {"measured_optimizers": [measured]})
    # read w and g, write w: three accesses of four bytes
    assert device.optimizer_s(1e6, "sgd", "fp32") == pytest.approx(12e6 / 100e9)
    assert device.optimizer_s(1e6, "adam", "fp32") == pytest.approx(3e-3)


def test_servers_update_at_host_memory_bandwidth() -> None:
    plain = {"node": {"memory_bandwidth": "10 GB/s"}, "device": PLAIN}
    cluster = Cluster.model_validate(plain)
    assert cluster.sum_s(1e9) == pytest.approx(0.3)
    assert cluster.update_s(1e9, "sgd", "fp32") == pytest.approx(1.2)
    without = Cluster.model_validate(plain | {"node": {}})
    assert without.sum_s(1e9) == pytest.approx(0.03)


def trained(framework: str | None, **strategy: object) -> str:
    """Name of the framework that a scenario on a cluster with that default is trained with."""
    link = {"bandwidth": "10 GB/s", "latency": "5 us"}
    cluster = {"node": {"devices": 4, "link": link}, "device": PLAIN, "framework": framework}
    model = {"kind": "gpt", "layers": 4, "hidden": 64, "heads": 4, "vocabulary": 256, "sequence": 32}
    parts = {"model": model, "cluster": cluster, "strategy": {"kind": "hybrid", **strategy}, "batch": {"total": 8}}
    return Scenario.model_validate(parts).framework.name


def test_a_clusters_framework_is_the_default_for_supported_scenarios() -> None:
    assert trained(None, workers=2, stages=2, microbatches=2) == "megatron-core-0.12"
    assert trained("pytorch-ddp", workers=2, stages=2, microbatches=2) == "pytorch-ddp"
    assert trained("pytorch-ddp", workers=2, tensor=2) == trained(None, workers=2, tensor=2), "it has no tensor parallelism"


def test_an_unknown_framework_of_a_cluster_is_rejected() -> None:
    with pytest.raises(FieldError, match=r"no framework is called 'pytorch'; give one of .*pytorch-ddp"):
        trained("pytorch", workers=2)
