"""What a model's layers and its optimizer take in a framework, given to the device that they run on as if measured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType
from typing import Final

from simulator.cluster.device import Device, Linear, MeasuredLayer, MeasuredOptimizer, Optimizer, Precision
from simulator.model import Layer
from simulator.model.operators import Attention, Convolution, Matmul, Operator
from validator.framework_exchanges import Beside
from validator.frameworks import CHECKPOINT, FLASH, Extra, Framework, Kernels

# What products reach in 8 bits over what they reach in 16: the best of a GH200 in both, published/gpu_matmul_efficiency.csv.
_FP8_OVER_BF16: Final = 1535 / 828.6
# How sharply the bounds of the host and of the device take over from one another: norm of that order. Within a layer, kernels
# that the host bounds alternate with those that the device does; a round assumption.
_SHARPNESS: Final = 4
# Standard deviation of the speeds of alike GPUs: they differ by 8 % of it over a cluster (arXiv 2208.11035), taken for the
# range of a few hundred.
_SPEEDS_DEVIATION: Final = 0.015
# Megatron's kernel takes heads and sequences in fours and so many keys (megatron/fused_kernels and model/fused_softmax.py);
# else PyTorch turns scores into 32 bits, scales, masks, normalises and turns them back, and the same backward: four kernels and
# so many bytes of a score more.
_FUSED_SOFTMAX_OF: Final = 4
_FUSED_SOFTMAX_KEYS: Final = 2048
_UNFUSED_SOFTMAX: Final = Extra(6 + 8 + 8 + 8 + 6 - 4, 6 + 12 + 8 + 8 + 6 - 6)
_UNFUSED_KERNELS: Final = 4
# Bytes: an input is read and written in 8 bits as it is and transposed; so is an output's gradient. Scaling by row takes
# the largest of rows and of columns apart, in kernels of their own, and slower products: as many bytes as make it train 10.05 %
# faster than 16 bits where scaling by tensor does 25.03 % (torchao, README of float8, version 0.10, Llama 3 8B on eight H100).
_CAST_BYTES: Final = {"rowwise": 14}
_CAST_BY_TENSOR_BYTES: Final = 4

_NONE: Final[Mapping[str, Beside]] = MappingProxyType({})


@dataclass(frozen=True)
class Work:
    """How ranks pass layers: samples of a microbatch; fp8: whether blocks' products are in 8 bits, and how these are
    scaled. recompute: as in a row."""

    ranks: int
    samples: int
    precision: Precision
    optimizer: Optimizer
    recompute: str
    fp8: bool = False
    fp8_recipe: str = ""


def device_for(
    device: Device, framework: Framework, layers: Sequence[Layer], work: Work, collectives: Mapping[str, Beside] = _NONE
) -> Device:
    """The device with the times of `layers`, and of the optimizer, that the framework makes of them.

    collectives: by a layer's signature. Only a device with kernels is changed; one that is timed by an efficiency knows no
    frameworks.
    """
    if device.kernels is None or device.efficiency is not None:
        return device
    timer = _Timer(device, framework, work, collectives)
    distinct = {layer.signature: layer for layer in layers}
    per_parameter_s = framework.optimizer_bytes * timer.scale / timer.reached_Bps
    optimizer = MeasuredOptimizer.model_construct(
        optimizer=work.optimizer, precision=work.precision, base_s=0.0, per_parameter_s=per_parameter_s
    )
    first, last = layers[0].signature, layers[-1].signature
    measured = []
    for signature, layer in distinct.items():
        forward_s, backward_s = timer.layer_s(layer)
        if signature in (first, last):
            forward_s += framework.constants.microbatch_s / 2
        measured.append(
            MeasuredLayer.model_construct(
                signature=signature,
                precision=work.precision,
                forward=Linear.model_construct(base_s=forward_s, per_sample_s=0.0),
                backward=Linear.model_construct(base_s=backward_s, per_sample_s=0.0),
            )
        )
    return timer.device.model_copy(update={"measured_layers": tuple(measured), "measured_optimizers": (optimizer,)})


class _Timer:
    """Times of layers on a device whose kernels are those of a framework."""

    def __init__(self, device: Device, framework: Framework, work: Work, collectives: Mapping[str, Beside]) -> None:
        kernels = device.kernels
        assert kernels is not None
        shares = FLASH.get(framework.attention, {}).get(kernels.generation)
        update: dict[str, float] = {"issue_s": 0.0}
        if shares is not None:
            update |= {"flash_forward_share": shares[0], "flash_backward_share": shares[1]}
        self.device = device.model_copy(update={"kernels": kernels.model_copy(update=update)})
        peaks = device.peak_flops | {work.precision: device.peak_flops[work.precision] * _FP8_OVER_BF16}
        self.fp8_device = self.device.model_copy(update={"peak_flops": peaks})
        self.reached_Bps = device.memory_bandwidth_Bps * kernels.memory_share
        self.framework, self.work, self.collectives = framework, work, collectives
        self.scale = framework.constants.kernels * slowest(work.ranks)

    def layer_s(self, layer: Layer) -> tuple[float, float]:
        """Seconds of both passes. What is recomputed is in the second, but for what strategies add: a whole forward pass, or
        attention's scores."""
        again = self.work.recompute if not layer.glued else "none"
        forward_s, backward_s = self._kernels_s(layer)
        host_forward_s, host_backward_s = self._host_s(layer)
        if again == "selective" and self.framework.attention != "scores":
            backward_s += self._again_s(layer)
        passed_s = self._passed_s(forward_s, host_forward_s)
        if again == "full":
            # the host issues recomputation while the device is still busy with what comes before it
            return passed_s, self._passed_s(forward_s + backward_s, host_forward_s + host_backward_s) - passed_s
        return passed_s, self._passed_s(backward_s, host_backward_s)

    def _passed_s(self, kernels_s: float, host_s: float) -> float:
        if self.framework.blocking:
            return kernels_s + host_s
        return float((kernels_s**_SHARPNESS + host_s**_SHARPNESS) ** (1 / _SHARPNESS))

    def _kernels_s(self, layer: Layer) -> tuple[float, float]:
        framework, work = self.framework, self.work
        forward_s, backward_s = self.device.layer_s(layer, work.samples, work.precision)
        if work.fp8 and not layer.glued:
            saved_forward_s, saved_backward_s = self._saved_by_fp8_s(layer)
            forward_s, backward_s = forward_s - saved_forward_s, backward_s - saved_backward_s
        forward_bytes, backward_bytes = framework.forward_bytes, framework.backward_bytes
        forward_bytes, backward_bytes = forward_bytes * layer.parameters, backward_bytes * layer.parameters
        for operator in layer.operators:
            extra, elements = framework.extras.get(operator.name), written(operator) * work.samples
            if extra is not None:
                forward_bytes += extra.forward * elements
                backward_bytes += extra.backward * elements
            scores = self._unfused_scores(operator) * work.samples
            forward_bytes += _UNFUSED_SOFTMAX.forward * scores
            backward_bytes += _UNFUSED_SOFTMAX.backward * scores
        forward_s, backward_s = forward_s + forward_bytes / self.reached_Bps, backward_s + backward_bytes / self.reached_Bps
        collectives = self._collectives(layer)
        return self.scale * forward_s + collectives.forward_s, self.scale * backward_s + collectives.backward_s

    def _unfused_scores(self, operator: Operator) -> int:
        """Scores of a sample whose softmax the framework would fuse, but cannot."""
        if not (self.framework.fused_softmax and isinstance(operator, Attention)) or operator.flash:
            return 0
        rest = operator.heads * self.work.samples % _FUSED_SOFTMAX_OF
        return operator.scores if rest or operator.keys > _FUSED_SOFTMAX_KEYS else 0

    def _collectives(self, layer: Layer) -> Beside:
        return self.collectives.get(layer.signature, Beside())

    def _saved_by_fp8_s(self, layer: Layer) -> tuple[float, float]:
        """Seconds by which products in 8 bits are shorter, less those of turning what they read into 8 bits."""
        work, products = self.work, [o for o in layer.operators if isinstance(o, Matmul)]
        slow = self.device.operators_s(layer, products, work.samples, work.precision)
        fast = self.fp8_device.operators_s(layer, products, work.samples, work.precision)
        read = sum(o.count * (o.rows * work.samples + o.columns) * o.inner for o in products)
        made = sum(written(o) for o in products) * work.samples
        cast_bytes = _CAST_BYTES.get(work.fp8_recipe, _CAST_BY_TENSOR_BYTES)
        cast_forward_s, cast_backward_s = (cast_bytes * elements / self.reached_Bps for elements in (read, made))
        return slow[0] - fast[0] - cast_forward_s, slow[1] - fast[1] - cast_backward_s

    def _again_s(self, layer: Layer) -> float:
        """Seconds of what selective recomputation does again."""
        work, framework = self.work, self.framework
        shares = framework.again or {o.name: 1.0 for o in layer.operators if isinstance(o, Attention)}
        total_s = 0.0
        for operator in layer.operators:
            share = shares.get(operator.name, 0.0)
            if share:
                alone_s, _ = self.device.operators_s(layer, [operator], work.samples, work.precision)
                extra = framework.extras.get(operator.name)
                moved_bytes = extra.forward * written(operator) * work.samples if extra else 0.0
                total_s += share * (alone_s + moved_bytes / self.reached_Bps)
        return total_s * self.scale + (self._collectives(layer).again_s if framework.again else 0.0)

    def _host_s(self, layer: Layer) -> tuple[float, float]:
        framework = self.framework
        kernels = framework.end_kernels if layer.glued else framework.block_kernels
        if any(self._unfused_scores(operator) for operator in layer.operators):
            kernels = Kernels(*(count + _UNFUSED_KERNELS for count in kernels))
        if self.work.recompute == "full" and not layer.glued:
            kernels = Kernels(*(count + more for count, more in zip(kernels, CHECKPOINT, strict=True)))
        sent = [sum(one.backward == backward for one in layer.exchanges) for backward in (False, True)]
        forward_s, backward_s = (
            framework.constants.host * (count * framework.kernel_host_s + number * framework.exchange_host_s)
            for count, number in zip(kernels, sent, strict=True)
        )
        return forward_s, backward_s


def slowest(ranks: int) -> float:
    """How much longer than the mean the slowest of so many devices takes, for which all wait.

    The expected largest of normal deviates, by Blom's approximation (Statistical Estimates and Transformed Beta-Variables,
    1958).
    """
    return 1 + _SPEEDS_DEVIATION * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def written(operator: Operator) -> int:
    """Elements that an operator writes for one sample."""
    match operator:
        case Matmul():
            return operator.rows * operator.columns * operator.count
        case Attention():
            return operator.heads * operator.queries * operator.value_width
        case Convolution():
            return operator.positions * operator.outputs
        case _:
            return operator.written
