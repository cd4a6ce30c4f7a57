"""Execution: seconds of layers and of the optimizer's step on one device, as a framework runs them.

A device says how long kernels take. A framework decides which kernels there are: what it does not fuse, what it copies, what
the host spends on launching them, and in which precision products run. A device that was measured, or that is described by one
efficiency, already contains its software, and is used as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from scaleproof.simulator.cluster.device.device import (
    CLIP_BYTES,
    ELEMENT_BYTES,
    Device,
    Optimizer,
    Precision,
    StateBits,
    is_narrow,
    optimizer_bytes,
    storage_precision,
)
from scaleproof.simulator.cluster.device.kernels.attention import USUAL_ATTENTION
from scaleproof.simulator.cluster.device.kernels.parameters import Kernels, Speed
from scaleproof.simulator.cluster.device.kernels.passes import kernel_count, passes_s, weights_s
from scaleproof.simulator.cluster.device.kernels.products import Recipe, narrow_products
from scaleproof.simulator.frameworks.framework import Framework, PerPass, RingAttention, ScorePass
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import (
    Attention,
    Convolution,
    Matmul,
    Operator,
    SavedActivation,
    Scan,
    is_added,
)
from scaleproof.simulator.model.recompute import Recompute, again

# Order of the norm that combines the bounds of the host and of the device. Within a layer, kernels bound by the host alternate
# with kernels bound by the device; a rounded assumption.
_SHARPNESS: Final = 4
# Key of `extra_bytes` for dropout outside of attention, and the names of dropout's masks, whose elements are counted.
_DROPOUT: Final = "dropout"
_DROPOUT_MASK: Final = "dropout mask"
_ATTENTION_MASK: Final = "attention mask"
# Operators that only the ends of a language model have.
_ENDS: Final = frozenset({"embedding", "head", "loss"})


Value = TypeVar("Value")

# Numbers that an execution keeps.
_MOST_KNOWN: Final = 5_000


class TrainingWork(NamedTuple):
    """Training parameters that determine kernels and host work.

    recipe: scaling of products in 8 or 4 bits. pipelined_ranks: tensor-parallel ranks of each stage of a pipeline over several
    nodes; 0 without such a pipeline. splits_backward: whether gradients of weights are a pass of their own. autocast: whether
    training in 16 bits keeps parameters, norms and sums in 32. master: whether optimizers update master weights in 32 bits.
    state_bits, ema: bits of states, and precision of an average of parameters, see `optimizer_bytes`. clips: whether gradients
    are clipped by their norm; as the framework does it if None. zero: stage of ZeRO. in_pieces: whether tensor-parallel
    collectives move pieces of what products next to them read and write.
    """

    precision: Precision
    optimizer: Optimizer
    recompute: Recompute
    recipe: Recipe = "delayed"
    pipelined_ranks: int = 0
    splits_backward: bool = False
    autocast: bool = False
    master: bool = True
    state_bits: StateBits | None = None
    ema: Precision | None = None
    clips: bool | None = None
    zero: int = 0
    in_pieces: bool = False


class Execution:
    """A device as a framework drives it, for one way to train."""

    def __init__(self, device: Device, framework: Framework, work: TrainingWork) -> None:
        self.device, self.framework, self.work = device, framework, work
        self._known: dict[Hashable, tuple[Layer, Any]] = {}
        self.precision = storage_precision(work.precision)
        kernels = device.kernels
        self.is_described = (
            kernels is not None and kernels.serial is None and kernels.generation != "cpu" and device.efficiency is None
        )
        if self.is_described:
            assert kernels is not None
            self._kernels = framework_kernels(kernels, framework.flash(kernels.generation))
            self._reached_Bps = device.memory_bandwidth_Bps * kernels.memory_share
            self._transposes_images = framework.transposes_images(kernels.generation, self.precision)

    def once(self, method: Callable[..., Value], layer: Layer, *arguments: Hashable) -> Value:
        """Value of a method of this class for a layer, computed once for each layer object and further arguments."""
        # the layer is kept too, so that no other gets the same id
        key = method, id(layer), arguments
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = layer, method(self, layer, *arguments)
        value: Value = self._known[key][1]
        return value

    def each(self, method: Callable[..., Value], layers: Sequence[Layer], *arguments: Hashable) -> list[Value]:
        """Values of a method of this class for several layers; see `once`."""
        return [self.once(method, layer, *arguments) for layer in layers]

    def layer_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds of the forward and the backward pass over `samples` samples, without recomputation."""
        measured = self.device.measured_layer_s(layer, samples, self.work.precision)
        if measured is not None:
            return measured
        if not self.is_described:
            forward_s, backward_s = self.device.layer_s(layer, samples, self.work.precision)
            return self.framework.kernel_scale * forward_s, self.framework.kernel_scale * backward_s
        forward_s, backward_s = self._kernels_s(layer, samples)
        forward_host_s, backward_host_s = self._host_s(layer, samples)
        # half of the additional time per microbatch belongs to the first layer, half to the last
        ends_s = self.framework.host.microbatch_s / 2 if _ENDS & {operator.name for operator in layer.operators} else 0.0
        passed_s = self._passed_s(backward_s, backward_host_s)
        if self.work.splits_backward:
            passed_s = sum(self._parts_of_backward_s(layer, samples))
        return self._passed_s(forward_s, forward_host_s) + ends_s, passed_s

    def _factor(self, layer: Layer, samples: float) -> float:
        """The framework's factor on times of a layer by a device without described kernels; 1 where they were measured."""
        measured = self.device.measured_layer_s(layer, samples, self.work.precision)
        return self.framework.kernel_scale if measured is None else 1.0

    def least_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds that a layer's forward and backward pass take at least, collectives included: those of the host, which waits
        in pipelines over nodes for the other tensor-parallel ranks of its stage."""
        rank_s = self.framework.pipeline_waits.rank_s * self.work.pipelined_ranks
        if not (self.is_described and rank_s):
            return 0.0, 0.0
        (forward_s, backward_s), (forward, backward) = self._host_s(layer, samples), _collectives(layer)
        return forward_s + rank_s * forward, backward_s + rank_s * backward

    def again_s(self, layer: Layer, samples: float) -> float:
        """Seconds by which recomputation makes the backward pass longer."""
        recompute, device = self.work.recompute, self.device
        if device.measured_layer_s(layer, samples, self.work.precision) is not None or not self.is_described:
            if recompute.kind == "full":
                return self.layer_s(layer, samples)[0]
            operators = again(layer, recompute).operators
            return self._factor(layer, samples) * device.share_s(layer, operators, samples, self.work.precision)
        forward_s, backward_s = self._kernels_s(layer, samples)
        (forward_host_s, backward_host_s), more = self._host_s(layer, samples), self.framework.host.checkpoint
        alone_s = self._passed_s(backward_s, backward_host_s)
        if recompute.kind == "full":
            # the host issues recomputation while the device is still busy with earlier kernels
            more_s = (more.forward + more.backward) * self._kernel_host_s
            return self._passed_s(forward_s + backward_s, forward_host_s + backward_host_s + more_s) - alone_s
        return self._passed_s(backward_s + self._selectively_s(layer, samples), backward_host_s) - alone_s

    def weights_s(self, layer: Layer, samples: float) -> float:
        """Seconds of the backward pass that are weight gradients, on which no other layer waits."""
        if not self.is_described:
            return self._factor(layer, samples) * self.device.weights_s(layer, samples, self.precision)
        inputs_s, weight_gradients_s = self._parts_of_backward_s(layer, samples)
        measured = self.device.measured_layer_s(layer, samples, self.work.precision)
        if measured is None or not weight_gradients_s:
            return weight_gradients_s
        return measured[1] * weight_gradients_s / (inputs_s + weight_gradients_s)

    def _parts_of_backward_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds of the backward pass up to the gradients of inputs, and of the gradients of weights, as separate passes: each
        waits for the host that launches its kernels, or for the device."""
        kernels_s, host_s = self._kernels_s(layer, samples)[1], self._host_s(layer, samples)[1]
        speed = self._narrow_speed if is_narrow(self.work.precision) and not layer.pinned_to_end else self._speed()
        weight_kernels_s = min(kernels_s, self.framework.kernel_scale * weights_s(speed, layer.operators, samples))
        _, launched = kernel_count(layer.operators)
        weighted = sum(isinstance(o, Matmul | Convolution) and not _missing_gradients(o) for o in layer.operators)
        weight_host_s = host_s * weighted / launched if launched else 0.0
        inputs_s = self._passed_s(kernels_s - weight_kernels_s, host_s - weight_host_s)
        return inputs_s, self._passed_s(weight_kernels_s, weight_host_s)

    def bucketing_s(self, layer: Layer, samples: float, gradient_bytes: int) -> float:
        """Seconds by which copies of gradients into buckets and out of them make a layer's backward pass longer.
        gradient_bytes: of an element."""
        buckets = self.framework.buckets
        measured = self.device.measured_layer_s(layer, samples, self.work.precision)
        if not self.is_described or measured is not None or not buckets.accesses:
            return 0.0
        kernels_s, host_s = self._kernels_s(layer, samples)[1], self._host_s(layer, samples)[1]
        moved_s = buckets.accesses * gradient_bytes * layer.trained_parameters / self._reached_Bps
        launched_s = buckets.kernels * len(layer.tensors) * self._kernel_host_s
        longer_s = self._passed_s(kernels_s + self.framework.kernel_scale * moved_s, host_s + launched_s)
        return longer_s - self._passed_s(kernels_s, host_s)

    def operators_s(self, layer: Layer, operators: Sequence[Operator], samples: float) -> tuple[float, float]:
        """Seconds of some of a layer's operators in the forward and the backward pass, without host time and copies."""
        if not self.is_described:
            forward_s, backward_s = self.device.operators_s(layer, operators, samples, self.precision)
            return self._factor(layer, samples) * forward_s, self._factor(layer, samples) * backward_s
        return self._operators_s(operators, samples)

    def optimizer_s(self, parameters: float) -> float:
        """Seconds of the optimizer's step over `parameters` parameters: measured, else bound by memory bandwidth."""
        work, device = self.work, self.device
        states = work.master, work.state_bits, work.ema
        measured = device.measured_optimizer_s(parameters, work.optimizer, self.precision)
        if measured is not None and states == (True, None, None):
            return measured
        reached_Bps = self._reached_Bps if self.is_described else device.memory_bandwidth_Bps
        return self.framework.kernel_scale * self.optimizer_bytes * parameters / reached_Bps

    @functools.cached_property
    def optimizer_bytes(self) -> float:
        """Bytes per parameter that the optimizer's step reads and writes."""
        work = self.work
        states = work.master, work.state_bits, work.ema
        if not self.is_described:
            return optimizer_bytes(1.0, work.optimizer, self.precision, *states) + CLIP_BYTES * bool(work.clips)
        own_bytes, usual_bytes = (
            optimizer_bytes(1.0, work.optimizer, self.precision, master) for master in (work.master, True)
        )
        added_bytes = self.framework.optimizer_bytes
        if work.clips is not None:
            added_bytes += CLIP_BYTES * work.clips - self.framework.clip_bytes
        # what the framework moves in addition has as many bits as parameters have for the optimizer
        return optimizer_bytes(1.0, work.optimizer, self.precision, *states) + added_bytes * own_bytes / usual_bytes

    @property
    def host_optimizer_bytes(self) -> float:
        """Bytes per parameter that the optimizer's step on a host reads and writes, at the rate of one that moves each number
        once."""
        work = self.work
        each_bytes = optimizer_bytes(1.0, work.optimizer, self.precision, work.master, work.state_bits, work.ema)
        return max(self.optimizer_bytes, self.framework.host_slowdown * each_bytes)

    def memory_share(self, layer: Layer, samples: float) -> float:
        """Share of a layer's kernel time that memory bandwidth bounds: all but products and attention."""
        if not self.is_described:
            return 0.0
        forward_s, backward_s = self._kernels_s(layer, samples)
        busy = [o for o in layer.operators if isinstance(o, Matmul | Attention | Scan)]
        products_s = sum(self._operators_s(busy, samples)) if busy else 0.0
        total_s = forward_s + backward_s
        return max(0.0, 1 - products_s / total_s) if total_s else 0.0

    def _kernels_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds of a layer's kernels in both passes, host time not included."""
        framework = self.framework
        forward_s, backward_s = passes_s(self._speed(), layer.operators, layer.kept, samples)
        if is_narrow(self.work.precision) and not layer.pinned_to_end:
            saved = self._saved_by_few_bits_s(layer, samples)
            forward_s, backward_s = forward_s - saved[0], backward_s - saved[1]
        copies = framework.parameter_bytes
        if self.work.autocast:
            copies = copies + framework.autocast.parameter_bytes
        dropout, dropped = framework.extra_bytes.get(_DROPOUT, PerPass()), _elements(layer.kept, _DROPOUT_MASK) * samples
        # frozen parameters with a size of their own are copied, but not cast
        copied = framework.parameter_bytes.forward * (layer.frozen_bytes or 0.0) / ELEMENT_BYTES[self.precision]
        forward_bytes = copies.forward * layer.full_parameters + copied + dropout.forward * dropped
        backward_bytes = copies.backward * layer.trained_parameters + dropout.backward * dropped
        for operator in layer.operators:
            extra_forward_bytes, extra_backward_bytes = self._extra_bytes(operator, layer.kept, samples)
            forward_bytes += extra_forward_bytes
            if extra_backward_bytes and operator.has_backward:
                backward_bytes += extra_backward_bytes
        sequence_bytes = framework.sequence_accesses * ELEMENT_BYTES[self.precision] * samples * (not self.work.in_pieces)
        gathered = [one for one in layer.exchanges if one.axis != "context" and one.op in ("all_gather", "reduce_scatter")]
        forward_bytes += sequence_bytes * sum(one.elements for one in gathered if not one.backward)
        backward_bytes += sequence_bytes * sum(one.elements for one in gathered if one.backward)
        scale, reached_Bps = framework.kernel_scale, self._reached_Bps
        return scale * (forward_s + forward_bytes / reached_Bps), scale * (backward_s + backward_bytes / reached_Bps)

    def _operators_s(self, operators: Sequence[Operator], samples: float) -> tuple[float, float]:
        return passes_s(self._speed(), tuple(operators), (), samples)

    def _speed(self) -> Speed:
        return self.device.speed(self.precision, self._kernels)._replace(pads=self.framework.pads_products)

    @functools.cached_property
    def _narrow_speed(self) -> Speed:
        speed = self.device.narrow_speed(self.work.precision, self._kernels, self.work.recipe)
        return speed._replace(pads=self.framework.pads_products)

    def _extra_bytes(self, operator: Operator, kept: Sequence[SavedActivation], samples: float) -> tuple[float, float]:
        """Bytes that an operator moves in both passes in addition to what the model counts."""
        tables = [self.framework.extra_bytes, *([self.framework.autocast.extra_bytes] if self.work.autocast else [])]
        forward_bytes, backward_bytes = 0.0, 0.0
        if extra := [table[operator.name] for table in tables if operator.name in table]:
            written = operator.written * samples
            forward_bytes = sum(one.forward for one in extra) * written
            backward_bytes = sum(one.backward for one in extra) * written
        if isinstance(operator, Convolution) and self._transposes_images and operator.groups == 1:
            # tensor cores read the channels of a position together: a kernel reads and writes each of the two tensors that a
            # product reads or writes
            both = 2 * (operator.input_elements + operator.positions * operator.outputs) * samples
            both_bytes = both * ELEMENT_BYTES[self.precision]
            return forward_bytes + both_bytes, backward_bytes + len(operator.backward(1)) * both_bytes
        if isinstance(operator, Attention):
            scores = self._score_passes(operator, samples).extra_bytes(_elements(kept, _ATTENTION_MASK) * samples)
            pieces = _piece_bytes(self.framework.ring, operator, samples)
            return forward_bytes + scores[0] + pieces.forward, backward_bytes + scores[1] + pieces.backward
        return forward_bytes, backward_bytes

    def _score_passes(self, operator: Attention, samples: float) -> ScorePasses:
        return ScorePasses(self.framework, operator, samples, self.precision, self.work.autocast)

    def _saved_by_few_bits_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds by which products in 8 or 4 bits shorten both passes, less the casts of what they read."""
        products = tuple(o for o in layer.operators if isinstance(o, Matmul))
        recipes = narrow_products()
        slow = self._operators_s(products, samples)
        fast = passes_s(self._narrow_speed, products, (), samples)
        read = sum(o.count * (o.rows * samples + o.columns) * o.inner for o in products)
        written = sum(o.written for o in products if o.has_backward) * samples
        cast_bytes = recipes.cast_bytes[self.work.recipe]
        cast_forward_s, cast_backward_s = (cast_bytes * elements / self._reached_Bps for elements in (read, written))
        return slow[0] - fast[0] - cast_forward_s, slow[1] - fast[1] - cast_backward_s

    def _selectively_s(self, layer: Layer, samples: float) -> float:
        """Seconds of the kernels that selective recomputation repeats."""
        operators = again(layer, self.work.recompute).operators
        kept = layer.kept if any(isinstance(o, Attention) for o in operators) else ()
        total_s, _ = passes_s(self._speed(), operators, kept, samples) if operators else (0.0, 0.0)
        for operator in operators:
            total_s += self._extra_bytes(operator, kept, samples)[0] / self._reached_Bps
        return total_s * self.framework.kernel_scale

    @property
    def _host_factor(self) -> float:
        """Factor on the framework's times of the host."""
        return self.framework.host_scale * self._kernels.host_slowdown

    @property
    def _kernel_host_s(self) -> float:
        """Seconds of host time per kernel launch."""
        return self._host_factor * self.framework.host.kernel_s

    def _host_s(self, layer: Layer, samples: float) -> tuple[float, float]:
        """Seconds of host time in both passes."""
        kernels = self._launches(layer)
        for operator in layer.operators:
            if isinstance(operator, Attention):
                forward, backward = self._score_passes(operator, samples).extra_kernels
                kernels = kernels + PerPass(forward=forward, backward=backward)
                if operator.pieces > 1:
                    kernels = kernels + self.framework.ring.kernels.times(operator.pieces)
        collective_s = self._host_factor * self.framework.host.collective_s
        forward_s, backward_s = (
            count * self._kernel_host_s + number * collective_s + hooks_s + experts_s
            for count, number, hooks_s, experts_s in zip(
                (kernels.forward, kernels.backward),
                _collectives(layer),
                self._hooks_s(layer),
                self._experts_s(layer),
                strict=True,
            )
        )
        return forward_s, backward_s

    def _experts_s(self, layer: Layer) -> tuple[float, float]:
        """Seconds of the host that launches a layer's grouped products expert by expert in both passes, with casts before."""
        each_s = self._host_factor * self.framework.host.expert_s * (1 + is_narrow(self.work.precision))
        grouped = [o for o in layer.operators if isinstance(o, Matmul) and o.count > 1]
        forward, backward = (
            sum(o.count * len(products(o, 1)) for o in grouped) for products in (Matmul.forward, Matmul.backward)
        )
        return each_s * forward, each_s * backward

    def _hooks_s(self, layer: Layer) -> tuple[float, float]:
        """Seconds of the host in the hooks of a layer's modules and gradients in both passes."""
        hooks, zero = self.framework.hooks, self.work.zero
        is_block = any(isinstance(operator, Attention) for operator in layer.operators)
        modules = hooks.modules + sum(map(is_added, layer.operators)) if is_block else len(layer.operators)
        modules_s = self._host_factor * hooks.module_s * modules if zero == 3 else 0.0
        gradients_s = self._host_factor * hooks.gradient_s * len(layer.tensors) if zero else 0.0
        return modules_s, gradients_s + modules_s * layer.has_backward

    def _launches(self, layer: Layer) -> PerPass:
        """Kernels that the framework launches for a layer in both passes."""
        host, names = self.framework.host, {operator.name for operator in layer.operators}
        if any(isinstance(operator, Attention) for operator in layer.operators):
            launches = self._block_launches(layer)
            if "router" in names:
                launches = launches + host.mixture
            if self.work.autocast:
                launches = launches + self.framework.autocast.block
        elif names & _ENDS:
            launches = host.ends
        else:
            described = kernel_count(layer.operators)
            return PerPass(forward=host.described * described[0], backward=host.described * described[1])
        # the framework's counts are those of layers whose parameters are all trained
        added = tuple(filter(is_added, layer.operators))
        backward = max(0.0, launches.backward - sum(_missing_gradients(o) for o in layer.operators if not is_added(o)))
        more = [host.described * count for count in kernel_count(added)] if added else (0.0, 0.0)
        return PerPass(forward=launches.forward + more[0], backward=backward + more[1] if layer.has_backward else 0.0)

    def _block_launches(self, layer: Layer) -> PerPass:
        """Kernels of a transformer block in both passes: the framework's count, or those that the model describes and what the
        framework launches in addition."""
        host = self.framework.host
        if host.block is not None:
            return host.block
        own = tuple(operator for operator in layer.operators if not is_added(operator))
        result = PerPass(**dict(zip(("forward", "backward"), (host.described * n for n in kernel_count(own)), strict=True)))
        names = ["block", *(operator.name for operator in own)]
        return sum((host.launches[name] for name in names if name in host.launches), result)

    def _passed_s(self, kernels_s: float, host_s: float) -> float:
        """Seconds of a pass that the device and the host work on at the same time."""
        if self.framework.host.blocking:
            return kernels_s + host_s
        return float((kernels_s**_SHARPNESS + host_s**_SHARPNESS) ** (1 / _SHARPNESS))


