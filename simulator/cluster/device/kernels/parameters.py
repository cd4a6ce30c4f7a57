"""Parameters of a device's kernel model, its peaks at one precision, and the share of them that a power limit sustains.

A device at its limit lowers its clock. Dynamic power is C V² f: it grows with the cube of the clock where the voltage
follows the clock, and in proportion to it where the voltage is at its floor. Published products agree with the cube above
the limit at which a device was measured. Below it they do not decide between both, and the rate is taken to be proportional
to the limit.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field

from scaleproof.simulator.cluster.device.kernels.attention import (
    BEST_ATTENTION,
    AttentionRates,
    best_attention_rates,
    generation_attention_rates,
    on_slower_cores,
)
from scaleproof.simulator.cluster.device.kernels.cpu_core import SerialCosts
from scaleproof.simulator.cluster.device.kernels.products import (
    ProductPrecision,
    ProductRates,
    generation_product_rates,
    of_twice_the_bytes,
    sustained_gain,
)
from scaleproof.simulator.cluster.device.kernels.rates import MixtureRates
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.spec import Count, Spec, slower
from scaleproof.simulator.common.units import Seconds, Watts

Generation = Literal[
    "kepler", "pascal", "volta", "turing", "ampere", "ampere-rtx", "ada", "hopper", "blackwell", "blackwell-rtx", "cdna", "tpu",
    "gaudi", "trainium", "apple", "cpu",
]  # fmt: skip

# Flash attention's shares of the peak, forward and backward, if the device states no shares: round assumptions.
_UNKNOWN_FLASH_SHARES: Final = (0.4, 0.3)


def _generation_has_the_rest(schema: dict[str, Any]) -> None:
    """Requires only the facts: devices complete the parameters that YAML leaves out."""
    schema["required"] = ["generation", "processors"]


class Kernels(Spec):
    """Parameters of the kernel model. Shares are of the device's peak rate or of its memory bandwidth.

    In YAML the generation and the number of processors are enough: what is absent has the generation's value.
    """

    model_config = ConfigDict(json_schema_extra=_generation_has_the_rest)

    generation: Generation = Field(description="hardware generation, which determines the tiles of the libraries")
    processors: Count = Field(description="number of streaming multiprocessors, compute units or cores, one tile each")
    tile_share: float = Field(
        gt=0, le=1, description="share of the peak that the largest tiles reach on all processors; the generation's if absent"
    )
    tensor_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="rate of tensor cores with sums in 32 bits over the full rate of the generation: 0.5 on GeForce cards",
    )
    sustained_share: float = Field(
        1.0, gt=0, le=16, description="share of the peak that the power limit sustains; more than 1 where it hardly limits it"
    )
    sustained_at_W: Watts | None = Field(
        None, gt=0, alias="sustained_at", description="power limit that sustains sustained_share; the device's if absent"
    )
    burst_s: Seconds = Field(0.0, alias="burst", description="duration of a product that may draw twice the sustained power")
    memory_share: float = Field(
        gt=0, le=1, description="share of the memory bandwidth that kernels reach; the generation's if absent"
    )
    launch_s: Seconds = Field(
        alias="launch", description="time from the end of one kernel to the start of the next; the generation's if absent"
    )
    issue_s: Seconds = Field(0.0, alias="issue", description="host time to issue one kernel")
    host_slowdown: float = Field(
        1.0, gt=0, le=1000, description="host time per kernel over that of the host that frameworks' files assume"
    )
    generation_slowdown: float = Field(
        1.0, gt=0, le=1000, description="fixed times of rates that come from the generation, over those of its measured GPU"
    )
    flash_forward_share: float | None = Field(
        None, gt=0, le=1, description="share of the peak that flash attention reaches; by version and generation if absent"
    )
    flash_backward_share: float | None = Field(None, gt=0, le=1, description="the same share in the backward pass")
    flash_narrow_share: float = Field(
        1.0, gt=0, le=1, description="rate of flash attention with heads 64 wide over that with heads 128 wide"
    )
    flash_ramp_keys: float = Field(
        0.0, ge=0, le=1e6, description="fixed time of each block of queries, as a number of additional keys"
    )
    exponential_gain: float = Field(
        1.0, gt=0, le=16, description="exponentials that a processor computes in a clock, over those of its generation"
    )
    attention: dict[str, AttentionRates] = Field(
        {}, description="rates of implementations of flash attention; the first one runs unless the framework names another"
    )
    serial: SerialCosts | None = Field(
        None, description="costs on a CPU core, which overlaps nothing; they replace tiles, power and issue time"
    )

    products: dict[ProductPrecision, ProductRates] = Field(
        {},
        description="rates of matrix products by precision; bf16 serves fp16; if absent, those of the generation's measured "
        "GPU, changed as much as tile_share differs",
    )

    mixtures: dict[str, MixtureRates] = Field(
        {},
        description="rates of fused mixtures of experts by precision, of serving software",
    )

    def product_rates(self, precision: str) -> ProductRates | None:
        """Rates of products at a precision, the device's own or its generation's; None if neither were measured."""
        known = "bf16" if precision == "fp16" else precision
        own = self.products.get(known)  # type: ignore[call-overload]
        shares = self.tile_share, self.sustained_share, self.tensor_rate
        found = own or generation_product_rates(self.generation, known, *shares, self.generation_slowdown)
        if found is None and known == "tf32" and (narrow := self.product_rates("bf16")) is not None:
            return of_twice_the_bytes(narrow)
        return found

    def attention_rates(self, implementation: str) -> AttentionRates | None:
        """Rates of an implementation of flash attention: the device's own, else its generation's, else those of the first
        implementation that was measured on the device; None if none are known."""
        rates = self.attention.get(implementation)
        if rates is not None:
            return rates
        shipped = generation_attention_rates(implementation, self.generation)
        if shipped is not None:
            gain = sustained_gain(self.generation, self.sustained_share)
            shipped = on_slower_cores(shipped, self.tensor_rate, self.tile_share, gain)
            shipped = slower(shipped, self.generation_slowdown)
        if implementation == BEST_ATTENTION:
            return best_attention_rates([*([shipped] if shipped else []), *self.attention.values()]) or next(
                iter(self.attention.values()), None
            )
        return shipped or next(iter(self.attention.values()), None)

    @property
    def flash_shares(self) -> tuple[float, float]:
        """Shares of the peak that flash attention reaches in the forward and the backward pass."""
        forward, backward = _UNKNOWN_FLASH_SHARES
        return self.flash_forward_share or forward, self.flash_backward_share or backward


class Speed(NamedTuple):
    """A device's peaks at one precision. winograd: whether libraries use it for 3 × 3 convolutions, as they do in fp32.
    products: rates of matrix products, if they are known. burst: whether kernels run in short bursts, at high clocks, as in
    tables of kernels; training is bound by what the power limit sustains. operand_bytes: of an element that products read, if
    it is not `element_bytes`, as in 8 bits. pads: whether software copies operands with rows that are not aligned into padded
    ones."""

    kernels: Kernels
    peak_flops: float
    memory_Bps: float
    element_bytes: int
    winograd: bool = False
    products: ProductRates | None = None
    burst: bool = False
    operand_bytes: float | None = None
    pads: bool = False
    direct_flops: float = 0.0

    @property
    def on_tensor_cores(self) -> bool:
        """Whether products have the precision of tensor cores: 16 bits, or TF32, which is stored in 32."""
        return self.element_bytes == 2 or (self.element_bytes == 4 and not self.winograd)

    @property
    def reached_Bps(self) -> float:
        """Memory bandwidth that kernels reach."""
        return self.memory_Bps * self.kernels.memory_share


def direct_flops(kernels: Kernels, clock_Hz: float | None) -> float:
    """FLOP/s of grouped convolutions whose threads compute an output each, by scenarios/kernels/convolutions.yaml."""
    known = convolution_constants()
    clock_Hz = float(known["clock"]) if clock_Hz is None else clock_Hz
    return 2.0 * float(known["multiply_adds"]) * kernels.processors * clock_Hz


@functools.cache
def convolution_constants() -> dict[str, Any]:
    """The constants of scenarios/kernels/convolutions.yaml."""
    found: dict[str, Any] = yaml_file.shipped(catalog.ROOT / "kernels" / "convolutions.yaml")
    return found


@functools.lru_cache(maxsize=256)
def at_power_limit(kernels: Kernels, power_limit_W: float | None) -> Kernels:
    """The kernels with the share of the peak that a power limit sustains, from the share at the limit `sustained_at`."""
    at_W = kernels.sustained_at_W
    if power_limit_W is None or at_W is None or at_W == power_limit_W:
        return kernels
    ratio = power_limit_W / at_W
    share = kernels.sustained_share * min(ratio, ratio ** (1 / power_constants()["clock_exponent"]))
    most = max(1.0, kernels.sustained_share)
    return kernels.model_copy(update={"sustained_share": min(most, share), "sustained_at_W": power_limit_W})


@functools.lru_cache(maxsize=256)
def with_peak_share(kernels: Kernels, share: float) -> Kernels:
    """The kernels with `share` times the shares of the peak that tiles and the power limit sustain."""
    update = {"tile_share": kernels.tile_share * share, "sustained_share": kernels.sustained_share * share}
    return kernels.model_copy(update=update)


@functools.cache
def power_constants() -> dict[str, Any]:
    """The assumptions of scenarios/kernels/power.yaml."""
    found: dict[str, Any] = yaml_file.shipped(catalog.ROOT / "kernels" / "power.yaml")
    return found
