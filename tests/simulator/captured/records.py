"""Capture files that are written by hand for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaleproof.simulator.captured.record import (
    Capture,
    Category,
    EventKind,
    EventWriter,
    ModelInput,
    ProcessGroup,
    RecordedEvents,
    RecordedRanks,
    Signature,
    TrainingPass,
    UsedOptimizer,
)

MIB = 2**20
Tensor = tuple[tuple[int, ...], str]


class Step:
    """Events of a rank class, in order."""

    def __init__(self) -> None:
        self._events = EventWriter()

    def add(self, kind: EventKind, **columns: Any) -> Step:
        """Adds an event."""
        self._events.add(kind, **columns)
        return self

    def operator(
        self, name: str, inputs: Sequence[Tensor], output: Tensor, phase: TrainingPass, stream: int = 0, **more: Any
    ) -> Step:
        """Adds an operator that reads and writes all of its tensors once."""
        arguments = more.pop("arguments", {})
        signature = Signature(tuple((*one, True) for one in inputs), ((*output, True),), arguments)
        sizes = {"bytes_read": sum(map(size_bytes, inputs)), "bytes_written": size_bytes(output)}
        return self.add(EventKind.OPERATOR, name=name, signature=signature, phase=phase, stream=stream, **sizes, **more)

    def collective(
        self, name: str, group: int, read: int, written: int, work: int, phase: TrainingPass, stream: int = 0, **more: Any
    ) -> Step:
        """Adds a collective with its bytes on this rank."""
        sizes = {"bytes_read": read, "bytes_written": written}
        return self.add(EventKind.COLLECTIVE, name=name, group=group, work=work, phase=phase, stream=stream, **sizes, **more)

    def allocate(self, number: int, size: int, category: Category, **more: Any) -> Step:
        """Adds an allocation."""
        return self.add(EventKind.ALLOCATE, allocation=number, size=size, category=category, stream=0, **more)

    def recorded(self) -> RecordedEvents:
        """The columns of all rows."""
        return self._events.part(range(len(self._events)))


def size_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor."""
    shape, dtype = tensor
    return int(np.prod(shape, dtype=np.int64)) * {"float32": 4, "bfloat16": 2, "int64": 8}[dtype]


def rank_class(
    step: Step,
    ranks: range,
    groups: Sequence[ProcessGroup],
    batch: tuple[int, ...] = (4, 2048),
    calls: int = 1,
    name: str = "all ranks",
) -> RecordedRanks:
    """A class whose first rank was played."""
    return RecordedRanks(
        name=name, ranks=(ranks,), played=ranks[0], why="", groups=tuple(groups), parameters=4096 * 4096,
        local_parameters=4096 * 4096, inputs=(ModelInput("Model", (batch,), calls),), optimizers=(UsedOptimizer("AdamW", 1),),
        kept_step=1, steps=3, peak_bytes=(0, 0), operators_hash="", decisions=(), **step.recorded()._asdict(),
    )  # fmt: skip


def capture(*classes: RecordedRanks, cluster: str | None = "dgx-h100") -> Capture:
    """A capture of all ranks of the classes."""
    world = sum(map(len, classes))
    return Capture("train.py", (), "2.13.0", world, 8, "h100-80gb-sxm", cluster, classes)


def data_parallel(workers: int = 16, waits: bool = False) -> Capture:
    """A linear layer whose gradients all workers sum. waits: whether the script waits for the sum itself, as DDP does not."""
    tokens, weights, table = ((8192, 4096), "bfloat16"), ((4096, 4096), "bfloat16"), ((1000, 4096), "bfloat16")
    step = Step()
    step.allocate(0, 32 * MIB, Category.PARAMETERS, module="fc", line="train.py:3")
    step.allocate(1, 128 * MIB, Category.OPTIMIZER_STATES, module="fc")
    step.add(EventKind.STEP)
    step.operator("aten::embedding", [table, ((4, 2048), "int64")], tokens, TrainingPass.FORWARD)
    step.operator("aten::mm", [tokens, weights], tokens, TrainingPass.FORWARD, module="fc")
    step.allocate(2, 64 * MIB, Category.ACTIVATIONS, module="fc", line="train.py:9")
    step.operator("aten::mm", [tokens, weights], tokens, TrainingPass.BACKWARD, recomputed=1)
    step.operator("aten::mm", [((4096, 8192), "bfloat16"), tokens], weights, TrainingPass.BACKWARD)
    step.collective("all_reduce", 0, 32 * MIB, 32 * MIB, 7, TrainingPass.BACKWARD)
    if waits:
        step.add(EventKind.WORK_WAIT, work=7, stream=0)
    step.add(EventKind.FREE, allocation=2)
    step.operator("aten::_fused_adamw_", [weights] * 4, weights, TrainingPass.OPTIMIZER)
    return capture(rank_class(step, range(workers), [ProcessGroup("0", range(workers))]))