def _piece_bytes(ring: RingAttention, operator: Attention, samples: float) -> PerPass:
    """Bytes that attention to keys in pieces moves in addition in both passes."""
    if operator.pieces == 1:
        return PerPass()
    keys = operator.keys * operator.key_heads * (operator.width + operator.value_width)
    return ring.merged.times((operator.pieces - 1) * operator.written * samples) + ring.keys.times(keys * samples)


def _elements(kept: Sequence[SavedActivation], name: str) -> int:
    """Elements per sample of the saved activations of a name."""
    return sum(item.elements for item in kept if item.name == name)


def _missing_gradients(operator: Operator) -> bool:
    """Whether the backward pass of a product lacks the product for the gradients of its weights, since these are frozen."""
    return isinstance(operator, Matmul | Convolution) and not operator.weight_gradient


def _collectives(layer: Layer) -> tuple[int, int]:
    """Number of a layer's collectives in the forward and in the backward pass."""
    backward = sum(one.backward for one in layer.exchanges)
    return len(layer.exchanges) - backward, backward


@functools.lru_cache(maxsize=256)
def framework_kernels(kernels: Kernels, version: str | None) -> Kernels:
    """Kernels whose host time is the framework's, with the attention that it has: measured on the device, else as on its
    generation. Shares of the peak that the device states itself win over both."""
    implementation = version or USUAL_ATTENTION
    rates = kernels.attention_rates(implementation)
    return kernels.model_copy(update={"issue_s": 0.0, "attention": {} if rates is None else {implementation: rates}})


