"""Framework: a version of training software, described by what it costs in kernels, host time, copies and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Bytes, Seconds
from scaleproof.simulator.frameworks.gradients import AnyGradientPrecision, GradientPrecision
from scaleproof.simulator.frameworks.memory import MemoryBehaviour
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, Operator

# Features that a scenario may need; `scaleproof.simulator.scenario.schema.software` determines which ones it needs.
Feature = Literal[
    "data_parallel", "zero_1", "zero_2", "zero_3", "tensor", "pipeline", "context", "expert", "model_parallel",
    "parameter_server", "local_sgd", "gather_average", "fp8", "cpu",
]  # fmt: skip


class PerPass(Spec):
    """One number for the forward pass and one for the backward pass."""

    forward: float = Field(0.0, ge=0, le=1e6)
    backward: float = Field(0.0, ge=0, le=1e6)

    def __add__(self, other: PerPass) -> PerPass:
        return PerPass(forward=self.forward + other.forward, backward=self.backward + other.backward)


class Host(Spec):
    """Work of the host process in each step.

    The kernel counts are launches per layer and pass. Layers without attention that are not the ends of a transformer launch as
    many kernels as the model describes, times `described`.
    """

    kernel_s: Seconds = Field(0.0, alias="kernel", description="host time per kernel launch")
    collective_s: Seconds = Field(0.0, alias="collective", description="host time per collective inside a layer")
    microbatch_s: Seconds = Field(0.0, alias="microbatch", description="time per microbatch in addition to its kernels")
    blocking: bool = Field(False, description="the host waits for each kernel (CUDA_LAUNCH_BLOCKING)")
    block: PerPass = Field(PerPass(), description="kernels of a transformer block")
    ends: PerPass = Field(PerPass(), description="kernels of the embedding, and of the output head with the loss")
    mixture: PerPass = Field(PerPass(), description="kernels of a mixture-of-experts block in addition to those of a block")
    checkpoint: PerPass = Field(PerPass(), description="additional launches of a block that is recomputed")
    described: float = Field(1.0, ge=0, le=100, description="kernels launched per kernel that other layers describe")


class GradientDefaults(Spec):
    """Accumulation of gradients over microbatches and their sum over ranks, where a scenario does not specify them."""

    accumulate: AnyGradientPrecision = Field(
        GradientPrecision(), description="precision of the buffer, for each training precision; as reduced if absent"
    )
    reduce: AnyGradientPrecision = Field(
        GradientPrecision(), description="precision of sums over ranks, for each training precision; the training's if absent"
    )
    fused: bool | None = Field(
        None, description="the weight-gradient product adds to the buffer itself, or a kernel adds; absent: no buffer"
    )


class Scale(Spec):
    """Loss of speed that grows with the number of ranks that wait for each other."""

    device_deviation: float = Field(0.0, ge=0, le=1, description="standard deviation of equal devices' speeds, a share")
    pass_jitter: float = Field(0.0, ge=0, le=1, description="standard deviation of one rank's pass times, a share")


class Defaults(Spec):
    """Values of strategy fields that a scenario leaves out; None leaves the strategy's own default."""

    overlap: bool | None = None
    overlap_gather: bool | None = None
    overlap_tensor: bool | None = None
    overlap_sends: bool | None = None
    split_sends: bool | None = None
    context_by: Literal["ring", "all_gather"] | None = None
    balance: Literal["layers", "time"] | None = Field(None, description="what pipeline stages have equal shares of")
    keeps_in_pipelines: bool = Field(False, description="ZeRO 3 keeps gathered parameters for the step under pipelines")
    bucket_bytes: Bytes | None = Field(None, alias="bucket")
    bucket_parameters: float | None = Field(None, gt=0, description="parameters per gradient bucket, in place of its bytes")
    bucket_parameters_per_rank: float = Field(0.0, ge=0, description="lower bound per data-parallel rank")


