"""Sizes of what the check measures, in full on GPUs and tiny in a dry run on the CPU, and the time of each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_GPT: Final = {"kind": "gpt", "vocabulary": 50304, "sequence": 1024}
GPT_124M: Final = {**_GPT, "layers": 12, "hidden": 768, "heads": 12}
GPT_774M: Final = {**_GPT, "layers": 36, "hidden": 1280, "heads": 20}
GPT_TINY: Final = {"kind": "gpt", "layers": 4, "hidden": 32, "heads": 2, "vocabulary": 64, "sequence": 16}
# Small, because one CPU core trains it again for comparison.
GPT_SHARED: Final = {"kind": "gpt", "layers": 4, "hidden": 128, "heads": 4, "vocabulary": 256, "sequence": 64}
RESNET_TINY: Final = {"kind": "resnet", "image": 32, "classes": 10}


@dataclass(frozen=True)
class Training:
    """A model and how it is trained. batch: samples per step."""

    name: str
    model: Mapping[str, Any]
    batch: int
    precision: str
    optimizer: str = "sgd"


@dataclass(frozen=True)
class Sizes:
    """Sizes of probes and training. Sizes are in bytes, or (m, n, k) for products; budgets in seconds over all points of a
    part.

    layers: (model, precision, samples of a batch) whose layers are timed one by one. replicated: training of ranks that have a
    device each. shared: training of ranks that share one, in fp64 so that results agree to rounding. devices: number of
    devices, None for those present.
    """

    products: Sequence[tuple[int, int, int]]
    precisions: Sequence[str]
    memory_bytes: Sequence[int]
    copy_bytes: Sequence[int]
    message_bytes: Sequence[int]
    messages: int
    layers: Sequence[tuple[Mapping[str, Any], str, Sequence[int]]]
    optimizer_parameters: Sequence[int]
    trainings: Sequence[Training]
    replicated: Training
    shared: Training
    steps: int
    probe_s: float
    layers_s: float
    devices: int | None = None


_SQUARES: Final = [(side, side, side) for side in (512, 1024, 2048, 4096, 8192)]
# Products of GPTs of 124 and 774 million parameters over 8,192 tokens.
_TRAINED: Final = [(8192, n, k) for n, k in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50304, 768), (5120, 1280))]

FULL: Final = Sizes(
    products=[*_SQUARES, *_TRAINED],
    precisions=["fp32", "tf32", "bf16", "fp16"],
    memory_bytes=[2**24, 2**26, 2**28, 2**30],
    copy_bytes=[2**16, 2**20, 2**24, 2**28],
    message_bytes=[4, 2**12, 2**16, 2**20, 2**24, 2**28],
    messages=20,
    layers=[
        (GPT_124M, "bf16", (1, 2, 4, 8, 16)),
        (GPT_124M, "fp32", (1, 2, 4, 8)),
        ({"kind": "resnet"}, "bf16", (8, 16, 32, 64, 128)),
        ({"kind": "resnet"}, "fp32", (8, 16, 32, 64)),
    ],
    optimizer_parameters=[2**20, 2**24, 2**27],
    trainings=[
        Training("gpt-124m-bf16-8", GPT_124M, 8, "bf16"),
        Training("gpt-124m-bf16-32", GPT_124M, 32, "bf16", "adam"),
        Training("gpt-124m-fp32-8", GPT_124M, 8, "fp32", "adam"),
        Training("gpt-774m-bf16-8", GPT_774M, 8, "bf16"),
        Training("resnet50-bf16-64", {"kind": "resnet"}, 64, "bf16", "momentum"),
        Training("resnet50-bf16-128", {"kind": "resnet"}, 128, "bf16", "momentum"),
        Training("resnet50-fp32-64", {"kind": "resnet"}, 64, "fp32", "momentum"),
        Training("resnet152-bf16-32", {"kind": "resnet", "depth": 152}, 32, "bf16", "momentum"),
    ],
    replicated=Training("gpt-124m", GPT_124M, 8, "bf16"),
    shared=Training("gpt-mini", GPT_SHARED, 24, "fp64"),
    steps=10,
    probe_s=12.0,
    layers_s=8.0,
)

DRY: Final = Sizes(
    products=[(32, 32, 32), (128, 128, 128), (256, 64, 128)],
    precisions=["fp32", "bf16"],
    memory_bytes=[2**16, 2**20],
    copy_bytes=[2**12, 2**20],
    message_bytes=[4, 2**12, 2**20],
    messages=5,
    layers=[(GPT_TINY, "fp32", (1, 4)), (RESNET_TINY, "fp32", (2, 4))],
    optimizer_parameters=[2**10, 2**16],
    trainings=[Training("gpt-tiny-fp32", GPT_TINY, 8, "fp32", "adam"), Training("resnet50-tiny-fp32", RESNET_TINY, 2, "fp32")],
    replicated=Training("gpt-tiny", GPT_TINY, 8, "fp32"),
    shared=Training("gpt-tiny", GPT_TINY, 24, "fp64"),
    steps=3,
    probe_s=0.3,
    layers_s=0.3,
    devices=2,
)
