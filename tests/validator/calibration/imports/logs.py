"""Small logs, matrices and traces in the formats of other tools, with known times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaleproof.simulator.cluster.collectives.groups import Op, bus_factor

FILES = Path(__file__).parent / "files"
H100 = "NVIDIA H100 80GB HBM3"
SIZES = [2**i for i in range(10, 31, 2)]


def nccl_log(
    op: Op, hosts: Sequence[str], latency_s: float, Bps: float, sizes: Sequence[int] = SIZES, prefix: str = "", gpu: str = H100
) -> str:
    """A log of today's nccl-tests, every size of which takes latency + size / bandwidth; in place 2 % longer."""
    lines = [
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
        f"# Collective test starting: {op}_perf",
        "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1",
        "#",
        "# Using devices",
        *(f"#  Rank {rank:2} Group  0 Pid {999 + rank:6} on {host:>10} device {rank:2} [0x{rank:02x}] {gpu}"
          for rank, host in enumerate(hosts)),
        "#",
        "#                                                            out-of-place                       in-place",
        "#       size       count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong",
        "#        (B)  (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)",
    ]  # fmt: skip
    redop = "sum" if "reduce" in op else "none"
    for size in sizes:
        body = ""
        for share in (1.0, 1.02):
            seconds = (latency_s + size / Bps) * share
            rate = size / seconds / 1e9
            body += f"  {seconds * 1e6:7.2f}  {rate:6.2f}  {rate * bus_factor(op, len(hosts)):6.2f}  {0:6}"
        lines.append(f"{size:12}  {size // 4:12}  {'float':>8}  {redop:>6}  {-1:6}{body}")
    lines += [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 123.4",
        "#",
        f"# Collective test concluded: {op}_perf",
        "",
    ]
    return "\n".join(prefix + line for line in lines)


def kernel(name: str, ts: float, dur: float, correlation: int, **arguments: Any) -> dict[str, Any]:
    """A kernel of device 0, in microseconds."""
    reported = {"device": 0, "stream": 7, "correlation": correlation, **arguments}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": reported}


def all_reduce(ts: float, dur: float, correlation: int, elements: int, ranks: int = 2) -> dict[str, Any]:
    """Fields that torch records with an NCCL kernel."""
    reported = {
        "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": ranks,
        "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": str(list(range(ranks))),
    }  # fmt: skip
    return kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ts, dur, correlation, **reported
    )


def host(category: str, name: str, ts: float, dur: float, thread: int = 1, **arguments: Any) -> dict[str, Any]:
    """An event on a thread of the host."""
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread, "ts": ts, "dur": dur, "args": arguments}


def launch(ts: float, correlation: int, thread: int = 1) -> dict[str, Any]:
    return host("cuda_runtime", "cudaLaunchKernel", ts, 1.0, thread, correlation=correlation)


def trace(events: Sequence[dict[str, Any]], rank: int = 0, world: int = 2) -> str:
    """A document as Kineto writes it."""
    about = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}, "host_name": "node-a"}
    devices = [{"id": number, "name": H100} for number in range(world)]
    return json.dumps({"schemaVersion": 1, "deviceProperties": devices, **about, "traceEvents": list(events)}, indent=2)


def step(number: int, at: float, waits: float = 0.0) -> list[dict[str, Any]]:
    """A step of 1000 us: 300 us of computation, then 400 us of an all_reduce, of which 200 lie behind further computation.

    waits: how much longer this rank is in the all_reduce.
    """
    first = 10 * number
    return [
        host("user_annotation", f"ProfilerStep#{number}", at, 1000.0),
        *(launch(at + 10 * i, first + i) for i in range(3)),
        kernel("void gemm_kernel<float>", at + 100, 300.0, first),
        all_reduce(at + 400 - waits, 400.0 + waits, first + 1, 2**20),
        kernel("void gemm_kernel<float>", at + 400, 200.0, first + 2),
    ]
