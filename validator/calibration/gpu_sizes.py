"""Sizes of the probes of GPUs: in full, and tiny ones that show on any device that the probes work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.model import Gpt, ResNet

_GPT: Final = {"kind": "gpt", "vocabulary": 50304, "sequence": 1024}
GPT_124M: Final = {**_GPT, "layers": 12, "hidden": 768, "heads": 12}
GPT_774M: Final = {**_GPT, "layers": 36, "hidden": 1280, "heads": 20}
GPT_TINY: Final = {"kind": "gpt", "layers": 4, "hidden": 32, "heads": 2, "vocabulary": 64, "sequence": 16}
RESNET_TINY: Final = {"kind": "resnet", "image": 32, "classes": 10}


@dataclass(frozen=True)
class GpuSizes:
    """Sizes in bytes, or (m, n, k) for products.

    more_products: timed in the first precision of 16 bits alone. attentions: (sequences, tokens of each, heads, heads of keys,
    width), in that precision. sustained_side: of the square product that is computed without a pause in each precision, for
    sustained_s seconds of the budget. overlap_bytes, overlap_side: of the all-reduces and the products that overlap. layers:
    (model, precision, samples of a batch) whose layers are timed. optimizer_parameters: numbers of parameters of a step;
    host_parameters: of one on the host.
    devices: number of devices, None for those present. label: note on all results, if they are not accurate. budget_s: seconds
    for all probes together.
    """

    products: Sequence[tuple[int, int, int]]
    more_products: Sequence[tuple[int, int, int]]
    attentions: Sequence[tuple[int, int, int, int, int]]
    precisions: Sequence[str]
    sustained_side: int
    sustained_s: float
    memory_bytes: Sequence[int]
    overlap_bytes: int
    overlap_side: int
    copy_bytes: Sequence[int]
    message_bytes: Sequence[int]
    layers: Sequence[tuple[Gpt | ResNet, str, Sequence[int]]]
    optimizer_parameters: Sequence[int]
    host_parameters: Sequence[int]
    budget_s: float
    devices: int | None = None
    label: str = ""

    @property
    def kernel_precision(self) -> str:
        """The precision in which most kernels are timed."""
        return next((name for name in self.precisions if name in ("bf16", "fp16")), self.precisions[0])


def model_of(fields: Mapping[str, Any]) -> Gpt | ResNet:
    """The model of a scenario's fields."""
    return Gpt.model_validate(fields) if fields["kind"] == "gpt" else ResNet.model_validate(fields)


_SQUARES: Final = [(side, side, side) for side in (512, 1024, 2048, 4096, 8192)]
# Products of GPTs of 124 and 774 million parameters over 8,192 tokens.
_TRAINED: Final = [(8192, n, k) for n, k in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50304, 768), (5120, 1280))]

# Products of linear layers of larger models, over few and many rows; attention over short and long sequences, with as many
# heads of keys as heads and with fewer.
_LAYERS: Final = [
    (rows, n, k)
    for n, k in ((1024, 4096), (4096, 1024), (4096, 4096), (6144, 4096), (4096, 14336), (28672, 4096), (10240, 8192))
    for rows in (512, 2048, 8192)
]
_ATTENTIONS: Final = [
    (batch, tokens, heads, key_heads, width)
    for heads, key_heads, width in ((32, 32, 128), (32, 8, 128), (16, 16, 64))
    for batch, tokens in ((16, 512), (8, 1024), (4, 2048), (2, 4096), (1, 8192))
]

FULL: Final = GpuSizes(
    products=[*_SQUARES, *_TRAINED],
    more_products=_LAYERS,
    attentions=_ATTENTIONS,
    precisions=["fp32", "tf32", "bf16", "fp16", "fp8"],
    sustained_side=8192,
    sustained_s=10.0,
    memory_bytes=[2**24, 2**26, 2**28, 2**30],
    overlap_bytes=2**28,
    overlap_side=4096,
    copy_bytes=[2**16, 2**20, 2**24, 2**28],
    message_bytes=[4, 2**12, 2**16, 2**20, 2**24, 2**28],
    layers=[
        (model_of(GPT_124M), "bf16", (1, 2, 4, 8, 16)),
        (model_of(GPT_124M), "fp32", (1, 2, 4, 8)),
        (ResNet(), "bf16", (8, 16, 32, 64, 128)),
        (ResNet(), "fp32", (8, 16, 32, 64)),
    ],
    optimizer_parameters=[2**20, 2**24, 2**27],
    host_parameters=[2**25],
    budget_s=180.0,
)

TINY: Final = GpuSizes(
    products=[(32, 32, 32), (128, 128, 128), (256, 64, 128)],
    more_products=[(64, 64, 128), (128, 64, 32)],
    attentions=[(1, 64, 4, 4, 32), (2, 128, 4, 2, 64)],
    precisions=["fp32", "bf16"],
    sustained_side=128,
    sustained_s=1.0,
    memory_bytes=[2**16, 2**20],
    overlap_bytes=2**16,
    overlap_side=64,
    copy_bytes=[2**12, 2**20],
    message_bytes=[4, 2**10, 2**14, 2**18],
    layers=[(model_of(GPT_TINY), "fp32", (1, 4)), (model_of(RESNET_TINY), "fp32", (2, 4))],
    optimizer_parameters=[2**10, 2**16],
    host_parameters=[2**16],
    budget_s=10.0,
    devices=2,
    label="dry run on the CPU, numbers are meaningless",
)
