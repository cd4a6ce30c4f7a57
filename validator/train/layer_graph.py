"""The layers of a stage, run in order: each reads outputs of earlier layers, of other stages, or tensors of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from scaleproof.validator.train.models.wiring import DATA, Wire, Wiring, crossing, outputs_of
from scaleproof.validator.train.recompute import Checkpoint

# What a layer or a stage returns: a tensor, or several.
Values = Tensor | tuple[Tensor, ...]


class _Step(NamedTuple):
    """A layer or a recomputed part of the graph. freed: values that no later step reads.
    checkpoint: runs a recomputed part."""

    module: nn.Module
    reads: tuple[Wire, ...]
    writes: tuple[Wire, ...]
    freed: tuple[Wire, ...]
    checkpoint: Checkpoint | None


class LayerGraph(nn.Module):
    """Neighbouring layers of a model.

    Called with the boundary activations from earlier layers, in order, or with the first tensor of the batch
    if it has the first layer; other tensors of the batch are given by name. Returns the boundary activations behind it.

    layers: by number, neighbours in ascending order. recomputed: parts of them with the functions that run them. ends: whether
    it has the last layer. prelude: computes `derived` further tensors from those of the batch, which layers read as data.
    """

    def __init__(
        self,
        layers: Mapping[int, nn.Module],
        wiring: Wiring,
        recomputed: Mapping[range, Checkpoint] = MappingProxyType({}),
        prelude: nn.Module | None = None,
        derived: int = 0,
    ) -> None:
        super().__init__()
        first, end = min(layers), max(layers) + 1
        read = {wire for number in layers for wire in wiring[number] if wire.layer == DATA}
        tensors = 1 + max(wire.output for sources in wiring for wire in sources if wire.layer == DATA) - derived
        self._derived = [Wire(DATA, place) for place in range(tensors, tensors + derived)]
        self.prelude = prelude if read & {*self._derived} else None
        if self.prelude is not None:
            read = read - {*self._derived} | {Wire(DATA, place) for place in range(tensors)}
        self._tensors = [Wire(DATA, place) for place in range(tensors)]
        self.parts = nn.ModuleList()
        self.entering = [Wire(DATA)] if first == 0 else crossing(wiring, first)
        self.leaving = crossing(wiring, end)
        self.data = sorted(read - {*self.entering})
        self.ends = end == len(wiring)
        steps = [self._step(layers, wiring, part, recomputed) for part in _parts(first, end, recomputed)]
        self._steps = _freeing(steps, self.leaving)

    @property
    def needed(self) -> list[str]:
        """Names of the tensors of a batch that must be given by name."""
        return [data_name(wire) for wire in self.data]

    def forward(self, *entering: Tensor, **data: Tensor) -> Values:
        """The boundary activations behind the layers; of all layers, the model's output."""
        values: dict[Wire, Any] = dict(zip(self.entering, entering, strict=True))
        values |= {wire: data[data_name(wire)] for wire in self.data}
        if self.prelude is not None:
            values |= zip(self._derived, as_tuple(self.prelude(*(values[wire] for wire in self._tensors))), strict=True)
        for module, reads, writes, freed, checkpoint in self._steps:
            inputs = [values[wire] for wire in reads]
            outputs = module(*inputs) if checkpoint is None else checkpoint(module, *inputs)
            values |= {writes[0]: outputs} if len(writes) == 1 else dict(zip(writes, outputs, strict=True))
            for wire in freed:
                del values[wire]
        leaving = tuple(values[wire] for wire in self.leaving)
        return leaving[0] if len(leaving) == 1 else leaving

    def _step(
        self, layers: Mapping[int, nn.Module], wiring: Wiring, part: range | int, recomputed: Mapping[range, Checkpoint]
    ) -> _Step:
        if isinstance(part, int):
            module, reads = layers[part], tuple(wiring[part])
            writes = tuple(Wire(part, output) for output in range(outputs_of(wiring)[part]))
        else:
            module = _Inner({number: layers[number] for number in part}, wiring)
            reads, writes = tuple(module.reads), tuple(module.leaving)
        self.parts.append(module)
        return _Step(module, reads, writes, (), None if isinstance(part, int) else recomputed[part])


class _Inner(LayerGraph):
    """Layers in the middle of a graph, called with all that they read."""

    def __init__(self, layers: Mapping[int, nn.Module], wiring: Wiring) -> None:
        super().__init__(layers, wiring)
        read = {wire for number in layers for wire in wiring[number] if wire.layer not in layers}
        passed = {wire for wire in self.leaving if wire.layer not in layers}
        self.leaving = [wire for wire in self.leaving if wire not in passed]
        self.reads, self.entering, self.data = sorted(read), sorted(read), []
        self._steps = _freeing(self._steps, self.leaving)


def data_name(wire: Wire) -> str:
    """The name by which a tensor of the batch is given to a graph."""
    return f"data{wire.output}"


def as_tuple(values: Values) -> tuple[Tensor, ...]:
    """A stage's outputs as the next one's inputs."""
    return (values,) if isinstance(values, Tensor) else values


def _parts(first: int, end: int, recomputed: Iterable[range]) -> list[range | int]:
    """The layers from `first` to before `end`, where those that are recomputed together are one part."""
    begins = {part.start: part for part in recomputed}
    inside = {number for part in recomputed for number in part[1:]}
    return [begins.get(number, number) for number in range(first, end) if number not in inside]


def _freeing(steps: Sequence[_Step], leaving: Sequence[Wire]) -> list[_Step]:
    """The steps, each with the values that are read for the last time there."""
    needed = set(leaving)
    result: list[_Step] = []
    for step in reversed(steps):
        values = {*step.reads, *step.writes}
        result.append(step._replace(freed=tuple(sorted(values - needed))))
        needed |= values
    return result[::-1]
