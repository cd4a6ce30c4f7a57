"""Times of preparing batches, which a worker does before each timed training step.

All ranks call the probe, and each gets all its points.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.model import ModelSpec
from scaleproof.simulator.model.layers import kind_of
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import Step, by_size, timed
from scaleproof.validator.probe.peers import GroupPeers, named
from scaleproof.validator.probe.points import Point
from scaleproof.validator.probe.rounds import groups_in_turn
from scaleproof.validator.train.data import worker_batches
from scaleproof.validator.train.models.models import DTYPES

# Data depends on the model and the batch only; the schema requires some cluster.
_CLUSTER: Final = {
    "node": {"devices": 1, "link": {"bandwidth": "1 GB/s", "latency": "1 us"}},
    "device": {"name": "cpu", "peak": {"fp32": "1 GFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "1 GB/s"},
}


def loading(
    model: ModelSpec, samples: Sequence[int] = (8, 64), data: Path | None = None, budget_s: float = 1.0
) -> list[dict[str, Any]]:
    """Points of preparing a batch of `samples` samples on all ranks concurrently, of the slowest rank.

    data: a file whose bytes are tokens, for a gpt; random data if None.
    """
    what = f"{kind_of(model)}, {'random' if data is None else f'from {data.name}'}"

    def probe(peers: GroupPeers, budget_s: float) -> Iterable[Point]:
        for count, taken in by_size(partial(_step, model, data), samples, budget_s, peers):
            yield taken.point("loading", what, named(peers.ranks), peers.ranks, count, "samples")

    return groups_in_turn([range(here().ranks)], probe, budget_s)


def _step(model: ModelSpec, data: Path | None, samples: int) -> Step:
    """Step that prepares the next batch."""
    scenario = Scenario.model_validate(
        {
            "name": "loading",
            "model": model,
            "cluster": _CLUSTER,
            "strategy": {"kind": "data_parallel", "workers": 1},
            "batch": {"total": samples},
            "training": {"precision": "fp32"} | ({} if data is None else {"data": str(data)}),
        }
    )
    numbers = itertools.count()
    return timed(lambda: worker_batches(scenario, 0, [next(numbers)], here().device, DTYPES["fp32"]))
