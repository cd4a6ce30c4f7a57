"""Files of a measured run as its job would have written them: a trace of torch.profiler for each rank, and a training log."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import COMPUTE_PHASES, Phase, Stream
from scaleproof.simulator.parallelism.stages import cut_by_blocks
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.job import nodes_of_ranks
from scaleproof.validator.record.recorder import END_OF_STEP, RAW_SPAN

_US: Final = 1e6
_FP32: Final = 4
_KERNELS: Final = {
    Phase.FORWARD: "ampere_sgemm_128x64_tn",
    Phase.BACKWARD: "ampere_sgemm_128x64_nt",
    Phase.OPTIMIZER: "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>",
}
_SUM: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_MESSAGE: Final = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_COMPUTING, _COMMUNICATING = 7, 20
# Of the first step of a log; only its date is arbitrary.
_BEGIN: Final = datetime(2026, 1, 5, 10, tzinfo=UTC)


def write(scenario: Scenario, recorded: Sequence[bytes], folder: Path) -> None:
    """Writes what the ranks of a data-parallel job or of a pipeline have recorded, with one warm-up step."""
    rows = [own[own["step"] >= 0] for own in map(_rows, recorded)]
    received = {
        (int(row["step"]), int(row["peer"]), rank, int(row["match"])): float(row["end_s"])
        for rank, own in enumerate(rows)
        for row in own[(own["phase"] == Phase.RECEIVE) & (own["peer"] >= 0)]
    }
    for rank, own in enumerate(rows):
        _write_trace(folder / f"rank{rank}.json.gz", scenario, rank, _events(scenario, rank, own, received))
    seconds = step_seconds(recorded)
    (folder / "train.log").write_text("".join(_log(seconds, scenario.total_samples)))


def step_seconds(recorded: Sequence[bytes]) -> list[float]:
    """Seconds of each step after the warm-up, on the rank that ends it last."""
    ends = [rows["end_s"][(rows["phase"] == END_OF_STEP) & (rows["step"] >= 0)] for rows in map(_rows, recorded)]
    seconds: list[float] = np.diff(np.max(ends, axis=0)).tolist()
    return seconds


def _rows(recorded: bytes) -> NDArray[Any]:
    return np.frombuffer(recorded, dtype=RAW_SPAN)


def _events(
    scenario: Scenario, rank: int, rows: NDArray[Any], received: Mapping[tuple[int, int, int, int], float]
) -> Iterator[dict[str, Any]]:
    """Events of a rank: marks of steps, and kernels with their launches. Passes are divided equally among layers."""
    began_s, (layers, samples) = float(rows["arrival_s"].min()), _work(scenario, rank)
    for number, row in enumerate(rows, start=1):
        begin_s, end_s, phase = float(row["arrival_s"]), float(row["end_s"]), int(row["phase"])
        is_moving, size = row["stream"] == Stream.COMMUNICATION, int(row["size_bytes"])
        if phase == END_OF_STEP:
            yield _mark(int(row["step"]), began_s, end_s)
            began_s = end_s
        elif phase in COMPUTE_PHASES:
            edges_s = np.linspace(begin_s, end_s, 1 + layers).tolist()
            for layer, (start_s, stop_s) in enumerate(pairwise(edges_s)):
                about = {"grid": [samples if phase != Phase.OPTIMIZER else 1, 1, 1]}
                yield from _kernel(_KERNELS[Phase(phase)], number * layers + layer, start_s, stop_s, _COMPUTING, **about)
        elif phase == Phase.SYNCHRONISE and is_moving:
            yield from _kernel(_SUM, -number, begin_s, end_s, _COMMUNICATING, **_about("allreduce", size, scenario))
        elif phase in (Phase.SEND, Phase.RECEIVE) and row["peer"] >= 0:
            peer, is_sent = int(row["peer"]), phase == Phase.SEND
            # a send of NCCL lasts until the message has been received
            sent = (int(row["step"]), rank, peer, int(row["match"]))
            end_s = max(end_s, received.get(sent, end_s)) if is_sent else end_s
            way, end = ("send", "Dst Rank") if is_sent else ("recv", "Src Rank")
            about = _about(way, size, scenario) | {end: peer}
            yield from _kernel(_MESSAGE, -number, begin_s, end_s, _COMMUNICATING + is_sent, **about)


def _work(scenario: Scenario, rank: int) -> tuple[int, int]:
    """Layers of a rank, each of which has a kernel in every pass, and samples of a microbatch."""
    strategy = scenario.strategy
    plan, layers = strategy.plan, scenario.layers(strategy.plan.shard)
    parts = cut_by_blocks(layers, plan.stages, plan.balance, plan.counted)
    samples = plan.shares[rank] if plan.shares else scenario.samples_per_worker
    return len(parts[rank % len(parts)]), samples // plan.microbatches


def _about(name: str, size: int, scenario: Scenario) -> dict[str, Any]:
    """Arguments that torch adds to communication of all ranks' group."""
    ranks = list(range(scenario.strategy.ranks))
    return {
        "Collective name": name, "In msg nelems": size // _FP32, "Out msg nelems": size // _FP32, "dtype": "Float",
        "Group size": len(ranks), "Process Group Name": "0", "Process Group Ranks": str(ranks),
    }  # fmt: skip


def _mark(step: int, begin_s: float, end_s: float) -> dict[str, Any]:
    place = {"pid": 9, "tid": 1, "ts": begin_s * _US, "dur": (end_s - begin_s) * _US}
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", **place, "args": {}}


def _kernel(name: str, number: int, begin_s: float, end_s: float, stream: int, **about: Any) -> Iterator[dict[str, Any]]:
    launch = {"pid": 9, "tid": 1, "ts": begin_s * _US, "dur": 1.0, "args": {"correlation": number}}
    yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **launch}
    place = {"pid": 0, "tid": stream, "ts": begin_s * _US, "dur": max(0.0, end_s - begin_s) * _US}
    yield {"ph": "X", "cat": "kernel", "name": name, **place, "args": {"device": 0, "correlation": number, **about}}


def _write_trace(path: Path, scenario: Scenario, rank: int, events: Iterator[dict[str, Any]]) -> None:
    ranks = scenario.strategy.ranks
    document = {
        "schemaVersion": 1, "host_name": f"host{nodes_of_ranks(scenario)[rank]}",
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        "deviceProperties": [{"id": 0, "name": scenario.cluster.device.name}], "traceEvents": list(events),
    }  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def _log(seconds: Sequence[float], samples: int) -> Iterator[str]:
    """Lines of a log of Megatron-LM."""
    at_s = 0.0
    for number, step_s in enumerate(seconds, start=1):
        at_s += step_s
        clock = f"{_BEGIN + timedelta(seconds=at_s):%Y-%m-%d %H:%M:%S}"
        step = f"iteration {number:8}/{len(seconds):8} | consumed samples: {number * samples:12}"
        times = f"elapsed time per iteration (ms): {1e3 * step_s:.1f} | global batch size: {samples:5}"
        yield f" [{clock}] {step} | {times} |\n"
