"""What a rank requests from the allocator: its single tensors, its passes, and their allocations and frees as a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from scaleproof.simulator.common.allocations import Allocation, Free
from scaleproof.simulator.memory.activations import is_logits, size_bytes
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.layers import LayerBytes, LayerSizes, Tensors, layer_sizes
from scaleproof.simulator.memory.peak import shortest
from scaleproof.simulator.memory.ranks import PipelineRank, stage_names
from scaleproof.simulator.memory.result import HOLDERS, OUTSIDE
from scaleproof.simulator.memory.step import RankBytes, RankPass, Step, Tensor, UpdateBytes
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import SavedActivation
from scaleproof.simulator.parallelism import GatherAverage
from scaleproof.simulator.strategy.pipeline.schedules import SCHEDULES, Pass

_PHASES: Final = {
    Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.INPUT: "backward", Pass.WEIGHT: "weight gradients",
}  # fmt: skip
# Holders whose bytes are divided like the parameters.
_STATES: Final = ("parameters", "gradients", "master_parameters", "optimizer_states")


class AllocationList:
    """A memory that records what is allocated and freed. phase, at: of what comes next; see `Allocation`."""

    def __init__(self) -> None:
        self.events: list[Allocation | Free] = []
        self.phase, self.at, self._module, self._count = "start", 0, "", 0

    def begin(self, phase: str, at: int) -> None:
        """Begins a pass, or the optimizer's step."""
        self.phase, self.at, self._module = phase, at, ""

    def allocate(self, holder: str, sizes_bytes: Iterable[float], stream: int = 0) -> list[Tensor]:
        """Records allocations; tensors without elements need no memory."""
        tensors = []
        for own_bytes in sizes_bytes:
            if own_bytes > 0:
                self._count += 1
                tensors.append(Tensor(holder, own_bytes, self._count))
                self.events.append(
                    Allocation(self._count, int(own_bytes), stream, holder, self._module, "", self.phase, self.at)
                )
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
        recorded.begin("optimizer step", len(passes))
        step.update()
    return recorded.events


def rank_passes(inputs: MemoryInputs, rank: int) -> list[RankPass]:
    """The passes of a pipeline rank in order, without those of microbatches that repeat what others allocate and free."""
    plan = inputs.plan
    numbers = shortest(plan.schedule, plan.stages, rank, plan.microbatches)
    passes = SCHEDULES[plan.schedule](*numbers, plan.chunks, inputs.pass_times)
    return [RankPass(Pass(kind), chunk, microbatch) for kind, chunk, microbatch in passes.tolist()]


def rank_tensors(rank: PipelineRank, number: int) -> RankBytes:
    """The tensors of pipeline rank `number`."""
    inputs, layers = rank.inputs, rank.layers
    constant_bytes = dict.fromkeys(HOLDERS, 0.0) | rank.constant_bytes(
        rank.fullest_passes(number, inputs.microbatches).most.tolist()
    )
    constant_bytes |= libraries_bytes(inputs, copies=False)
    if not inputs.makes:
        constant_bytes["gradients"] += rank.static.gradients_bytes
    elements = [tensor for layer in layers for tensor in layer.tensors]
    of_holder = dict.fromkeys(_STATES, elements)
    of_holder["parameters"] = [*elements, *(layer.frozen_parameters for layer in layers)]
    scale = inputs.software.scale
    constant = {holder: divided(scale * total, of_holder.get(holder, (1,))) for holder, total in constant_bytes.items()}
    for outside in OUTSIDE:
        constant.pop(outside)
    states = constant.pop("optimizer_states")
    others = inputs.strategy.workers - 1 if isinstance(inputs.strategy, GatherAverage) else 0
    received, copies, working = (scale * sum(sizes) for sizes in rank.static.update_bytes(others * rank.static.gradients_bytes))
    updated = UpdateBytes((round(received),), divided(copies, elements), (round(working),))
    names = stage_names(inputs, number)
    return RankBytes(constant, states, [_chunk_tensors(rank, *chunk) for chunk in enumerate(names)], updated, inputs.makes)


def _chunk_tensors(rank: PipelineRank, place: int, names: Sequence[str]) -> list[LayerBytes]:
    """The tensors of the layers of a chunk, which have these names."""
    inputs, chunk, result = rank.inputs, rank.chunks[place], list[LayerBytes]()
    for (sizes, count), total in zip(layer_sizes(inputs, chunk), rank.layer_bytes(place), strict=True):
        scaled = total.scaled(inputs.software.scale)
        result += [_layer_tensors(inputs, layer, sizes, scaled) for layer in chunk.layers[len(result) : len(result) + count]]
    return [layer._replace(name=name) for layer, name in zip(result, names, strict=True)]


def divided(total_bytes: float, elements: Sequence[float]) -> Tensors:
    """Bytes of tensors that share a total in proportion to their elements."""
    whole = sum(elements)
    return tuple(round(total_bytes * each / whole) for each in elements if each) if total_bytes > 0 and whole else ()


def _layer_tensors(inputs: MemoryInputs, layer: Layer, sizes: LayerSizes, total: LayerBytes) -> LayerBytes:
    """The tensors of a layer. total: bytes of those with one holder."""
    names = {kept.name for kept in sizes.activations}
    dropped = [activation for activation in sizes.whole if activation.name not in names]
    most = inputs.samples * inputs.size * max([layer.output_elements, *(activation.elements for activation in sizes.whole)])
    return LayerBytes(
        kept=_as_tensors(inputs, sizes.activations, sum(total.kept), logits=False),
        logits=_whole(total.logits),
        recomputed=_as_tensors(inputs, dropped, sum(total.recomputed), logits=True),
        with_previous=total.with_previous,
        fetched=2 * _as_tensors(inputs, sizes.activations, sum(total.fetched[:1]), logits=False),
        left=_whole(total.left),
        gathered=_whole(total.gathered),
        working=tuple(_working_bytes(inputs, layer, sum(total.working))),
        product=_whole(total.product),
        entry=_whole(total.entry),
        unsharded=divided(sum(total.unsharded), layer.tensors),
        reduced=_whole(total.reduced),
        waiting=_whole(total.waiting),
        gradients=divided(sum(total.gradients), layer.tensors),
        largest=int(max(most, sum(total.logits))),
    )


def _whole(total: Tensors) -> Tensors:
    """One tensor of whole bytes."""
    return (int(sum(total)),)


def _as_tensors(inputs: MemoryInputs, activations: Iterable[SavedActivation], total_bytes: float, logits: bool) -> Tensors:
    """Bytes of activations with a given total; what is not among the activations is one more tensor. logits: whether those
    count."""
    sizes = [inputs.samples * size_bytes([one], inputs.size) for one in activations if logits or not is_logits(one)]
    known = sum(sizes)
    if known <= total_bytes:
        return tuple(int(size) for size in (*sizes, total_bytes - known) if size >= 1)
    return divided(total_bytes, sizes)


def _working_bytes(inputs: MemoryInputs, layer: Layer, most: float) -> list[float]:
    """Bytes of gradients of activations that each operator reads and writes, last operator first; the maximum is given."""
    sizes = [min(most, inputs.samples * inputs.size * one.gradient_elements) for one in reversed(layer.operators)] or [most]
    sizes[sizes.index(max(sizes))] = most
    return [int(size) for size in sizes]
