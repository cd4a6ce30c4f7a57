"""Traces of torch.profiler as a predicted run would have recorded them, with kernels named as PyTorch names them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from scaleproof.simulator.common.communication import named
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.run.run import Run

_US = 1e6
_KERNELS = {
    Phase.FORWARD: "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x1_tn_align8>",
    Phase.BACKWARD: "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nt",
    Phase.OPTIMIZER: "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>",
}
# What torch calls collectives in the arguments of their kernels.
_TORCH = {
    "all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "send": "send",
    "recv": "recv",
}  # fmt: skip


class TraceWriter:
    """Events of one rank."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._launches = 0

    def host(self, category: str, name: str, start_s: float, end_s: float, thread: int = 1, **arguments: Any) -> None:
        place = {"pid": 9, "tid": thread, "ts": start_s * _US, "dur": (end_s - start_s) * _US}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, "args": arguments})

    def kernel(self, name: str, start_s: float, end_s: float, thread: int = 1, stream: int = 7, **arguments: Any) -> None:
        """A kernel, and its launch by the host at its start."""
        self._launches += 1
        self.host("cuda_runtime", "cudaLaunchKernel", start_s, start_s, thread, correlation=self._launches)
        place = {"pid": 0, "tid": stream, "ts": start_s * _US, "dur": (end_s - start_s) * _US}
        recorded = {"device": 0, "stream": stream, "correlation": self._launches, **arguments}
        self.events.append({"ph": "X", "cat": "kernel", "name": name, **place, "args": recorded})

    def write(self, path: Path, rank: int, world: int) -> Path:
        """Writes the trace, gzipped."""
        about = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
        document = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], **about}
        path.write_bytes(gzip.compress(json.dumps(document | {"traceEvents": self.events}).encode()))
        return path


def write_rank(run: Run, index: int, rank: int, group: list[int], path: Path, steps: int = 3, marks: bool = True) -> Path:
    """The trace of a rank that runs as rank class `index` of a predicted run. group: ranks with the same parameters."""
    assert run.spans is not None
    writer = TraceWriter()
    own = run.spans.where(run.spans.rank == index)
    rows = [
        dict(zip(own.columns(), row, strict=True)) for row in zip(*(c.tolist() for c in own.columns().values()), strict=True)
    ]
    rows = [row for row in rows if row["step"] == rows[0]["step"]]
    for step in range(steps):
        _write_step(writer, step, [_later(row, step * run.step_time_s) for row in rows], group, marks)
    return writer.write(path, rank, run.compute_ranks)


def _later(row: dict[str, Any], by_s: float) -> dict[str, Any]:
    return row | {name: row[name] + by_s for name in ("arrival_s", "start_s", "end_s")}


def _write_step(writer: TraceWriter, step: int, rows: list[dict[str, Any]], group: list[int], marks: bool) -> None:
    main = [row for row in rows if row["stream"] == Stream.MAIN]
    if marks:
        begin_s, end_s = min(row["arrival_s"] for row in main), max(row["end_s"] for row in main)
        writer.host("user_annotation", f"ProfilerStep#{step}", begin_s, end_s - 1e-9)
    for row in main:
        phase = Phase(row["phase"])
        if phase == Phase.BACKWARD:
            name = "autograd::engine::evaluate_function: MmBackward0"
            writer.host("cpu_op", name, row["start_s"], row["end_s"] - 1e-9, 2)
            writer.kernel(_KERNELS[phase], row["start_s"], row["end_s"], 2)
        elif phase in _KERNELS and row["end_s"] > row["start_s"]:
            writer.kernel(_KERNELS[phase], row["start_s"], row["end_s"])
    waits_s = {(row["phase"], row["end_s"]): row["start_s"] - row["arrival_s"] for row in main}
    for row in rows:
        if row["stream"] == Stream.COMMUNICATION:
            _communicate(writer, row, row["start_s"] - waits_s.get((row["phase"], row["end_s"]), 0.0), group)


def _communicate(writer: TraceWriter, row: dict[str, Any], start_s: float, group: list[int]) -> None:
    """A kernel of NCCL that moves the bytes of a span, in 16 bits."""
    phase = Phase(row["phase"])
    op = "send" if phase == Phase.SEND else "recv" if phase == Phase.RECEIVE else named(row["communication"])[1].name.lower()
    elements = round(row["message_bytes"] / 2)
    recorded = {
        "Collective name": _TORCH[op], "In msg nelems": elements, "Out msg nelems": elements, "Group size": len(group),
        "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": str(group),
    }  # fmt: skip
    kernel = "SendRecv" if op in ("send", "recv") else op.title().replace("_", "")
    name = f"ncclDevKernel_{kernel}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    writer.kernel(name, start_s, row["end_s"], stream=20 + row["phase"], **recorded)
