"""Captured scripts that are written by hand for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from scaleproof.simulator.captured.groups import Replicas
from scaleproof.simulator.captured.record import NONE, EventKind, ProcessGroup
from scaleproof.simulator.captured.script import CapturedClass, CapturedScript, Events, Operator
from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.torch_operators import work_of

# What a column has where it does not apply.
_EMPTY: Final[Mapping[str, Any]] = dict.fromkeys(Events._fields, NONE) | {
    "stream": 0, "phase": Phase.FORWARD, "module": "", "host_s": 0.0, "op": None, "dimension": None, "size_bytes": 0.0,
}  # fmt: skip
MIB = 2**20


def events_of(rows: Sequence[Mapping[str, Any]]) -> Events:
    """Events by the columns that apply to each."""
    return Events(**{name: [row.get(name, empty) for row in rows] for name, empty in _EMPTY.items()})


def launch(operator: int, phase: Phase = Phase.FORWARD, **columns: Any) -> dict[str, Any]:
    """An operator by its number in the class."""
    return {"kind": EventKind.OPERATOR, "operator": operator, "phase": phase, **columns}


def all_reduce(size_bytes: float, work: int = 0, group: int = 0) -> dict[str, Any]:
    """A sum of gradients."""
    return {
        "kind": EventKind.COLLECTIVE, "phase": Phase.BACKWARD, "op": "all_reduce", "dimension": Dimension.DATA,
        "size_bytes": size_bytes, "work": work, "group": group,
    }  # fmt: skip


def work_wait(work: int, stream: int = 0) -> dict[str, Any]:
    """A wait for communication."""
    return {"kind": EventKind.WORK_WAIT, "stream": stream, "work": work}


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
    events = events_of([
        launch(0),
        *(launch(3 + number) for number in range(len(more))),
        launch(0, Phase.BACKWARD, recomputed=1),
        launch(1, Phase.BACKWARD),
        all_reduce(2.0 * width * width, work=1),
        work_wait(1),
        launch(2, Phase.OPTIMIZER),
    ])  # fmt: skip
    before = [
        Allocation(0, 32 * MIB, 0, "parameters", "fc", "train.py:3"),
        Allocation(1, 128 * MIB, 0, "optimizer_states", "fc", ""),
    ]
    step = [Allocation(2, 64 * MIB, 0, "activations", "fc", "train.py:9"), Free(2)]
    ranks = range(world or workers)
    return CapturedScript(
        name="train", world_size=len(ranks), replicas=Replicas(workers), samples=4, tokens=2048, parameters=width * width,
        precision="bf16", optimizer="adam", device="h100-80gb-sxm", cluster="dgx-h100", shards=shards,
        classes=(
            CapturedClass("all ranks", ranks, 0, 0, operators, events, [ProcessGroup("dp", range(workers))], before, step),
        ),
    )  # fmt: skip
