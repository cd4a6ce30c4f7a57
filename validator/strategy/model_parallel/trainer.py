"""Model parallelism: branches of a model on ranks of their own, or the stages of a chain, which run one after another.

Each layer of a branch runs on one rank, and messages carry what layers of other ranks read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.graph import branches
from scaleproof.simulator.parallelism import ModelParallel, Pipeline
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.strategy.base import Context, Trainer, apply_update, name_parameters
from scaleproof.validator.strategy.layout.messages import receive, send, wait_all
from scaleproof.validator.strategy.layout.shared_weights import SharedWeights
from scaleproof.validator.strategy.pipeline.trainer import StageTrainer
from scaleproof.validator.train.layer_graph import as_tuple
from scaleproof.validator.train.models.wiring import DATA, Wire, outputs_of

# Largest number of dimensions of a tensor that is sent.
_DIMENSIONS: Final = 8


def create(context: Context, strategy: ModelParallel) -> Trainer:
    """The trainer of this rank's branches, or of its stage: of a pipeline through which all samples pass as one microbatch."""
    if branches(context.scenario.model.build_layers()):
        return BranchTrainer(context, strategy)
    chain = Pipeline.model_validate({"stages": strategy.stages, "schedule": "gpipe"})
    return StageTrainer(context, chain, worker=0, stage=context.rank)


class BranchTrainer(Trainer):
    """One rank's layers of a model with branches. All ranks run their layers in the order of the whole model."""

    def __init__(self, context: Context, strategy: ModelParallel) -> None:
        super().__init__(context)
        self.rank_of = strategy.device_of(job_of(context.scenario).layers)
        self.wiring = context.model.modules.wiring
        self.writes = outputs_of(self.wiring)
        own = [number for number, rank in enumerate(self.rank_of) if rank == context.rank]
        self.layers = context.build(own)
        self.batches = context.batches(0)
        self.optimizer = context.optimizer(nn.ModuleList(self.layers.values()).parameters())
        columns = [range(dist.get_world_size())]
        self.shared = SharedWeights(self.recorder, self.layers, context.model.ties, self.rank_of, columns)
        self.messages = _Messages(context)
        # ranks that read each output, other than the one that computes it
        self.readers: dict[Wire, list[int]] = {}
        for number, sources in enumerate(self.wiring):
            for wire in sources:
                known, rank = self.readers.setdefault(wire, []), self.rank_of[number]
                if wire.layer != DATA and rank != self.rank_of[wire.layer] and rank not in known:
                    known.append(rank)

    def step(self, index: int) -> None:
        """Runs the passes of this rank's layers, sums gradients of shared weights, and applies them."""
        batch = self.batches[index]
        passes = _BranchPasses({Wire(DATA): batch.inputs})
        passes.values |= {Wire(DATA, int(name.removeprefix("data"))): tensor for name, tensor in batch.others.items()}
        if self.context.model.modules.prelude is not None:
            count = len(passes.values)
            derived = as_tuple(self.context.model.modules.prelude(*(passes.values[wire] for wire in sorted(passes.values))))
            passes.values |= {Wire(DATA, count + place): tensor for place, tensor in enumerate(derived)}
        for number in self.layers:
            for wire in self.wiring[number]:
                if wire not in passes.values:
                    passes.values[wire] = self.messages.receive(wire, self.rank_of[wire.layer], False)
            self._forward(number, passes)
        if len(self.rank_of) - 1 in self.layers:
            with self.recorder.span(Phase.FORWARD, stage=self.context.rank):
                loss = self.context.model.loss(passes.outputs[len(self.rank_of) - 1], batch.targets)
            self.note_loss(loss, len(batch.targets))
            passes.loss = self.context.scaled(loss)
        for number in reversed(self.layers):
            self._backward(number, passes)
        self.messages.wait()
        self.shared.sum()
        apply_update(self.recorder, self.optimizer, stage=self.context.rank)

    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters of the rank's layers."""
        return name_parameters(self.layers)

    def _forward(self, number: int, passes: _BranchPasses) -> None:
        with self.recorder.span(Phase.FORWARD, stage=self.context.rank):
            inputs = [passes.leaf(number, wire) for wire in self.wiring[number]]
            outputs = passes.outputs[number] = self.layers[number](*inputs)
        written = (outputs,) if self.writes[number] == 1 else outputs
        for place, value in enumerate(written):
            wire = Wire(number, place)
            passes.values[wire] = value
            for rank in self.readers.get(wire, ()):
                self.messages.send(value.detach(), wire, rank, False)

    def _backward(self, number: int, passes: _BranchPasses) -> None:
        """Computes the gradients of a layer once those of its outputs are known, and sends those of its inputs."""
        sources = [Wire(number, place) for place in range(self.writes[number])]
        for wire in sources:
            for rank in self.readers.get(wire, ()):
                passes.add_gradient(wire, self.messages.receive(wire, rank, True))
        with self.recorder.span(Phase.BACKWARD, stage=self.context.rank):
            if number == len(self.rank_of) - 1 and passes.loss is not None:
                passes.loss.backward()  # type: ignore[no-untyped-call]
            else:
                graded = [wire for wire in sources if wire in passes.gradients and passes.values[wire].requires_grad]
                torch.autograd.backward([passes.values[w] for w in graded], [passes.gradients.pop(w) for w in graded])
        for wire in self.wiring[number]:
            gradient = passes.take_gradient(number, wire)
            if gradient is None:
                continue
            passes.add_gradient(wire, gradient)
            rank = self.rank_of[wire.layer]
            if rank != self.context.rank and not passes.awaits(wire, self.wiring, self.layers, number):
                self.messages.send(passes.gradients.pop(wire), wire, rank, True)


