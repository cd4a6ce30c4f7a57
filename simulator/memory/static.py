"""Static memory of a rank, allocated throughout a step: parameters, gradients, optimizer states and communication buffers.

Arrays represent many ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from scaleproof.simulator.frameworks import MemoryBehaviour
from scaleproof.simulator.memory.inputs import Amount, MemoryInputs
from scaleproof.simulator.memory.result import TEMPORARY
from scaleproof.simulator.memory.step import UpdateBytes
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul
from scaleproof.simulator.parallelism import LocalSgd
from scaleproof.simulator.parallelism.compression import PowerSgd, TopK
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.scenario.training import Training

# Elements per parameter that an optimizer keeps: none, a velocity, or two moments. Adafactor is counted by tensor.
_STATES: Final = {"sgd": 0, "momentum": 1, "adam": 2, "lamb": 2}
# Bytes per element of master copies and states in mixed precision, arXiv 1910.02054, section 3.1.
MASTER_BYTES: Final = 4


class States(NamedTuple):
    """Bytes of parameters, gradients, master copies and optimizer states."""

    parameters: float
    gradients: float
    master_parameters: float
    optimizer_states: float


class StateSizes(NamedTuple):
    """Elements of parameters, of trained ones and experts among them, and of optimizer states; arrays represent many ranks."""

    parameters: Amount
    trained: Amount
    experts: Amount
    states: Amount


def sizes(layers: Sequence[Layer], optimizer: str) -> StateSizes:
    """Elements of parameters, of trained ones and of experts among them, and of optimizer states of some layers."""
    trained = sum(layer.trained_parameters for layer in layers)
    # Adafactor keeps sums of rows and columns (arXiv 1804.04235); tensors are assumed square, since their shapes are unknown
    if optimizer == "adafactor":
        elements = sum(2 * math.sqrt(tensor) for layer in layers for tensor in layer.tensors)
    else:
        elements = _STATES[optimizer] * trained
    parameters, experts = (
        sum(count) for count in zip(*((one.parameters, one.expert_parameters) for one in layers), strict=True)
    )
    return StateSizes(parameters, trained, experts, elements)


def states(
    layers: Sequence[Layer],
    training: Training,
    replicas: int = 1,
    expert_replicas: int | None = None,
    gradient_bytes: int | None = None,
    whole_gradients: bool = False,
) -> States:
    """Bytes of states of some layers on one of `replicas` ranks, which shard them by the ZeRO stage (arXiv 1910.02054, section
    5).

    expert_replicas: ranks that shard the states of experts; `replicas` if None. gradient_bytes: per element; by the training
    precision if None. whole_gradients: whether gradients are sharded only at the end of a step.
    """
    counts = replicas, expert_replicas or replicas
    return states_of(sizes(layers, training.optimizer), training, *counts, gradient_bytes, whole_gradients)


def states_of(
    own: StateSizes, training: Training, replicas: Amount, expert_replicas: Amount, gradient_bytes: int | None = None,
    whole_gradients: bool = False,
) -> States:  # fmt: skip
    """Bytes of states from sizes; arguments: see `states`. With ZeRO stage 3 and 32-bit gradients, the sharded and gathered
    parameters are the master copies (PyTorch's FSDP), and there are no others. Frozen parameters have no gradients, no master
    copies and no optimizer states."""
    size = training.parameter_bytes
    gradient_size = gradient_bytes or size

    def shared(elements: Amount, stage: int) -> Amount:
        """Elements of one rank, sharded from a stage of ZeRO on."""
        is_sharded = training.zero >= stage
        return (elements - own.experts) / replicas + own.experts / expert_replicas if is_sharded else elements

    only_master = training.master and training.zero == 3 and gradient_size > size
    optimizer = shared(own.trained, 1)
    parameters = shared(own.parameters, 3)
    return States(
        (parameters - shared(own.trained, 3)) * MASTER_BYTES if only_master else parameters * size,
        (own.trained if whole_gradients else shared(own.trained, 2)) * gradient_size,
        optimizer * MASTER_BYTES if training.master and size < MASTER_BYTES else 0.0,
        own.states * optimizer / np.maximum(1, own.trained) * (max(size, MASTER_BYTES) if training.master else size),
    )


class StageElements(NamedTuple):
    """Sizes of a rank's part of the model in elements; arrays represent many ranks.

    largest: largest trained tensor. ends: parameters of layers that are pinned to a stage end; blocks: of all other layers;
    block: of the largest of these. products: one trained weight of each shape in blocks. batch_bytes: per sample, live
    throughout a step.
    """

    sizes: StateSizes
    largest: Amount
    ends: Amount
    blocks: Amount
    block: Amount
    products: Amount
    batch_bytes: Amount

    def each(self, change: Callable[[Amount], Amount]) -> StageElements:
        """A copy with `change` applied to each number."""
        return StageElements(StateSizes(*map(change, self.sizes)), *map(change, self[1:]))


def part_of(layers: Sequence[Layer], training: Training, batch_bytes: float = 0.0) -> StageElements:
    """Sizes of some layers of a model. batch_bytes: per sample, live throughout a step."""
    blocks = [layer.parameters for layer in layers if not layer.pinned_to_end]
    distinct = {id(layer.operators): layer.operators for layer in layers if not layer.pinned_to_end}
    operators = (operator for operators in distinct.values() for operator in operators)
    products = (operator for operator in operators if isinstance(operator, Matmul) and operator.weight_gradient)
    own = sizes(layers, training.optimizer)
    return StageElements(
        own,
        max((max(layer.tensors, default=0) for layer in layers), default=0),
        own.parameters - sum(blocks),
        sum(blocks),
        max(blocks, default=0),
        sum(columns * inner for columns, inner in {(product.columns, product.inner) for product in products}),
        batch_bytes,
    )


def together(chunks: StageElements, products: Amount) -> StageElements:
    """Sizes of ranks from those of their chunks, which are in the last axis. products: of the ranks."""
    part = chunks.each(lambda numbers: numbers.sum(axis=-1))
    return part._replace(largest=chunks.largest.max(axis=-1), block=chunks.block.max(axis=-1), products=products)


class StaticMemory:
    """Memory of a rank with a part of the model that is allocated throughout a step. states: its states."""

    def __init__(self, setting: MemoryInputs, part: StageElements) -> None:
        self.setting, self.part = setting, part
        self.states = states_of(part.sizes, setting.training, *setting.sharing, setting.gradient_size, setting.whole_gradients)

    def holders_bytes(self) -> dict[str, float]:
        """Bytes by holder that are constant throughout a step."""
        setting, software, states = self.setting, self.setting.software, self.states
        updates = self._updates
        mastered = states.master_parameters / MASTER_BYTES if updates else 0.0
        return {
            "parameters": 0.0 if "parameters" in setting.training.offload else states.parameters,
            "gradients": software.flat_bytes * mastered if self._flattens else 0.0,
            "master_parameters": software.master_bytes * mastered,
            "optimizer_states": states.optimizer_states if updates else 0.0,
            "activations": setting.samples_per_worker * self.part.batch_bytes,
            "working": self._separate_gradients_bytes + self._cast_bytes,
            "communication": self._bucket_bytes + self._gathered_bytes + self._outer_optimizer_bytes,
        }

    def reserved_bytes(self) -> float:
        """Total bytes, with fragmentation."""
        holders = self.holders_bytes()
        return sum(holders.values()) + self.setting.fragmentation * sum(holders.get(name, 0.0) for name in TEMPORARY)

    @property
    def host_bytes(self) -> float:
        """Bytes of states that are offloaded to host memory."""
        offload, states = self.setting.training.offload, self.states
        host = states.master_parameters + states.optimizer_states if "optimizer" in offload else 0.0
        return host + (states.parameters if "parameters" in offload else 0.0)

    def update_bytes(self, received: Amount = 0.0) -> UpdateBytes:
        """Bytes of tensors of the optimizer's step: received gradients, 32-bit copies of gradients, unless they exist already,
        and temporaries.

        torch's Adam, unless it is fused, allocates two temporaries of the size of a tensor, for one tensor after another.
        """
        setting, main = self.setting, self._copies and self.setting.software.main_gradients and not self._flattens
        unfused = setting.training.optimizer == "adam" and not setting.is_gpu and not setting.servers
        working = 2.0 * setting.parameter_size * self.part.largest if unfused else 0.0
        return UpdateBytes((received,), (self.states.master_parameters if main else 0.0,), (working,))

    @property
    def _separate_gradients_bytes(self) -> float:
        """Bytes of stand-ins for gradients that are in buffers already, and of one gradient in the precision of the buffers."""
        setting = self.setting
        stand_ins = setting.parameter_size * self.part.products if setting.software.stand_ins else 0.0
        return stand_ins + (setting.gradient_size * self.part.largest if setting.has_both else 0.0)

    @property
    def _cast_bytes(self) -> Amount:
        """Bytes of the copies of parameters in the precision of activations, which autocast keeps until the backward pass."""
        setting = self.setting
        return setting.size * self.part.sizes.parameters if setting.size < setting.parameter_size else 0.0

    @property
    def _updates(self) -> bool:
        """Whether the rank's device updates parameters."""
        return "optimizer" not in self.setting.training.offload and self.setting.servers == 0

    @property
    def _copies(self) -> bool:
        """Whether gradients have fewer bits than the optimizer uses, so that it copies them."""
        size = self.setting.parameter_size
        is_wider = self.setting.training.master and size < MASTER_BYTES
        return self._updates and is_wider and self.setting.gradient_size == size

    @property
    def _flattens(self) -> bool:
        """Whether copies of gradients are flat tensors that stay allocated."""
        return self._copies and self.setting.training.zero > 0 and self.setting.software.flat_bytes > 0

    @property
    def _bucket_bytes(self) -> Amount:
        """Bytes of gradient buckets. With ZeRO stage 2, one bucket is filled while another is being reduce-scattered.

        Strategies that exchange something else have a flat copy of it (torch.distributed.algorithms.model_averaging).
        """
        setting, parameters = self.setting, self.part.sizes.trained
        zero, software = setting.training.zero, setting.software
        if setting.servers:
            return 0.0
        if not isinstance(setting.strategy, ReplicaStrategy):
            return setting.averages * self.states.gradients
        whole, two = parameters * setting.reduced_size, np.minimum(2 * setting.bucket_bytes, parameters * setting.reduced_size)
        buckets: Any = 0.0
        if zero == 2:
            buckets = two
        elif software.narrow_buckets:
            buckets = parameters * setting.parameter_size if zero == 0 and software.copies_buckets else 0.0
        elif zero < 2 and software.copies_buckets:
            buckets = whole
        elif zero < 2 and setting.reduced_size != setting.gradient_size:
            # gradients are reduced as a copy in another precision
            buckets = two if setting.plan.overlap else whole
        return setting.averages * (
            buckets + (np.minimum(software.reduce_elements, parameters) * setting.parameter_size if zero else 0.0)
        )

    @property
    def _gathered_bytes(self) -> Amount:
        """Bytes of parameters that ZeRO stage 3 all-gathers: of layers at stage ends, for the whole pass; of the layer that
        computes and those that are prefetched; or of all layers, if they are not resharded after the forward pass."""
        setting, part, plan = self.setting, self.part, self.setting.plan
        ahead = np.minimum(part.blocks, (1 + plan.prefetch) * part.block) if plan.reshard else part.blocks
        return setting.gathers * setting.parameter_size * (part.ends + ahead)

    @property
    def _outer_optimizer_bytes(self) -> Amount:
        """Bytes of DiLoCo's outer optimizer: parameters at the beginning of a period and their momentum, in 32 bits."""
        setting, strategy = self.setting, self.setting.strategy
        outer = isinstance(strategy, LocalSgd) and strategy.outer == "nesterov"
        return 2.0 * max(MASTER_BYTES, setting.parameter_size) * self.part.sizes.trained if outer else 0.0


def pipeline_bytes(
    software: MemoryBehaviour,
    microbatches: Amount,
    flight: Amount,
    entry_bytes: Amount,
    output_bytes: Amount,
    chunks: Amount = 1,
) -> Amount:
    """Bytes of boundary activations and their gradients between stages. flight: maximum of microbatches in flight.

    torch.distributed.pipelining has buffers for the inputs of all microbatches, of which those in flight count as activations,
    and for the gradients of all outputs; Megatron-LM only for the next ones.
    """
    total = chunks * microbatches
    received = (total - flight) * entry_bytes if software.receives_all else chunks * entry_bytes
    sent = total * output_bytes if software.receives_all else chunks * output_bytes
    return received + sent + (flight * output_bytes if software.keeps_outputs else 0.0)


def compressed_bytes(setting: MemoryInputs, layers: Sequence[Layer]) -> float:
    """Bytes of gradient compression: the residual for the next step, one element per parameter, and messages."""
    plan, size = setting.plan, setting.reduced_size
    if plan.compression is None or plan.workers == 1:
        return 0.0
    tensors = [tensor for layer in layers for tensor in layer.tensors]
    left = sum(tensors) * size if isinstance(plan.compression, PowerSgd | TopK) else 0
    return left + sum(wire.collective_bytes(plan.workers) for wire in plan.compression.wire(tensors, size))
