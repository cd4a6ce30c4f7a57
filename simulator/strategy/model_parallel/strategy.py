"""Model parallelism: one copy of the model on several devices, each layer on one of them, with all samples in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from scaleproof.simulator.cluster.collectives.cost import library_of
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.common.communication import Collective, Communication, Dimension
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count
from scaleproof.simulator.model.graph import branches, inputs_of, owners_of, place_branches
from scaleproof.simulator.model.layers import Layer, cut_into_stages
from scaleproof.simulator.program import Program, ProgramBuilder
from scaleproof.simulator.run.run import Phase
from scaleproof.simulator.strategy.base import Strategy
from scaleproof.simulator.strategy.data_parallel.data_loading import BatchLoader
from scaleproof.simulator.strategy.job import Costs, Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap


class ModelParallel(Strategy):
    """Branches of a model run concurrently on different devices; a chain is divided into `stages`, which run one after
    another."""

    kind: Literal["model_parallel"] = "model_parallel"
    stages_: Count = Field(1, alias="stages", description="devices")

    @property
    def stages(self) -> int:
        """Number of devices."""
        return self.stages_

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Checks that each device has a branch or a part of the chain; raises FieldError."""
        devices = len(set(self.device_of(layers)))
        if devices < self.stages:
            message = f"{self.stages} devices for a model with {devices} branches; give at most {devices}"
            raise FieldError(("strategy", "stages"), message)

    def parts(self, job: Job) -> list[list[Layer]]:
        """Layers on each device; shared weights have a copy on each device that uses them."""
        device_of = self.device_of(job.layers)
        layers = with_own_weights(job.layers, device_of)
        return [[layer for layer, at in zip(layers, device_of, strict=True) if at == device] for device in range(self.stages)]

    def stage_layers(self, job: Job) -> Sequence[Sequence[int]]:
        """Indices of the layers on each device."""
        device_of = self.device_of(job.layers)
        return [[i for i, at in enumerate(device_of) if at == device] for device in range(self.stages)]

    def device_of(self, layers: Sequence[Layer]) -> list[int]:
        """The device of each layer. Raises FieldError for more devices than a chain has blocks."""
        if branches(layers):
            return place_branches(layers, self.stages)
        return [device for device, part in enumerate(cut_into_stages(layers, self.stages)) for _ in part]

    def compile(self, job: Job) -> Program:
        """Forward and backward tasks of layers, messages between devices, averages of shared weights' gradients, and
        optimizers."""
        device_of = self.device_of(job.layers)
        passes = _PassTasks(replace(job, layers=with_own_weights(job.layers, device_of)), device_of, self.stages)
        passes.add_forward()
        passes.add_backward()
        passes.add_optimizers(owners_of(job.layers))
        return passes.builder.build()


def with_own_weights(layers: Sequence[Layer], device_of: Sequence[int]) -> list[Layer]:
    """The layers, where layers that share weights with a layer on another device have a copy of them."""
    owners = owners_of(layers)
    return [
        replace(layer, tensors=layers[owners[i]].tensors) if i in owners and device_of[owners[i]] != device_of[i] else layer
        for i, layer in enumerate(layers)
    ]


class _PassTasks:
    """Adds the passes of a step to a program, with one task per layer on the device of the layer."""

    def __init__(self, job: Job, device_of: Sequence[int], devices: int) -> None:
        self.builder = ProgramBuilder()
        self.job = job
        self.device_of = device_of
        self.costs: Costs = job.costs()
        self._resource_map = ResourceMap(job.cluster, self.builder)
        self._places = [divmod(device, job.cluster.node.devices) for device in range(devices)]
        self.ranks = [
            self._resource_map.add_rank(
                f"device {device}", job.unevenness, device, self._places[device][0], is_emulated=job.is_emulated
            )
            for device in range(devices)
        ]
        number = {layer.name: i for i, layer in enumerate(job.layers)}
        self._reads = [[number[name] for name in names] for names in inputs_of(job.layers)]
        batch_loader = BatchLoader(self.builder, job)
        for device in sorted({device_of[i] for i, read in enumerate(self._reads) if not read}):
            batch_loader.add(self.ranks[device], self._places[device][0], 1, 1)
        self._sent: dict[tuple[int, int], int] = {}
        self._backward: dict[int, int] = {}
        # gloo moves a message once its receive is posted, after the receiver's task before
        self._posts_receives = library_of(job.cluster) == "gloo"
        self._latest: dict[int, int] = {}

    def add_forward(self) -> None:
        """Adds forward tasks; each layer follows the layers that it reads, and the messages from those on other devices."""
        forward: list[int] = []
        for i, read in enumerate(self._reads):
            after = [self._send(source, i, forward[source]) for source in read if self.device_of[source] != self.device_of[i]]
            forward.append(self._compute(i, Phase.FORWARD, self.costs.forward_s[i], after))

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
            self._backward[i] = self._compute(i, Phase.BACKWARD, self.costs.backward_s[i], after)

    def add_optimizers(self, owners: Mapping[int, int]) -> None:
        """Adds averages of the gradients of weights that two devices have, and each device's optimizer step."""
        shared: dict[tuple[int, int], int] = {}
        for layer, owner in owners.items():
            devices = (self.device_of[owner], self.device_of[layer])
            if devices[0] != devices[1]:
                shared[devices] = shared.get(devices, 0) + self.job.layers[owner].trained_parameters
        after = [self._average(sorted(devices), parameters) for devices, parameters in shared.items()]
        for device, rank in enumerate(self.ranks):
            own = (layer for layer, at in zip(self.job.layers, self.device_of, strict=True) if at == device)
            trained = sum(layer.trained_parameters for layer in own)
            self.builder.compute(rank, Phase.OPTIMIZER, self.job.optimizer_s(trained), after)

    def _compute(self, layer: int, phase: Phase, seconds: float, after: Sequence[int]) -> int:
        """Row of a pass of a layer, after the messages `after`."""
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
        path = self._resource_map.concurrent_messages(*places, size_bytes)
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
        moved_bytes, path = self._resource_map.collective("all_reduce", group, size_bytes, nodes)
        labels = Communication.of(Dimension.EMBEDDING, "all_reduce", size_bytes)
        last = [min(i for i in self._backward if self.device_of[i] == device) for device in devices]
        ready = [self._backward[i] for i in last]
        members = [self.ranks[device] for device in devices]
        return self.builder.collective(members, moved_bytes, path, Phase.SYNCHRONISE, ready, labels=labels)
