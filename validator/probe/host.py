"""Times of a node's host, for states that are moved out of its devices: copies to and from them, and Adam's step there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe.adaptive import Step, repeat
from scaleproof.validator.probe.compute import averaged, rank_point
from scaleproof.validator.probe.peers import collected
from scaleproof.validator.probe.points import Point
from scaleproof.validator.probe.rounds import in_rounds
from scaleproof.validator.record.cpu_usage import usable

# Bytes of copies, and parameters whose 28 bytes each are more than caches hold, where ranks compute on cores.
COPY_BYTES: Final = (2**22, 2**26)
PARAMETERS: Final = (2**24,)


def copies(sizes_bytes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of copies between pinned host memory and a GPU in both directions ("host_copy"); of a processor between two
    buffers in its memory, which are the copies of an emulated device."""
    device = here().device

    def one_round(budget_s: float) -> Iterator[Point]:
        for size_bytes in sizes_bytes:
            # memory that was never written is read from one page of zeros
            host = torch.zeros(size_bytes // 4, pin_memory=device.type == "cuda").fill_(1.0)
            own = torch.zeros(size_bytes // 4, device=device)
            for what, target, source in (("host to device", own, host), ("device to host", host, own)):
                step = averaged(partial(target.copy_, source, non_blocking=True))
                yield rank_point("host_copy", what, float(size_bytes), "bytes", repeat(step, budget_s / (2 * len(sizes_bytes))))

    return collected(in_rounds(one_round, budget_s))


def adam(sizes: Sequence[int], budget_s: float) -> list[dict[str, Any]]:
    """Points of Adam's step in 32 bits on the host, over `sizes` parameters and with all of its cores ("host_adam"), by the
    kernel that moves each number once, as DeepSpeed's does."""
    threads = torch.get_num_threads()

    def one_round(budget_s: float) -> Iterator[Point]:
        for size in sizes:
            parameter = nn.Parameter(torch.zeros(size))
            parameter.grad = torch.ones(size)
            step = _on_host(torch.optim.Adam([parameter], fused=True).step)
            yield rank_point("host_adam", "adam", float(size), "parameters", repeat(step, budget_s / len(sizes)), cores=cores)

    cores = len(usable())
    torch.set_num_threads(cores)
    try:
        return collected(in_rounds(one_round, budget_s))
    finally:
        torch.set_num_threads(threads)


def _on_host(step: Callable[[], Tensor | None]) -> Step:
    """Step that returns its seconds on the host's clock, whatever the rank's device."""

    def repetition() -> float:
        begin_s = time.perf_counter()
        step()
        return time.perf_counter() - begin_s

    return repetition
