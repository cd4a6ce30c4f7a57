"""Model parallelism: one copy of the model on several devices, each layer on one of them, with all samples in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.common.communication import Collective, Communication, Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.layers import inputs_of, owners_of
from scaleproof.simulator.parallelism.model_parallel import ModelParallel, with_own_weights
from scaleproof.simulator.program import Program
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.step_builder import JobCosts, StepBuilder


def compile_model_parallel(strategy: ModelParallel, job: Job) -> Program:
    """Forward and backward tasks of layers, messages between devices, averages of shared weights' gradients, and
    optimizers."""
    device_of = strategy.device_of(job.layers)
    passes = _PassTasks(replace(job, layers=with_own_weights(job.layers, device_of)), device_of, strategy.stages)
    passes.add_forward()
    passes.add_backward()
    passes.add_optimizers(owners_of(job.layers))
    return passes.builder.priced()


class _PassTasks:
    """Adds the passes of a step to a program, with one task per layer on the device of the layer."""

    def __init__(self, job: Job, device_of: Sequence[int], devices: int) -> None:
        self.builder = StepBuilder(job)
        self.job = job
        self.device_of = device_of
        self._places = [divmod(device, job.cluster.node.devices) for device in range(devices)]
        self.ranks = [self.builder.add_rank(f"device {device}", device, self._places[device][0]) for device in range(devices)]
        number = {layer.name: i for i, layer in enumerate(job.layers)}
        self._reads = [[number[name] for name in names] for names in inputs_of(job.layers)]
        for device in sorted({device_of[i] for i, read in enumerate(self._reads) if not read}):
            self.builder.load(self.ranks[device], self._places[device][0])
        self._sent: dict[tuple[int, int], int] = {}
        self._backward: dict[int, int] = {}
        # gloo moves a message once its receive is posted, after the receiver's task before
        self._posts_receives = job.cluster.library == "gloo"
        self._latest: dict[int, int] = {}

    def add_forward(self) -> None:
        """Adds forward tasks; each layer follows the layers that it reads, and the messages from those on other devices."""
        forward: list[int] = []
        for i, read in enumerate(self._reads):
            after = [self._send(source, i, forward[source]) for source in read if self.device_of[source] != self.device_of[i]]
            forward.append(self._compute(i, Phase.FORWARD, after))

    def add_backward(self) -> None:
        """Adds backward tasks; each layer follows the gradients of its outputs."""
        readers: dict[int, list[int]] = {}
        for i, read in enumerate(self._reads):
            for source in read:
                readers.setdefault(source, []).append(i)
        for i in range(len(self.device_of) - 1, -1, -1):
            if not self.job.layers[i].has_backward:
                continue
            after = [
                self._send(reader, i, self._backward[reader], gradient_of=i)
                for reader in readers.get(i, ())
                if self.device_of[reader] != self.device_of[i] and reader in self._backward
            ]
            self._backward[i] = self._compute(i, Phase.BACKWARD, after)

    def add_optimizers(self, owners: Mapping[int, int]) -> None:
        """Adds averages of the gradients of weights that two devices have, and each device's optimizer step."""
        shared: dict[tuple[int, int], int] = {}
        for layer, owner in owners.items():
            devices = (self.device_of[owner], self.device_of[layer])
            if devices[0] != devices[1]:
                shared[devices] = shared.get(devices, 0) + self.job.layers[owner].trained_parameters
        after = [self._average(sorted(devices), parameters) for devices, parameters in shared.items()]
        for device, rank in enumerate(self.ranks):
            layers = (layer for layer, at in zip(self.job.layers, self.device_of, strict=True) if at == device)
            trained = sum(layer.trained_parameters for layer in layers)
            self.builder.compute(rank, Phase.OPTIMIZER, partial(_optimizer_s, trained), after)

    def _compute(self, layer: int, phase: Phase, after: Sequence[int]) -> int:
        """Row of a pass of a layer, after the messages `after`."""

        def seconds(costs: JobCosts) -> float:
            layers = costs.layers()
            return float((layers.forward_s if phase == Phase.FORWARD else layers.backward_s)[layer])

        row = self._latest[self.device_of[layer]] = self.builder.compute(self._rank(layer), phase, seconds, after)
        return row

    def _rank(self, layer: int) -> int:
        return self.ranks[self.device_of[layer]]

    def _send(self, source: int, target: int, after: int, gradient_of: int | None = None) -> int:
        """Row of the message with a layer's output to another layer's device, sent once per device, or with its gradient
        back."""
        key = (source, self.device_of[target])
        if gradient_of is None and key in self._sent:
            return self._sent[key]
        sent = self.job.layers[source if gradient_of is None else gradient_of]
        size_bytes = float(sent.output_elements * self.job.samples_per_worker * self.job.stream_bytes)
        places = self._places[self.device_of[source]], self._places[self.device_of[target]]
        path = partial(ResourceMap.concurrent_messages, source=places[0], target=places[1], size_bytes=size_bytes)
        layer = source if gradient_of is None else gradient_of
        labels = Communication.of(Dimension.MODEL, Collective.SEND, size_bytes, range(layer, layer + 1))
        ranks, receiver = (self._rank(source), self._rank(target)), self.device_of[target]
        ready = [self._latest[receiver]] if self._posts_receives and receiver in self._latest else []
        row = self.builder.transfer(*ranks, size_bytes, path, Phase.SEND, (after, *ready), labels=labels)
        if gradient_of is None:
            self._sent[key] = row
        return row

    def _average(self, devices: Sequence[int], parameters: int) -> int:
        group = Group.of(list(devices), self.job.cluster.node.devices)
        nodes = sorted({self._places[device][0] for device in devices})
        size_bytes = float(parameters * self.job.parameter_bytes)
        last = [min(i for i in self._backward if self.device_of[i] == device) for device in devices]
        ready = [self._backward[i] for i in last]
        members = [self.ranks[device] for device in devices]
        return self.builder.collective_of("all_reduce", group, size_bytes, members, nodes, ready, Dimension.EMBEDDING)


def _optimizer_s(trained: int, costs: JobCosts) -> float:
    return costs.job.optimizer_s(float(trained))
