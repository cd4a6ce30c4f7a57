"""Memory: the bytes that a rank holds at the peak of a training step, by what holds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.cluster.cost import library_of, nccl_facts
from simulator.cluster.device import ELEMENT_BYTES
from simulator.cluster.nccl import channels, facts_of
from simulator.model.graph import inputs_of
from simulator.model.layers import Layer
from simulator.model.operators import Attention, Convolution, Kept, Matmul, Operator
from simulator.model.operators import Memory as MemoryBound
from simulator.recompute import Recompute
from simulator.scenario import Scenario, Training
from simulator.strategy import Strategy
from simulator.strategy.schedule import most_held

# In the order in which they are told.
HOLDERS: Final = (
    "parameters", "gradients", "master_parameters", "optimizer_states", "activations", "logits", "recomputed", "working",
    "communication", "workspace", "context", "fragmentation",
)  # fmt: skip

# Elements per parameter that an optimizer keeps: none, a velocity, or two moments. Adafactor is counted by tensor.
_STATES: Final = {"sgd": 0, "momentum": 1, "adam": 2, "lamb": 2}
# Of mixed precision's master copies and states, arXiv 1910.02054, section 3.1.
_MASTER_BYTES: Final = 4
# The names under which layers keep what they read, and what the loss needs.
_READ: Final = "input"
_LOGITS: Final = ("logits", "probabilities")

# NCCL, src/init.cc: buffers of one connection for its three protocols (LL 512 KiB, LL128 4.7 MiB, Simple 4 MiB). Every
# channel receives from one neighbour on the ring and from up to three on the tree.
_NCCL_CONNECTION_BYTES: Final = 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + 2**22
_NCCL_CONNECTIONS: Final = 1 + 3
# PyTorch, aten/src/ATen/cuda: cuBLAS 4096 KiB · 2 + 16 KiB · 8, from Hopper on 4096 KiB · 8 (CublasHandlePool.cpp), and
# cuBLASLt 1 MiB, on Ampere 4 MiB, from Hopper on 32 MiB (CUDABlas.cpp). What cuDNN takes is not counted.
_WORKSPACE_BYTES: Final = {"volta": 8_519_680 + 2**20, "ampere": 8_519_680 + 2**22, "hopper": 2**26, "blackwell": 2**26}
# Assumption: a CUDA context with the kernels that training loads. Reports lie between 300 and 600 MiB.
_CONTEXT_BYTES: Final = 500 * 2**20
# Assumption: what the caching allocator holds beyond what is in use, as a share of what comes and goes within a step.
_FRAGMENTATION: Final = 0.05


@dataclass(frozen=True)
class RankMemory:
    """What ranks of one kind hold at their peak. name: such as "stage 3". host_bytes: held by the host for them."""

    name: str
    holders_bytes: Mapping[str, float]
    host_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        return sum(self.holders_bytes.values())


@dataclass(frozen=True)
class Memory:
    """ranks: the kinds of training ranks, by stage. servers: of a parameter server, in the memory of their hosts.
    capacity_bytes: of a device, or a process's part of its machine."""

    ranks: tuple[RankMemory, ...]
    servers: RankMemory | None
    capacity_bytes: float

    @property
    def worst(self) -> RankMemory:
        return max(self.ranks, key=lambda rank: rank.total_bytes)

    @property
    def fits(self) -> bool:
        return self.worst.total_bytes <= self.capacity_bytes


def memory(scenario: Scenario) -> Memory:
    """What each rank of `scenario` holds."""
    job = scenario.job()
    layers = job.layers
    read = dict(zip((layer.name for layer in layers), inputs_of(layers), strict=True))
    elements = {layer.name: layer.output_elements for layer in layers}
    parts = scenario.strategy.parts(job)
    entries = [sum(elements[name] for name in read[part[0].name]) for part in parts]
    ranks = tuple(_Stage(scenario, parts, number, entries[number]).memory() for number in range(len(parts)))
    return Memory(ranks, _server(scenario, layers), _capacity_bytes(scenario))


def kept(layer: Layer, recompute: Recompute, first: bool = True, entry_elements: int = 0) -> tuple[Kept, ...]:
    """A layer's activations that are held from its forward to its backward pass.

    first: whether it is the first of those that are made again together, whose input alone is then kept; entry_elements: of
    that input for one sample, which counts where the layer itself does not say that it keeps it.
    """
    if recompute.kind == "selective":
        return tuple(one for one in layer.kept if one.group != "attention")
    if recompute.kind == "none" or layer.glued:
        return layer.kept
    if not first:
        return ()
    return tuple(one for one in layer.kept if one.group == "input") or (Kept(_READ, entry_elements, group="input"),)