class Framework(Spec):
    """A version of training software. Every value that is not a default of this schema has an entry in `sources`."""

    name: str
    description: str = ""
    supports: tuple[Feature, ...] = Field((), description="parallelism, precisions and devices that it runs on")
    recomputes: tuple[Literal["layers", "every", "modules", "products"], ...] = Field(
        (), description="forms of recomputation in addition to none, selective and full; by these fields of training.recompute"
    )
    host: Host = Host()
    attention: dict[str, str] = Field(
        {},
        description="version of flash attention by device generation, or 'any'; 'best' of all; 'none' writes scores to memory",
    )
    fused_softmax: bool = Field(False, description="scale, mask and softmax are one kernel where shapes are multiples of four")
    extra_bytes: dict[str, PerPass] = Field(
        {}, description="moved per element that an operator writes, in addition to what the model counts"
    )
    parameter_bytes: PerPass = Field(PerPass(), description="copies and sums per parameter and microbatch")
    optimizer_bytes: float = Field(0.0, ge=0, le=1e4, description="moved per parameter in addition to the optimizer's formula")
    gradients: GradientDefaults = GradientDefaults()
    fp8_gathers: bool = Field(False, description="parameters of 8-bit training are gathered with a byte each")
    overlap_input_gradients: bool = Field(
        False, description="tensor-parallel ranks sum gradients of products' inputs next to weight-gradient products"
    )
    contention: bool = Field(True, description="overlapped collectives take processors and memory bandwidth from kernels")
    rendezvous: bool = Field(True, description="collectives inside layers start with no receives queued in the network")
    power: bool = Field(True, description="overlapped collectives draw power that kernels at the device's power cap lose")
    scale: Scale = Scale()
    kernel_scale: float = Field(1.0, gt=0, le=100, description="factor on modelled kernel times, from calibration")
    host_scale: float = Field(1.0, gt=0, le=100, description="factor on modelled host times, from calibration")
    defaults: Defaults = Defaults()
    memory: MemoryBehaviour = MemoryBehaviour()
    precision: str = Field("bf16", description="of published runs that state none")
    vocabulary: int = Field(51200, gt=0, description="of published runs that state none")
    model: dict[str, Any] = Field({}, description="details of the transformer that its published runs train")
    sources: dict[str, str] = Field({}, description="where each value comes from")

    def flash(self, generation: str) -> str | None:
        """Version of flash attention on a device generation; None where the framework says nothing."""
        return self.attention.get(generation, self.attention.get("any"))

    @property
    def has_flash(self) -> bool:
        """Whether attention can run without writing scores to memory."""
        return self.attention.get("any") != "none"

    def ablated(self, mechanism: str) -> Self:
        """The framework with one mechanism of `ABLATIONS` switched off. Raises InputError for an unknown name."""
        if mechanism not in ABLATIONS:
            raise InputError(f"no mechanism is called {mechanism!r}; give one of {', '.join(ABLATIONS)}")
        return self.model_copy(update={**ABLATIONS[mechanism]})


# Attention as fast as the fastest version that is known for a device.
_BEST_ATTENTION: Final = {"any": "best"}
# No software cost: the bound that hardware sets.
IDEAL: Final = Framework(
    name="ideal", attention=_BEST_ATTENTION, contention=False, power=False, rendezvous=False, overlap_input_gradients=True
)
# Mechanisms that can be switched off, with the fields that do so.
ABLATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "host": {"host": Host(), "host_scale": 1.0},
    "attention": {"attention": _BEST_ATTENTION},
    "kernels": {"extra_bytes": {}, "fused_softmax": False},
    "copies": {"parameter_bytes": PerPass(), "gradients": GradientDefaults()},
    "optimizer": {"optimizer_bytes": 0.0},
    "contention": {"contention": False},
    "rendezvous": {"rendezvous": False},
    "power": {"power": False},
    "slowest": {"scale": Scale()},
}


def written_elements(operator: Operator) -> int:
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
