"""Compute times of matrix products, in short bursts and over seconds.

Points and budgets are as in `compute`. Factors alternate, so that no product finds its own in the second-level cache.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import Samples, repeat, sustain
from scaleproof.validator.probe.compute import averaged, rank_point
from scaleproof.validator.probe.peers import collected
from scaleproof.validator.probe.points import SKIPPED, SUSTAINED, Point
from scaleproof.validator.probe.rounds import in_rounds
from scaleproof.validator.record import gpu_facts
from scaleproof.validator.train.models.models import DTYPES

# (m, n, k): square products, and those of a transformer's layers and their gradients, with few rows and with many.
SHAPES: Final = (
    *((side, side, side) for side in (64, 128, 256, 512, 1024)),
    (16, 1024, 1024), (256, 1024, 256), (256, 256, 1024), (1024, 256, 256), (64, 2048, 512), (512, 2048, 64), (2048, 512, 256),
)  # fmt: skip
# Most pairs of factors that alternate. Products so small that these fit into a cache are bound by their launches.
_MOST_PAIRS: Final = 256
# Samples of a product that is computed over seconds, so that they show its rate over time.
_SAMPLES: Final = 50
# Capability of the first NVIDIA GPUs with products in 8 bits. (CUDA C++ Programming Guide, appendix.)
_FIRST_FP8: Final = (8, 9)
_FP8: Final = torch.float8_e4m3fn
# Without it, products of 32-bit floats stay in 32 bits. (hipBLASLt's documentation.)
_AMD_TF32: Final = "HIPBLASLT_ALLOW_TF32"


def products(shapes: Sequence[tuple[int, int, int]], precisions: Sequence[str], budget_s: float) -> list[dict[str, Any]]:
    """Points of matrix products ("matmul"): m × k by k × n, in 8 bits with the cast of the first factor from 16.

    A precision that the device lacks has a point without times.
    """
    possible = [precision for precision in precisions if not _lack(precision)]

    def one_round(budget_s: float) -> Iterator[Point]:
        for precision in possible:
            with _tf32(precision == "tf32"):
                for shape in shapes:
                    samples = repeat(averaged(_product(precision, *shape)), budget_s / (len(shapes) * len(possible)))
                    yield _point(f"{precision} {_name(shape)}", shape, samples)

    return collected([*in_rounds(one_round, budget_s), *_lacking(precisions)])


def sustained(side: int, precisions: Sequence[str], budget_s: float) -> list[dict[str, Any]]:
    """Points of one square product that is computed without a pause ("matmul", of the group "sustained"), in each precision for
    an equal share of the budget. Their seconds are in the order of time.

    Numbers of a GPU that nvidia-smi reports: clock_MHz, power_W and temperature_C at the end, and before it the same with
    `begin_`.
    """
    possible = [precision for precision in precisions if not _lack(precision)]
    shape = (side, side, side)

    def points() -> Iterator[Point]:
        for precision in possible:
            each_s = budget_s / len(possible)
            # nvidia-smi takes a while, in which the device must not pause
            with _tf32(precision == "tf32"), ThreadPoolExecutor(1) as reader:
                step = averaged(_product(precision, *shape), each_s / _SAMPLES)
                begin = reader.submit(_load())
                samples = sustain(step, each_s)
                end = reader.submit(_load())
                while not end.done():
                    step()
            load = {f"begin_{name}": value for name, value in begin.result().items()} | dict(end.result())
            yield replace(_point(f"{SUSTAINED} {precision} {_name(shape)}", shape, samples, **load), group=SUSTAINED)

    return collected([*points(), *_lacking(precisions)])


def _point(what: str, shape: tuple[int, int, int], samples: Samples, **numbers: float) -> Point:
    m, n, k = shape
    return rank_point("matmul", what, 2.0 * m * n * k, "flops", samples, m=m, n=n, k=k, **numbers)


def _name(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))


def _load() -> Callable[[], Mapping[str, float]]:
    """Function that reads the clock, power and temperature of the rank's GPU; of a CPU, nothing."""
    device = here().device
    return partial(gpu_facts.load, gpu_facts.uuid_of(device)) if device.type == "cuda" else dict


def _lack(precision: str) -> str:
    """Why the rank's device has no products in a precision; empty if it has."""
    if precision == "fp8" and not _has_fp8(here().device):
        return f"needs an NVIDIA GPU of compute capability {'.'.join(map(str, _FIRST_FP8))} or newer"
    if precision == "tf32" and gpu_facts.is_amd() and os.environ.get(_AMD_TF32) != "1":
        return f"AMD's libraries compute in fp32; set {_AMD_TF32}=1"
    return ""


def _has_fp8(device: torch.device) -> bool:
    is_nvidia = device.type == "cuda" and not gpu_facts.is_amd()
    return is_nvidia and torch.cuda.get_device_capability(device) >= _FIRST_FP8


def _lacking(precisions: Sequence[str]) -> Iterator[Point]:
    """A point for each precision that the rank's device lacks."""
    for precision in precisions:
        if why := _lack(precision):
            me = here().rank
            yield Point("matmul", f"products in {precision}", f"rank {me}", (me,), "", 0.0, "", (), f"{SKIPPED}: {why}")


def _product(precision: str, m: int, n: int, k: int) -> Callable[[], object]:
    """Function that computes a product, each time of the next of several pairs of factors."""
    device, dtype = here().device, DTYPES[precision]
    second_bytes = _FP8.itemsize if precision == "fp8" else dtype.itemsize
    count = min(_MOST_PAIRS, 1 + -(-_cache_bytes(device) // (m * k * dtype.itemsize + k * n * second_bytes)))
    first, second = (torch.randn(count, *size, device=device, dtype=dtype) for size in ((m, k), (n, k)))
    if precision == "fp8":
        narrow = itertools.cycle(zip(first, second.to(_FP8).mT, strict=True))
        one = torch.ones((), device=device)

        def multiply() -> None:
            left, right = next(narrow)
            # with fast accumulation, as in forward passes of training software
            torch._scaled_mm(left.to(_FP8), right, one, one, out_dtype=dtype, use_fast_accum=True)

        return multiply
    pairs = itertools.cycle(zip(first, second.view(count, k, n), strict=True))
    out = torch.empty(m, n, device=device, dtype=dtype)
    return lambda: torch.mm(*next(pairs), out=out)


def _cache_bytes(device: torch.device) -> int:
    """Bytes of the second-level cache of a GPU; zero for a CPU, whose caches serve training too."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Sets whether products of 32-bit floats may be computed as tf32 within the context."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