class _BranchPasses:
    """Values and gradients of a step by wire. Each layer reads leaves of its own, so that it has a backward pass of its own."""

    def __init__(self, data: dict[Wire, Tensor]) -> None:
        self.values = data
        self.outputs: dict[int, Any] = {}
        self.gradients: dict[Wire, Tensor] = {}
        self.loss: Tensor | None = None
        self._leaves: dict[tuple[int, Wire], Tensor] = {}

    def leaf(self, number: int, wire: Wire) -> Tensor:
        """What a layer reads: a tensor that needs a gradient, unless it is data."""
        value = self.values[wire]
        if wire.layer == DATA or not value.is_floating_point():
            return value
        leaf = self._leaves[number, wire] = value.detach().requires_grad_()
        return leaf

    def take_gradient(self, number: int, wire: Wire) -> Tensor | None:
        """The gradient of what a layer has read; None where it has none."""
        leaf = self._leaves.pop((number, wire), None)
        return None if leaf is None else leaf.grad

    def add_gradient(self, wire: Wire, gradient: Tensor) -> None:
        """Adds a reader's gradient of an output to that of its other readers."""
        self.gradients[wire] = self.gradients[wire] + gradient if wire in self.gradients else gradient

    def awaits(self, wire: Wire, wiring: Any, layers: Mapping[int, nn.Module], number: int) -> bool:
        """Whether an earlier layer of this rank reads the output too, so that its gradient is not complete."""
        return any(wire in wiring[other] for other in layers if other < number)


class _Messages:
    """Messages with outputs, and with their gradients in the other direction. Those of the first step have their shape."""

    def __init__(self, context: Context) -> None:
        self._context, self._recorder = context, context.recorder
        self._shapes: dict[Wire, list[int]] = {}
        self._announced: set[tuple[Wire, int]] = set()
        self._sending: list[tuple[dist.Work, Tensor]] = []

    def send(self, value: Tensor, wire: Wire, rank: int, back: bool) -> None:
        """Starts to send an output, or its gradient back."""
        value = value.contiguous()
        if not back and (wire, rank) not in self._announced:
            self._announced.add((wire, rank))
            shape = value.new_zeros(_DIMENSIONS + 1, dtype=torch.int64)
            shape[: value.dim() + 1] = torch.tensor([value.dim(), *value.shape])
            self._shapes[wire] = list(value.shape)
            wait_all([send(shape, rank)])
        begin = self._recorder.now()
        work = send(value, rank)
        labels = self._labels(value, wire, rank, back)
        self._recorder.add(Phase.SEND, begin, self._recorder.now(), **labels)
        self._sending.append((work, value))

    def receive(self, wire: Wire, rank: int, back: bool) -> Tensor:
        """Waits for an output of another rank's layer, or for its gradient."""
        if not back and wire not in self._shapes:
            shape = torch.zeros(_DIMENSIONS + 1, dtype=torch.int64, device=self._context.device)
            wait_all([receive(shape, rank)])
            self._shapes[wire] = shape[1 : 1 + int(shape[0])].tolist()
        value = torch.empty(self._shapes[wire], dtype=self._context.dtype, device=self._context.device)
        with self._recorder.span(Phase.RECEIVE, **self._labels(value, wire, rank, back)):
            wait_all([receive(value, rank)])
        return value

    def wait(self) -> None:
        """Returns once all messages have been sent."""
        wait_all(work for work, _ in self._sending)
        self._sending.clear()

    def _labels(self, value: Tensor, wire: Wire, rank: int, back: bool) -> dict[str, Any]:
        match = 2 * (_DIMENSIONS * wire.layer + wire.output) + back
        return {"size_bytes": float(value.nbytes), "peer": rank, "match": match, "stage": self._context.rank}