def size_bytes(activations: Iterable[Kept], element_bytes: int) -> int:
    """Bytes of kept activations for one sample."""
    return sum(one.elements * (one.element_bytes or element_bytes) for one in activations)


def in_flight(strategy: Strategy, stage: int) -> float:
    """The most microbatches whose activations a pipeline rank holds; of those that have passed some of its chunks alone, as
    many parts of one."""
    plan = strategy.plan
    return float(most_held(plan.schedule, plan.stages, plan.microbatches, plan.chunks)[stage]) / plan.chunks


class States(NamedTuple):
    """Bytes of what is held for parameters from step to step, and of their gradients."""

    parameters: float
    gradients: float
    master_parameters: float
    optimizer_states: float


def states(layers: Sequence[Layer], training: Training, replicas: int = 1) -> States:
    """What `layers` hold on one of `replicas` workers, which share it out by ZeRO's stage (arXiv 1910.02054, section 5)."""
    size = ELEMENT_BYTES[training.precision]
    parameters = sum(layer.parameters for layer in layers)
    shares = [replicas if training.zero >= stage else 1 for stage in (3, 2, 1)]
    return States(
        parameters * size / shares[0],
        parameters * size / shares[1],
        parameters * _MASTER_BYTES / shares[2] if size == 2 else 0.0,
        _state_elements(layers, training.optimizer) * max(size, _MASTER_BYTES) / shares[2],
    )


def _state_elements(layers: Sequence[Layer], optimizer: str) -> float:
    """Adafactor keeps sums of rows and columns (arXiv 1804.04235): of a square, since tensors do not tell their shape."""
    if optimizer == "adafactor":
        return sum(2 * math.sqrt(tensor) for layer in layers for tensor in layer.tensors)
    return _STATES[optimizer] * sum(layer.parameters for layer in layers)


def working_elements(operator: Operator) -> int:
    """Elements for one sample of the gradients that an operator's backward pass reads and writes."""
    match operator:
        case Matmul():
            read = operator.inner if operator.input_gradient else 0
            return operator.rows * operator.count * (operator.columns + read)
        case Convolution():
            read = operator.input_elements if operator.input_gradient else 0
            return operator.positions * operator.outputs + read
        case Attention():
            inputs = operator.queries * operator.heads * operator.width
            inputs += operator.keys * operator.key_heads * (operator.width + operator.value_width)
            scores = 0 if operator.flash else 2 * operator.scores
            return inputs + operator.queries * operator.heads * operator.value_width + scores
        case _:
            return operator.written + operator.backward_written


def _weights(operator: Operator) -> int:
    match operator:
        case Matmul():
            return operator.columns * operator.inner * operator.count
        case Convolution():
            return operator.weights
        case _:
            return 0


def _entered(layer: Layer, samples: float, is_last: bool) -> tuple[float, float]:
    """Elements of activations' gradients and of weights' at the fullest moment while the layer's activations are all there.

    That is until the first product with weights is passed: what it reads is then let go. An activation at the end of a layer
    that is not the last reads its output again, which the next layer held. Parameters without a product are looked up.
    """
    looked_up = layer.parameters if not any(map(_weights, layer.operators)) else 0
    moments = [(layer.output_elements, looked_up)]
    again = 0
    if not is_last and layer.operators and isinstance(last := layer.operators[-1], MemoryBound):
        again = max(0, min(last.backward_read - last.written, layer.output_elements))
    for index in range(len(layer.operators) - 1, -1, -1):
        operator = layer.operators[index]
        weights = _weights(operator)
        moments.append((working_elements(operator) + again, weights))
        again = 0
        if weights:
            read = operator.rows * operator.inner if isinstance(operator, Matmul) else 0
            rest = max(map(working_elements, layer.operators[:index]), default=0)
            moments.append((rest - read, weights))
            break
    working, weights = max(moments, key=lambda moment: samples * moment[0] + moment[1])
    return samples * working, float(weights)


