"""Ranks that emulate compute wait for it instead of using cores: those on few cores compute as fast as those on many.

Ranks that compute share cores fairly, so that four of them on two cores take up to twice as long.
"""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

STRATEGIES: list[dict[str, Any]] = [
    {"kind": "data_parallel", "workers": 4},
    {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2},
    {"kind": "pipeline", "stages": 4, "microbatches": 4},
    {"kind": "parameter_server", "workers": 4},
    {"kind": "local_sgd", "workers": 4, "period": 2},
    {"kind": "gather_average", "workers": 4},
]


def predicted(strategy: dict[str, Any], compute: str, cores: int) -> Run:
    parts = {
        "model": {"kind": "mlp", "layers": 8, "inputs": 512, "hidden": 512, "outputs": 512},
        "cluster": {
            "node": {"devices": 8, "cores": cores, "link": {"bandwidth": "2 GB/s", "latency": "50 us"}},
            "device": {"name": "cpu", "peak": {"fp32": "1 GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "10 GB/s"},
        },
        "strategy": strategy,
        "batch": {"total": 64},
        "compute": compute,
    }
    return predict(Scenario.model_validate({"name": "small", **parts}))


def computing_s(run: Run) -> float:
    """Seconds of the first rank's passes in a step."""
    spans = run.spans
    assert spans is not None
    passes = (spans.rank == 0) & ((spans.phase == Phase.FORWARD) | (spans.phase == Phase.BACKWARD))
    own = spans.where(passes & (spans.step == spans.step.max()))
    return float((own.end_s - own.start_s).sum())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_emulated_ranks_do_not_share_cores(strategy: dict[str, Any]) -> None:
    emulated, many, few = (predicted(strategy, *of) for of in (("paced", 2), ("real", 8), ("real", 2)))

    assert computing_s(emulated) == pytest.approx(computing_s(many), rel=1e-9)
    assert computing_s(few) > 1.2 * computing_s(many)
