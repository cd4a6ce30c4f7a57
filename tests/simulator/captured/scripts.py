"""Captured scripts that are written by hand for tests."""

from __future__ import annotations

from collections.abc import Sequence

from scaleproof.simulator.captured.groups import Replicas
from scaleproof.simulator.captured.script import CapturedClass, CapturedScript, IssuedCollective, Operation, Operator, Wait
from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.torch_operators import work_of

MIB = 2**20


def product(rows: int, columns: int, inner: int) -> Operator:
    """A product in bf16."""
    shapes = [(rows, inner), (inner, columns)]
    moved_bytes = 2.0 * (rows * inner + inner * columns + rows * columns)
    return Operator("aten::mm", work_of("aten::mm", shapes, {}, moved_bytes), "bf16")


def moving(name: str, moved_bytes: float) -> Operator:
    """An operator that is none of the modelled ones."""
    return Operator(name, work_of(name, [], {}, moved_bytes), "bf16")


def data_parallel(
    workers: int = 8, more: Sequence[Operator] = (), shards: bool = False, world: int | None = None
) -> CapturedScript:
    """A linear layer of 4096 × 4096 on 8192 rows, with the sum of its gradients over all workers, and an optimizer's step."""
    rows = width = 8192 // 2
    forward, backward = product(2 * rows, width, width), product(width, width, 2 * rows)
    update = moving("aten::_fused_adamw_", 28.0 * width * width)
    operators = [forward, backward, update, *more]
    events = [
        Operation(0, Phase.FORWARD, 0, again=False),
        *(Operation(0, Phase.FORWARD, 3 + number, again=False) for number in range(len(more))),
        Operation(0, Phase.BACKWARD, 0, again=True),
        Operation(0, Phase.BACKWARD, 1, again=False),
        IssuedCollective(0, Phase.BACKWARD, "all_reduce", range(workers), 2.0 * width * width, "dp", 1, Dimension.DATA),
        Wait(0, "work", 1),
        Operation(0, Phase.OPTIMIZER, 2, again=False),
    ]
    before = [
        Allocation(0, 32 * MIB, 0, "parameters", "fc", "train.py:3"),
        Allocation(1, 128 * MIB, 0, "optimizer_states", "fc", ""),
    ]
    step = [Allocation(2, 64 * MIB, 0, "activations", "fc", "train.py:9"), Free(2)]
    ranks = range(world or workers)
    return CapturedScript(
        name="train", world_size=len(ranks), replicas=Replicas(workers), samples=4, tokens=2048, parameters=width * width,
        precision="bf16", optimizer="adam", device="h100-80gb-sxm", cluster="dgx-h100", shards=shards,
        classes=(CapturedClass("all ranks", ranks, 0, 0, operators, events, before, step),),
    )  # fmt: skip
