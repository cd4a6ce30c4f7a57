"""The steps of a rank as a list of allocations and frees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.memory.layers import LayerBytes
from scaleproof.simulator.memory.states import Amount
from scaleproof.simulator.memory.step import RankBytes, RankPass, Step, Tensor
from scaleproof.simulator.strategy.pipeline.schedules import Pass

_PHASES: Final = {
    Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.INPUT: "backward", Pass.WEIGHT: "weight gradients",
}  # fmt: skip
OPTIMIZER: Final = "optimizer step"


class AllocationList:
    """A memory that records what is allocated and freed. phase, at: of what comes next; see `Allocation`."""

    def __init__(self) -> None:
        self.events: list[Allocation | Free] = []
        self.phase, self.at, self._module, self._count = "start", 0, "", 0

    def begin(self, phase: str, at: int) -> None:
        """Begins a pass, or the optimizer's step."""
        self.phase, self.at, self._module = phase, at, ""

    def allocate(self, holder: str, sizes_bytes: Iterable[Amount], stream: int = 0) -> list[Tensor]:
        """Records allocations; tensors without elements need no memory."""
        tensors = []
        for size_bytes in sizes_bytes:
            if size_bytes > 0:
                self._count += 1
                tensors.append(Tensor(holder, size_bytes, self._count))
                self.events.append(Allocation(self._count, size_bytes, stream, holder, self._module, "", self.phase, self.at))
        return tensors

    def free(self, tensors: Iterable[Tensor]) -> None:
        """Records frees."""
        self.events += [Free(tensor.number, self.at) for tensor in tensors]

    def visit(self, layer: LayerBytes, allocate: Callable[[], None]) -> None:
        """Has a layer allocate and free."""
        self._module = layer.name
        allocate()


def allocations(rank: RankBytes, passes: Sequence[RankPass], steps: int) -> list[Allocation | Free]:
    """What a rank allocates and frees before its first step and in some steps. `at`: number of passes of the step before."""
    recorded = AllocationList()
    step = Step(recorded, rank)
    for _ in range(steps):
        for at, one in enumerate(passes):
            recorded.begin(_PHASES[one.kind], at)
            step.take(one)
        recorded.begin(OPTIMIZER, len(passes))
        step.update()
    return recorded.events