@functools.lru_cache(maxsize=512)
def execution_of(device: Device, framework: Framework, work: TrainingWork) -> Execution:
    """The execution of a device, a framework and a way to train, so that each distinct cost is computed once."""
    return Execution(device, framework, work)


# Megatron's kernel takes heads and sequences in fours and up to 2,048 keys (megatron/fused_kernels and model/fused_softmax.py).
_FUSED_SOFTMAX_OF: Final = 4
_FUSED_SOFTMAX_KEYS: Final = 2048
# Bytes of an element where training in 16 bits computes in 32.
WIDE_BYTES: Final = 4


class ScorePasses:
    """Kernels between the products of one attention operator over some samples, for one way to train.

    Without flash, software scales and masks scores, normalises them and drops some, with one kernel each unless it fuses them.
    A framework lists its kernels (`attention_passes`); without a list, or where Megatron's kernel fits, one fused softmax is
    all.
    """

    def __init__(self, framework: Framework, operator: Attention, samples: float, precision: Precision, autocast: bool) -> None:
        self._operator, self._samples, self._autocast = operator, samples, autocast
        self._size = ELEMENT_BYTES[precision]
        is_fused = operator.flash or (
            framework.fused_softmax
            and not operator.heads * samples % _FUSED_SOFTMAX_OF
            and operator.keys <= _FUSED_SOFTMAX_KEYS
        )
        other = "bidirectional" if operator.seen < 1 else "causal"
        passes = (one for one in framework.attention_passes.values() if one.when != other and one.forward + one.backward)
        self._passes: Sequence[ScorePass] = () if is_fused else tuple(passes)

    def extra_bytes(self, dropped: float) -> tuple[float, float]:
        """Bytes that both passes of training move in addition to a fused softmax. dropped: scores that dropout reads, which
        have the precision of the softmax before it."""
        if not self._passes:
            return 0.0, 0.0
        operator = self._operator
        inputs = operator.queries * operator.heads * operator.width
        inputs += operator.keys * operator.key_heads * (operator.width + operator.value_width)
        elements = {"scores": operator.scores * self._samples, "inputs": inputs * self._samples}
        both_bytes = self._casts * (self._size + WIDE_BYTES) * elements["scores"]
        if any(map(self._is_wide, self._passes)):
            both_bytes += 2 * (WIDE_BYTES - self._size) * dropped
        forward_bytes, backward_bytes = (both_bytes - self._size * count * self._samples for count in operator.between)
        for one in self._passes:
            element_bytes = (WIDE_BYTES if self._is_wide(one) else self._size) * elements[one.of]
            forward_bytes += one.forward * element_bytes
            backward_bytes += one.backward * element_bytes
        return forward_bytes, backward_bytes

    @property
    def extra_kernels(self) -> tuple[int, int]:
        """Kernels that both passes of training launch in addition to a fused softmax."""
        if not self._passes:
            return 0, 0
        forward, backward = (sum(bool(count) for count in counts) for counts in zip(*self._counts, strict=True))
        return forward + self._casts - 1, backward + self._casts - 1

    @property
    def _counts(self) -> list[tuple[float, float]]:
        return [(one.forward, one.backward) for one in self._passes]

    def _is_wide(self, one: ScorePass) -> bool:
        """Whether a pass reads and writes 32 bits in training with 16."""
        return self._size < WIDE_BYTES and (one.wide == "always" or (one.wide == "autocast" and self._autocast))

    @property
    def _casts(self) -> int:
        """Number of casts of scores between kernels with 16 and with 32 bits, in each pass of training."""
        wide = [False, *(self._is_wide(one) for one in self._passes if one.of == "scores" and one.forward), False]
        return sum(left != right for left, right in pairwise(wide))