class _Stage:
    """One stage of a scenario: what its rank holds, and when it holds the most."""

    def __init__(self, scenario: Scenario, parts: Sequence[list[Layer]], number: int, entry_elements: int) -> None:
        strategy, training = scenario.strategy, scenario.training
        self.scenario, self.number, self.stages = scenario, number, len(parts)
        self.layers = parts[number]
        self.is_last = number == len(parts) - 1
        self.entry_elements = entry_elements if number else 0
        self.size = ELEMENT_BYTES[training.precision]
        self.samples = scenario.samples_per_worker / strategy.microbatches
        self.states = states(self.layers, training, strategy.workers)
        self.largest_bytes = self.size * max((tensor for layer in self.layers for tensor in layer.tensors), default=0)

    def memory(self) -> RankMemory:
        """At its peak, with what is held all the time."""
        always = self._held_always()
        holders = dict.fromkeys(HOLDERS, 0.0) | always
        for name, held_bytes in self._peak().items():
            holders[name] += held_bytes
        if _is_gpu(self.scenario):
            comes_and_goes = ("gradients", "activations", "logits", "recomputed", "working")
            holders["fragmentation"] = _FRAGMENTATION * sum(holders[name] for name in comes_and_goes)
        name = f"stage {self.number}" if self.stages > 1 else "worker"
        return RankMemory(name, holders, self._host_bytes())

    def _held_always(self) -> dict[str, float]:
        """By holders that stay the same throughout a step."""
        training, held = self.scenario.training, self.states
        offloaded, has_servers = "optimizer" in training.offload, self.scenario.strategy.servers > 0
        own = not offloaded and not has_servers
        return {
            "parameters": 0.0 if "parameters" in training.offload else held.parameters,
            "master_parameters": held.master_parameters if own else 0.0,
            "optimizer_states": held.optimizer_states if own else 0.0,
            "activations": self.scenario.samples_per_worker * size_bytes(self.batch, self.size),
            "communication": self._communication_bytes(),
            "workspace": float(_WORKSPACE_BYTES[self._generation]) if _is_gpu(self.scenario) else 0.0,
            "context": float(_CONTEXT_BYTES) if _is_gpu(self.scenario) else 0.0,
        }

    @property
    def _generation(self) -> str:
        facts = facts_of(self.scenario.cluster.device.name)
        return facts.generation if facts else "ampere"

    def _host_bytes(self) -> float:
        offload, held = self.scenario.training.offload, self.states
        parameters = held.parameters if "parameters" in offload else 0.0
        return parameters + (held.master_parameters + held.optimizer_states if "optimizer" in offload else 0.0)

    def _communication_bytes(self) -> float:
        """Buffers of gradients, of what passes between stages, of parameters that ZeRO gathers, and NCCL's own.

        DistributedDataParallel holds buckets for all gradients beside the gradients themselves. torch's pipelines hold buffers
        for what every microbatch receives, of which those in flight are activations, and outputs until their gradient is there.
        """
        strategy, training = self.scenario.strategy, self.scenario.training
        averages = strategy.workers > 1 and not strategy.servers
        flight, sample_bytes = in_flight(strategy, self.number), self.samples * self.size
        total = self.states.gradients if averages and training.zero < 2 else 0.0
        total += (strategy.microbatches - flight) * sample_bytes * self.entry_elements
        if not self.is_last:
            total += (strategy.microbatches + flight) * sample_bytes * self.layers[-1].output_elements
        if training.zero == 3:
            # the layer that computes and the one that is gathered meanwhile
            total += 2 * self.size * max(layer.parameters for layer in self.layers)
        if library_of(self.scenario.cluster) == "nccl":
            communicators = int(averages) + int(self.stages > 1)
            total += communicators * self._nccl_channels() * _NCCL_CONNECTIONS * _NCCL_CONNECTION_BYTES
        return total

    def _nccl_channels(self) -> int:
        cluster = self.scenario.cluster
        facts = nccl_facts(cluster)
        ranks = self.scenario.strategy.training_ranks
        return channels(facts, -(-ranks // cluster.node.devices), cluster.node.cards_used) if facts else 0

    def _peak(self) -> dict[str, float]:
        """What comes and goes within a step, at the moment when all of it is the most."""
        moments = list(self._moments())
        return max(moments, key=lambda moment: sum(moment.values()))

    def _moments(self) -> Iterator[dict[str, float]]:
        """The fullest moments: of the first backward pass, of one that finds gradients to add to, and of the optimizer."""
        strategy, gradients = self.scenario.strategy, self.states.gradients
        flight = in_flight(strategy, self.number)
        passes = _Backward(self)
        yield passes.fullest(flight - 1, 0.0 if not strategy.servers else gradients)
        if strategy.microbatches > 1:
            yield passes.fullest(min(flight, strategy.microbatches - 1) - 1, gradients)
        working = 0.0
        if self.scenario.training.optimizer == "adam" and not _is_gpu(self.scenario) and not strategy.servers:
            # torch's step over one tensor after another makes two of its size; fused ones make none
            working = 2.0 * self.largest_bytes
        yield {"gradients": gradients, "working": working}

    @property
    def batch(self) -> tuple[Kept, ...]:
        """What the model reads, which is there throughout the step, for one sample."""
        return tuple(one for one in self.layers[0].kept if one.name == _READ) if self.number == 0 else ()


def segments(layers: Sequence[Layer], recompute: Recompute) -> NDArray[np.int64]:
    """A number for each layer, equal for those that are made again together, shape (layers,)."""
    number, counted, result = -1, 0, []
    for layer in layers:
        counted = 0 if layer.glued else counted + 1
        number += layer.glued or (counted - 1) % recompute.every == 0
        result.append(number)
    return np.array(result)


def _sums_within(values: NDArray[np.float64], segment: NDArray[np.int64]) -> NDArray[np.float64]:
    """Running sums that begin anew with each segment."""
    total = np.cumsum(values)
    before = (total - values)[np.searchsorted(segment, segment)]
    return total - before


class _Backward:
    """A stage's backward pass over one microbatch: its layers from the last to the first, bytes in arrays of shape (layers,).

    Before a layer is reached its activations and those of the layers before it are held, after it those of the layers before
    it and the gradients of its parameters. The fullest moment of it is one of the two.
    """

    def __init__(self, stage: _Stage) -> None:
        recompute, size, samples = stage.scenario.training.recompute, stage.size, stage.samples
        layers = stage.layers
        segment = segments(layers, recompute)
        first = np.diff(segment, prepend=-1) > 0
        entries = [stage.entry_elements, *(layer.output_elements for layer in layers[:-1])]
        held = [kept(layer, recompute, *rest) for layer, *rest in zip(layers, first.tolist(), entries, strict=True)]
        everything = [layer.kept for layer in layers]
        for activations in (held, everything):
            activations[0] = tuple(one for one in activations[0] if one not in stage.batch)
        self.kept = samples * np.array([float(size_bytes(activations, size)) for activations in held])
        self.logits = samples * size_bytes((one for one in held[-1] if one.name in _LOGITS), size)
        dropped = [[one for one in whole if one not in own] for whole, own in zip(everything, held, strict=True)]
        again = np.array([float(size_bytes(activations, size)) for activations in dropped])
        # what was dropped is made again for one layer, or for a segment, of which the layers already passed are done with
        self.again = samples * (_sums_within(again, segment) if recompute.kind == "full" else again)
        share = stage.states.gradients / max(1.0, stage.size * sum(layer.parameters for layer in layers))
        self.gradients = share * size * np.array([float(layer.parameters) for layer in layers])
        working, weights = np.array([_entered(layer, samples, layer is layers[-1]) for layer in layers]).T
        self.first_gradients = np.minimum(self.gradients, share * size * weights)
        self.working = size * working
        self.entry = samples * size * np.array([float(one) for one in entries])

    def fullest(self, others: float, gradients: float) -> dict[str, float]:
        """Holders at the fullest moment, with `others` microbatches waiting for their own backward pass. gradients: bytes that
        are there already, to which this pass adds; it makes them, if zero."""
        before = np.cumsum(self.kept) - self.kept
        after = np.cumsum(self.gradients[::-1])[::-1] - self.gradients
        full = others * self.kept.sum()
        activations = np.concatenate([before + self.kept, before]) + full
        again = np.concatenate([self.again, np.zeros_like(self.again)])
        working = np.concatenate([self.working, self.entry])
        if gradients:
            made = np.full(2 * len(after), gradients)
            working = working + np.concatenate([self.first_gradients, np.zeros_like(after)])
        else:
            made = np.concatenate([after + self.first_gradients, after + self.gradients])
        at = int(np.argmax(activations + again + working + made))
        # all microbatches but this one hold theirs; this one until its last layer is through
        logits = self.logits * (others + (at == len(after) - 1))
        return {
            "gradients": float(made[at]),
            "activations": float(activations[at] - logits),
            "logits": float(logits),
            "recomputed": float(again[at]),
            "working": float(working[at]),
        }


def _is_gpu(scenario: Scenario) -> bool:
    """By the device's kernels; where it has none, by its name."""
    device = scenario.cluster.device
    return device.kernels.generation not in ("cpu", "tpu") if device.kernels else facts_of(device.name) is not None


def _server(scenario: Scenario, layers: Sequence[Layer]) -> RankMemory | None:
    """A parameter server: its shard with the optimizer's states, and what every worker pushes."""
    strategy = scenario.strategy
    if strategy.servers == 0:
        return None
    held = [part / strategy.servers for part in states(layers, scenario.training)]
    own = States(*held)._asdict()
    return RankMemory("server", own | {"communication": own["gradients"] * (strategy.workers - 1)})


def _capacity_bytes(scenario: Scenario) -> float:
    """Of a device; where ranks compute on a machine's cores, a rank's part of its memory."""
    cluster, strategy = scenario.cluster, scenario.strategy
    if cluster.node.cores is None:
        return cluster.device.memory_bytes
    return cluster.device.memory_bytes / min(strategy.training_ranks, cluster.node.devices)
