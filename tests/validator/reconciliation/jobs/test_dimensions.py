from __future__ import annotations

import pytest

from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.communication import label_of
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.calibration.imports.kineto import TracedCollective
from scaleproof.validator.reconciliation.jobs.dimensions import Dimensions

# ranks are numbered by tensor, then worker, then stage
HYBRID = {
    "model": "llama-3-8b",
    "cluster": "dgx-h100",
    "strategy": {"kind": "hybrid", "workers": 4, "tensor": 4, "stages": 2, "microbatches": 8, "sequence_parallel": True},
    "batch": {"total": 64},
    "training": {"precision": "bf16", "zero": 1, "optimizer": "adam"},
}


def _label(op: Op | None, members: tuple[int, ...] = (), size: int = 0, description: str = "") -> str:
    exchange = TracedCollective(op, 1.0, "", "7", members, size or len(members), description)
    return label_of(Dimensions(load(HYBRID, [])).number(exchange))


@pytest.mark.parametrize(
    ("op", "members", "size", "description", "label"),
    [
        ("all_reduce", (4, 5, 6, 7), 0, "", "TP all-reduce"),
        ("all_gather", (4, 5, 6, 7), 0, "", "SP all-gather"),
        ("reduce_scatter", (1, 5, 9, 13), 0, "", "ZeRO reduce-scatter"),
        ("sendrecv", (3, 19), 0, "", "PP send"),
        ("all_gather", (), 4, "mesh_dp_shard", "ZeRO all-gather"),
        ("all_reduce", (), 4, "TENSOR_MODEL_PARALLEL_GROUP", "TP all-reduce"),
        ("all_reduce", (), 2, "", "PP all-reduce"),
        # four ranks are tensor-parallel or replicas; 32 are all
        ("all_reduce", (), 4, "", ""),
        ("all_reduce", (), 32, "", ""),
        (None, (4, 5, 6, 7), 0, "", ""),
    ],
)
def test_groups_name_their_dimension_where_it_is_unambiguous(
    op: Op | None, members: tuple[int, ...], size: int, description: str, label: str
) -> None:
    assert _label(op, members, size, description) == label
