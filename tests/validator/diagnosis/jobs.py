"""Files of synthetic jobs with planted faults, in the formats of the software that writes them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_US = 1e6
H100 = "NVIDIA H100 80GB HBM3"
FORWARD, BACKWARD = "ampere_bf16_s16816gemm_bf16_128x128_tn", "ampere_bf16_s16816gemm_bf16_128x128_nt"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
# Seconds of a layer's kernel, and of transfers.
LAYER_S, SUM_S, TENSOR_S = 4e-3, 12e-3, 0.5e-3


@dataclass
class Job:
    """A data- and tensor-parallel job. Faults are factors or seconds of a rank and step; noise is relative, of each kernel."""

    seed: int = 0
    ranks: int = 16
    tensor: int = 2
    steps: int = 6
    layers: int = 8
    per_host: int = 8
    noise: float = 0.01
    compute: Callable[[int, int], float] = lambda rank, step: 1.0
    work: Callable[[int, int], float] = lambda rank, step: 1.0
    late_s: Callable[[int, int], float] = lambda rank, step: 0.0
    gap_s: Callable[[int, int], float] = lambda rank, step: 0.0
    link: Callable[[tuple[int, ...]], float] = lambda members: 1.0
    clock_s: Callable[[int], float] = lambda rank: 0.0
    # what a step takes without faults
    step_s: list[float] = field(default_factory=list)

    def write(self, folder: Path, ranks: Sequence[int] | None = None) -> list[Path]:
        """Writes the traces of all ranks, or of some."""
        traces = self.events()
        chosen = range(self.ranks) if ranks is None else ranks
        return [_write(folder / f"rank{rank}.json.gz", self, rank, traces[rank]) for rank in chosen]

    def events(self) -> list[list[dict[str, Any]]]:
        """Events of each rank, on a common clock."""
        draw = np.random.default_rng(self.seed)
        at_s = np.full(self.ranks, 10.0)
        events: list[list[dict[str, Any]]] = [[] for _ in range(self.ranks)]
        self._launches = 0
        tensor = [tuple(range(first, first + self.tensor)) for first in range(0, self.ranks, self.tensor)]
        data = [tuple(range(first, self.ranks, self.tensor)) for first in range(self.tensor)]
        for step in range(self.steps):
            began_s = at_s.copy()
            for rank in range(self.ranks):
                at_s[rank] += 1e-4 + self.late_s(rank, step)
            for number in range(2 * self.layers):
                for rank in range(self.ranks):
                    at_s[rank] += self.gap_s(rank, step) / (2 * self.layers - 1) if number else 0.0
                    seconds = LAYER_S * self.compute(rank, step) * self.work(rank, step) * _varied(draw, self.noise)
                    name = FORWARD if number < self.layers else BACKWARD
                    grid = [round(128 * self.work(rank, step)), 2, 1]
                    self._kernel(events[rank], name, at_s[rank], seconds, grid=grid)
                    at_s[rank] += seconds
                if self.tensor > 1:
                    self._exchange(events, tensor, at_s, TENSOR_S, draw, 2**20)
            self._exchange(events, data, at_s, SUM_S, draw, 2**26)
            for rank in range(self.ranks):
                seconds = 2e-3 * self.compute(rank, step) * _varied(draw, self.noise)
                self._kernel(events[rank], ADAM, at_s[rank], seconds, grid=[512, 1, 1])
                at_s[rank] += seconds
            self._mark(events, step, began_s, at_s)
        return events

    def _mark(self, events: list[list[dict[str, Any]]], step: int, began_s: Any, at_s: Any) -> None:
        """Marks a step."""
        for rank, own in enumerate(events):
            place = {"pid": 9, "tid": 1, "ts": began_s[rank] * _US, "dur": (at_s[rank] - began_s[rank]) * _US - 1}
            own.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", **place, "args": {}})
        self.step_s.append(float((at_s - began_s).max()))

    def _exchange(
        self,
        events: list[list[dict[str, Any]]],
        groups: Sequence[tuple[int, ...]],
        at_s: Any,
        seconds: float,
        draw: Any,
        size: int,
    ) -> None:
        for members in groups:
            if len(members) < 2:
                continue
            end_s = max(at_s[rank] for rank in members) + seconds * self.link(members) * _varied(draw, self.noise)
            recorded = {
                "Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size, "Group size": len(members),
                "dtype": "BFloat16", "Process Group Name": f"{members[0]}:{len(members)}",
                "Process Group Ranks": str(list(members)),
            }  # fmt: skip
            for rank in members:
                name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                self._kernel(events[rank], name, at_s[rank], end_s - at_s[rank], stream=20, **recorded)
                at_s[rank] = end_s

    def _kernel(
        self, to: list[dict[str, Any]], name: str, start_s: float, seconds: float, stream: int = 7, **more: Any
    ) -> None:
        self._launches += 1
        launch = {"pid": 9, "tid": 1, "ts": start_s * _US, "dur": 1.0, "args": {"correlation": self._launches}}
        to.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **launch})
        place = {"pid": 0, "tid": stream, "ts": start_s * _US, "dur": seconds * _US}
        recorded = {"device": 0, "stream": stream, "correlation": self._launches, **more}
        to.append({"ph": "X", "cat": "kernel", "name": name, **place, "args": recorded})


@dataclass
class Pipeline(Job):
    """A pipeline with a stage on each rank, whose forward passes wait for those of the stage before, then backward ones."""

    tensor: int = 1
    microbatches: int = 8

    def events(self) -> list[list[dict[str, Any]]]:
        """Events of each rank, on a common clock."""
        draw = np.random.default_rng(self.seed)
        at_s = np.full(self.ranks, 10.0)
        events: list[list[dict[str, Any]]] = [[] for _ in range(self.ranks)]
        self._launches = 0
        for step in range(self.steps):
            began_s = at_s.copy()
            for name, stages in ((FORWARD, range(self.ranks)), (BACKWARD, range(self.ranks)[::-1])):
                sent_s = np.zeros((self.microbatches, self.ranks))
                for number in range(self.microbatches):
                    for before, rank in zip([None, *stages], stages, strict=False):
                        if before is not None:
                            self._message(events[rank], "recv", at_s[rank], max(at_s[rank], sent_s[number, before]))
                            at_s[rank] = max(at_s[rank], sent_s[number, before]) + TENSOR_S
                        seconds = LAYER_S * self.compute(rank, step) * _varied(draw, self.noise)
                        self._kernel(events[rank], name, at_s[rank], seconds, grid=[128, 2, 1])
                        at_s[rank] += seconds
                        sent_s[number, rank] = at_s[rank]
            # the norm of gradients
            self._exchange(events, [tuple(range(self.ranks))], at_s, TENSOR_S / 10, draw, 2)
            self._mark(events, step, began_s, at_s)
        return events

    def _message(self, to: list[dict[str, Any]], way: str, start_s: float, begin_s: float) -> None:
        recorded = {
            "Collective name": way, "In msg nelems": 2**20, "Out msg nelems": 2**20, "Group size": self.ranks,
            "dtype": "BFloat16", "Process Group Name": "pp", "Process Group Ranks": str(list(range(self.ranks))),
        }  # fmt: skip
        name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        self._kernel(to, name, start_s, begin_s + TENSOR_S - start_s, stream=21, **recorded)


def _varied(draw: Any, noise: float) -> float:
    return float(np.exp(noise * draw.standard_normal()))


def _write(path: Path, job: Job, rank: int, events: list[dict[str, Any]]) -> Path:
    shift_us = job.clock_s(rank) * _US
    moved = [{**event, "ts": event["ts"] + shift_us} for event in events]
    device = rank % job.per_host
    for event in moved:
        if event["cat"] == "kernel":
            event["args"] = {**event["args"], "device": device}
    about = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.ranks}}
    devices = [{"id": number, "name": H100} for number in range(job.per_host)]
    document = {"schemaVersion": 1, "deviceProperties": devices, "host_name": f"gpu{rank // job.per_host:03}", **about}
    path.write_bytes(gzip.compress(json.dumps(document | {"traceEvents": moved}).encode(), 1))
    return path


def megatron_log(path: Path, seconds: Sequence[float], begin: str = "2026-01-05 10:00:") -> Path:
    """A log of Megatron-LM with a line for each step."""
    line = " [2026-01-05 {}] iteration {:8}/{:8} | consumed samples: {:12} | elapsed time per iteration (ms): {:.1f} | "
    line += "throughput per GPU (TFLOP/s/GPU): 412.5 | global batch size:   256 | lm loss: 6.125E+00 |\n"
    at_s, text = 36_000.0, ""
    for number, step_s in enumerate(seconds, start=1):
        at_s += step_s
        clock = f"{int(at_s) // 3600:02}:{int(at_s) // 60 % 60:02}:{int(at_s) % 60:02}"
        text += line.format(clock, number, len(seconds), number * 256, 1e3 * step_s)
    path.write_text(text)
    return path
