"""Scenarios that train within a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaleproof.simulator.parallelism.stages import V_SHAPED
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.capabilities import supports_v_shape

GPT = {"kind": "gpt", "layers": 4, "hidden": 64, "heads": 4, "vocabulary": 256, "sequence": 32}
TINY_GPT = {"kind": "gpt", "layers": 4, "hidden": 16, "heads": 2, "vocabulary": 32, "sequence": 8}
MLP = {"kind": "mlp", "layers": 4, "inputs": 12, "hidden": 16, "outputs": 5}
CLUSTER = {
    "node": {"devices": 64, "cores": 2, "link": {"bandwidth": "2 GB/s", "latency": "50 us", "cores_busy": 1.5}},
    "device": {
        "name": "cpu",
        "peak": {"fp32": "50 GFLOP/s", "fp64": "25 GFLOP/s", "fp16": "50 GFLOP/s"},
        "memory": "8 GiB",
        "memory_bandwidth": "10 GB/s",
    },
}

MakeScenario = Callable[..., Scenario]


def make(
    strategy: dict[str, Any], model: dict[str, Any] | None = None, steps: int = 5, batch: int = 16,
    cluster: dict[str, Any] | None = None, lengths: dict[str, Any] | None = None, **training: Any,
) -> Scenario:  # fmt: skip
    if strategy.get("schedule") in V_SHAPED and not supports_v_shape():
        pytest.skip("torch's pipelines hand nothing on within a rank before 2.13")
    parts: dict[str, Any] = {"model": model or TINY_GPT, "cluster": cluster or CLUSTER, "strategy": strategy}
    parts |= {"batch": {"total": batch, "lengths": lengths}, "steps": steps}
    return Scenario.model_validate({"name": "small", "training": {"warmup_steps": 2, **training}, **parts})


@pytest.fixture
def make_scenario() -> MakeScenario:
    """make_scenario(strategy, model=tiny gpt, steps=5, batch=16, **training): a scenario on two CPU cores."""
    return make


@pytest.fixture
def models() -> dict[str, dict[str, Any]]:
    return {"gpt": TINY_GPT, "mlp": MLP, "demo": GPT}
