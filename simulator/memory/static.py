"""Static memory of a rank, allocated throughout a step: parameters, gradients, optimizer states and communication buffers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, LEAST_NARROW_STATES, OPTIMIZER_STATES, state_bytes
from scaleproof.simulator.frameworks import MemoryBehaviour
from scaleproof.simulator.memory.inputs import Amount, MemoryInputs
from scaleproof.simulator.memory.step import UpdateBytes
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.muon import matrix_elements
from scaleproof.simulator.model.operators import Convolution, Matmul, WeightPass
from scaleproof.simulator.model.recommender.lookups import INDEX_BYTES
from scaleproof.simulator.parallelism import LocalSgd, ParameterServer
from scaleproof.simulator.parallelism.compression import PowerSgd, TopK
from scaleproof.simulator.parallelism.parameter_server import sent_tables, touched_rows
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.scenario.training import Training, has_only_master

# Bytes per element of master copies and states in mixed precision, arXiv 1910.02054, section 3.1.
MASTER_BYTES: Final = 4


class States(NamedTuple):
    """Bytes of parameters, gradients, master copies and optimizer states."""

    parameters: Amount
    gradients: Amount
    master_parameters: Amount
    optimizer_states: Amount


class StageElements(NamedTuple):
    """Sizes of a rank's part of the model in elements, if they are not named bytes.

    parameters: those with the size of trained ones; trained, experts: trained ones and those of experts among them; base_bytes:
    frozen parameters with a size of their own. states: of the optimizer. small: trained ones in tensors whose states never have
    8 bits. largest: largest trained tensor. ends_bytes: parameters of layers that are pinned to a stage end; blocks_bytes: of
    all other layers; block_bytes: of the largest one. products: one trained weight of each shape in blocks. dequantised: the
    largest weights that are dequantised. multiplied: parameters of layers with products, which autocast casts for them.
    table_bytes, host_table_bytes: of tables that are divided over workers, with states, on the device and on its host.
    """

    parameters: int
    trained: int
    experts: int
    states: float
    small: int
    largest: int
    ends_bytes: float
    blocks_bytes: float
    block_bytes: float
    products: int
    base_bytes: float = 0.0
    dequantised: int = 0
    multiplied: int = 0
    table_bytes: float = 0.0
    host_table_bytes: float = 0.0


def elements_of(runs: Iterable[tuple[Layer, int]], optimizer: str, element_bytes: int) -> StageElements:
    """Sizes of some layers, each with the number of times that it occurs. element_bytes: of a trained parameter."""
    parameters = trained = experts = largest = dequantised = small = hidden = multiplied = 0
    all_bytes = base_bytes = blocks_bytes = block_bytes = adafactor = table_bytes = host_table_bytes = 0.0
    shapes = set[tuple[int, int]]()
    for layer, times in runs:
        own_bytes = layer.parameter_bytes(element_bytes)
        parameters += times * layer.full_parameters
        all_bytes += times * own_bytes
        base_bytes += times * (layer.frozen_bytes or 0.0)
        table_bytes += times * layer.table_bytes
        host_table_bytes += times * layer.host_table_bytes
        passes = (operator.weights for operator in layer.operators if isinstance(operator, WeightPass))
        dequantised = max(dequantised, max(passes, default=0))
        is_multiplied = any(isinstance(operator, Matmul | Convolution) for operator in layer.operators)
        multiplied += times * layer.full_parameters * is_multiplied
        trained += times * layer.trained_parameters
        experts += times * layer.expert_parameters
        largest = max(largest, max(layer.tensors, default=0))
        small += times * sum(tensor for tensor in layer.tensors if tensor < LEAST_NARROW_STATES)
        if optimizer == "muon":
            hidden += times * matrix_elements(layer)
        if optimizer == "adafactor":
            # sums of rows and columns (arXiv 1804.04235); tensors are assumed square, since their shapes are unknown
            adafactor += times * sum(2 * math.sqrt(tensor) for tensor in layer.tensors)
        if not layer.pinned_to_end:
            blocks_bytes += times * own_bytes
            block_bytes = max(block_bytes, own_bytes)
            matmuls = (operator for operator in layer.operators if isinstance(operator, Matmul) and operator.weight_gradient)
            shapes |= {(product.columns, product.inner) for product in matmuls}
    states = OPTIMIZER_STATES[optimizer] * trained + adafactor + (trained - hidden if optimizer == "muon" else 0)
    in_products = sum(columns * inner for columns, inner in shapes)
    blocks = all_bytes - blocks_bytes, blocks_bytes, block_bytes
    return StageElements(
        parameters, trained, experts, states, small, largest, *blocks, in_products, base_bytes, dequantised, multiplied,
        table_bytes, host_table_bytes,
    )  # fmt: skip


def states(layers: Iterable[Layer], training: Training, replicas: int = 1) -> States:
    """Bytes of states of some layers on one of `replicas` ranks, which shard them by the ZeRO stage."""
    part = elements_of(((layer, 1) for layer in layers), training.optimizer, training.parameter_bytes)
    return states_of(part, training, training.zero, (replicas, replicas), training.parameter_bytes)


def states_of(
    part: StageElements,
    training: Training,
    zero: Amount,
    replicas: tuple[int, int],
    gradient_bytes: int,
    whole_gradients: Amount = False,
) -> States:
    """Bytes of states on one rank, sharded by the ZeRO stage (arXiv 1910.02054, section 5).

    zero: the stage, in place of that of `training`. replicas: ranks that shard states, and those of experts. gradient_bytes:
    per element. whole_gradients: whether gradients are sharded only at the end of a step.

    With ZeRO stage 3 and 32-bit gradients, the sharded and gathered parameters are the master copies (PyTorch's FSDP), with
    frozen ones unless these have a size of their own. Frozen parameters have no gradients and no optimizer states.
    """
    size = training.parameter_bytes

    def shared(elements: int, stage: int) -> Amount:
        """Elements of one rank, sharded from a stage of ZeRO on."""
        sharded = (elements - part.experts) / replicas[0] + part.experts / replicas[1]
        return np.where(zero >= stage, sharded, elements)

    only_master = has_only_master(zero, training.master, training.offload, gradient_bytes, size)
    optimizer = shared(part.trained, 1)
    parameters = shared(part.parameters, 3)
    frozen_bytes = (parameters - shared(part.trained, 3)) * MASTER_BYTES
    base_bytes = np.where(zero >= 3, part.base_bytes / replicas[0], part.base_bytes)
    each_bytes: float = max(size, MASTER_BYTES) if training.master else size
    if training.state_bits is not None:
        each_bytes = state_bytes(training.precision, training.master, training.state_bits)
    if training.state_bits == 8:
        each_bytes += (MASTER_BYTES - each_bytes) * part.small / max(1, part.trained)
    averages_bytes = 0 if training.ema is None else ELEMENT_BYTES[training.ema]
    return States(
        np.where(only_master, frozen_bytes, parameters * size) + base_bytes,
        np.where(whole_gradients, part.trained, shared(part.trained, 2)) * gradient_bytes,
        optimizer * MASTER_BYTES if training.master and size < MASTER_BYTES else 0.0,
        part.states * optimizer / max(1, part.trained) * each_bytes + optimizer * averages_bytes,
    )


class StaticMemory:
    """Memory of a rank with a part of the model that is allocated throughout a step.

    states: its states. gradients_bytes: of gradients in all precisions, which may be allocated by passes. holders_bytes: by
    holder, of all others.
    """

    def __init__(self, inputs: MemoryInputs, part: StageElements, batch_bytes: float) -> None:
        """batch_bytes: of activations per sample that are live throughout a step."""
        self.inputs, self.part = inputs, part
        self.states = states_of(
            part, inputs.training, inputs.zero, inputs.sharing, inputs.gradient_size, inputs.whole_gradients
        )
        self.gradients_bytes = inputs.gradient_copies * self.states.gradients * ~inputs.sends_gradients
        software, states, updates = inputs.software, self.states, self._updates
        mastered = states.master_parameters / MASTER_BYTES if updates else 0.0
        self.holders_bytes = {
            "parameters": part.table_bytes + (0.0 if "parameters" in inputs.training.offload else states.parameters),
            "gradients": software.flat_bytes * mastered * self._flattens,
            "master_parameters": software.master_bytes * mastered,
            "optimizer_states": states.optimizer_states if updates else 0.0,
            "activations": inputs.samples_per_worker * batch_bytes,
            "working": self._separate_gradients_bytes + self._cast_bytes + inputs.size * self.part.dequantised,
            "communication": self._bucket_bytes + self._gathered_bytes + self._outer_optimizer_bytes,
        }

    @property
    def host_bytes(self) -> Amount:
        """Bytes of states and gradients that are offloaded to host memory, or to drives."""
        offload, states = self.inputs.training.offload, self.states
        host = states.gradients * self.inputs.sends_gradients + self.part.host_table_bytes
        if "optimizer" in offload:
            host = host + states.master_parameters + states.optimizer_states
        return host + (states.parameters if "parameters" in offload else 0.0)

    def update_bytes(self, received: Amount = 0.0) -> UpdateBytes:
        """Bytes of tensors of the optimizer's step: received gradients, 32-bit copies of gradients, unless they exist already,
        and temporaries.

        torch's Adam, unless it is fused, allocates two temporaries of the size of a tensor, for one tensor after another.
        """
        inputs, main = self.inputs, self._copies and self.inputs.software.main_gradients
        unfused = inputs.training.optimizer == "adam" and not inputs.is_gpu and not inputs.servers
        working = 2.0 * inputs.parameter_size * self.part.largest if unfused else 0.0
        copied = self.states.master_parameters * (1 - self._flattens) if main else 0.0
        return UpdateBytes((received,), (copied,), (working,))

    @property
    def _separate_gradients_bytes(self) -> float:
        """Bytes of stand-ins for gradients that are in buffers already, and of one gradient in the precision of the buffers."""
        inputs = self.inputs
        stand_ins = inputs.parameter_size * self.part.products if inputs.software.stand_ins else 0.0
        return stand_ins + (inputs.gradient_size * self.part.largest if inputs.has_both else 0.0)

    @property
    def _cast_bytes(self) -> float:
        """Bytes of the copies of parameters in the precision of activations, which autocast keeps until the backward pass."""
        inputs = self.inputs
        return inputs.size * self.part.multiplied if inputs.size < inputs.parameter_size else 0.0

    @property
    def _updates(self) -> bool:
        """Whether the rank's device updates parameters."""
        return "optimizer" not in self.inputs.training.offload and self.inputs.servers == 0

    @property
    def _copies(self) -> bool:
        """Whether gradients have fewer bits than the optimizer uses, so that it copies them."""
        size = self.inputs.parameter_size
        is_wider = self.inputs.training.master and size < MASTER_BYTES
        return self._updates and is_wider and self.inputs.gradient_size == size

    @property
    def _flattens(self) -> Amount:
        """1 where copies of gradients are flat tensors that stay allocated, else 0."""
        return (self._copies and self.inputs.software.flat_bytes > 0) * np.minimum(1, self.inputs.zero)

    @property
    def _bucket_bytes(self) -> Amount:
        """Bytes of gradient buckets. With ZeRO stage 2, one bucket is filled while another is being reduce-scattered.

        Strategies that exchange something else have a flat copy of it (torch.distributed.algorithms.model_averaging).
        """
        inputs, parameters = self.inputs, self.part.trained
        zero, software = inputs.zero, inputs.software
        if inputs.servers:
            return numbers_bytes(inputs)
        if not isinstance(inputs.strategy, ReplicaStrategy):
            return inputs.plan.averages * self.states.gradients
        whole = parameters * inputs.reduced_size
        two, copied = np.minimum(2 * inputs.bucket_bytes, whole), 0.0
        if software.narrow_buckets:
            copied = parameters * inputs.parameter_size * (zero == 0) * software.copies_buckets
        elif software.copies_buckets:
            copied = whole
        elif inputs.reduced_size != inputs.gradient_size:
            # gradients are reduced as a copy in another precision
            copied = two if inputs.plan.overlap else whole
        if not software.reduce_elements:
            return inputs.plan.averages * np.where(zero == 2, two, copied * (zero < 2))
        # DeepSpeed's are allocated whole, on one device too; one is filled while the other is reduced with stage 2
        reducing = software.reduce_elements * inputs.size * (np.minimum(1, zero) + (zero == 2) * inputs.plan.overlap)
        return inputs.plan.averages * copied * (zero < 2) + reducing

    @property
    def _gathered_bytes(self) -> Amount:
        """Bytes of parameters that ZeRO stage 3 all-gathers: of layers at stage ends, for the whole pass; of the layer that
        computes and those that are prefetched; or of all layers, if they are not resharded after the forward pass."""
        inputs, part, plan = self.inputs, self.part, self.inputs.plan
        frees = plan.gathering(3) == "every pass"
        ahead_bytes = min(part.blocks_bytes, (1 + plan.prefetch) * part.block_bytes) if frees else part.blocks_bytes
        return inputs.gathers * (part.ends_bytes + ahead_bytes)

    @property
    def _outer_optimizer_bytes(self) -> float:
        """Bytes of DiLoCo's outer optimizer: parameters at the beginning of a period and their momentum, in 32 bits."""
        inputs, strategy = self.inputs, self.inputs.strategy
        outer = isinstance(strategy, LocalSgd) and strategy.outer == "nesterov"
        return 2.0 * max(MASTER_BYTES, inputs.parameter_size) * self.part.trained if outer else 0.0


def numbers_bytes(inputs: MemoryInputs) -> float:
    """Bytes of the numbers of the rows that a worker pulls from servers for a step."""
    strategy, job = inputs.strategy, inputs.job
    if not isinstance(strategy, ParameterServer):
        return 0.0
    tables = sent_tables(job.layers, strategy.sparse)
    return INDEX_BYTES * sum(touched_rows(table, strategy.sparse, job.samples_per_worker) for table in tables)


def pipeline_bytes(
    software: MemoryBehaviour,
    microbatches: Amount,
    flight: Amount,
    entry_bytes: Amount,
    output_bytes: Amount,
) -> Amount:
    """Bytes of boundary activations and their gradients between stages. flight: maximum of microbatches in flight.

    torch.distributed.pipelining has buffers for the inputs of all microbatches, of which those in flight count as activations,
    and for the gradients of all outputs; Megatron-LM only for the next ones.
    """
    received = (microbatches - flight) * entry_bytes if software.receives_all else entry_bytes
    sent = microbatches * output_bytes if software.receives_all else output_bytes
    return received + sent + (flight * output_bytes if software.keeps_outputs else 0.0)


def compressed_bytes(inputs: MemoryInputs, layers: Sequence[Layer]) -> float:
    """Bytes of gradient compression: the residual for the next step, one element per parameter, and messages."""
    plan, size = inputs.plan, inputs.reduced_size
    if plan.compression is None or plan.workers == 1:
        return 0.0
    tensors = [tensor for layer in layers for tensor in layer.tensors]
    left = sum(tensors) * size if isinstance(plan.compression, PowerSgd | TopK) else 0
    return left + sum(wire.collective_bytes(plan.workers) for wire in plan.compression.wire(tensors, size))
