"""A machine with GPUs that do not exist, for all processes of a command: on each rank capture's device with values and times.

Values are computed where ranks train, so that verification means something, and are not where they probe, so that sizes cost
nothing. Kernels take the time of a roofline, on a clock that only they advance; training is timed by the host's clock. NCCL is
gloo over copies in the host's memory. Modules are changed when they are imported: this one imports none of the project before.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "machine"
DEVICES: Final = 2
NAME: Final = "NVIDIA H100 80GB HBM3"
# Of the roofline: FLOP/s by type, bytes/s of memory and of copies to the host, seconds of the shortest kernel.
PEAK_FLOPS: Final = {"bfloat16": 700e12, "float16": 700e12, "float32": 50e12, "float64": 50e12, "tf32": 350e12}
MEMORY_Bps: Final = 2.5e12
HOST_Bps: Final = 50e9
SHORTEST_S: Final = 2e-6
_FAMILIES: Final = "FAKE_MACHINE_FAMILIES"
# Elements of the largest tensor that is computed while training.
_EVERYTHING: Final = 1 << 40


class Patches(importlib.abc.MetaPathFinder):
    """Changes modules when they are imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        change = _CHANGES.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if change is not None else None
        if spec is None or spec.loader is None or change is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def environment(families: str = "") -> dict[str, str]:
    """Environment of processes whose ranks are on this machine. families: that are trained, all if empty."""
    root = str(Path(__file__).parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(FOLDER), root]), _FAMILIES: families}


def _change_ranks(module: Any) -> None:
    """Ranks that want a GPU have one before they join the others."""
    join = module.join

    def join_with_gpu(place: Any, store: Any, timeout_s: float, accelerator: bool = False, *more: Any) -> None:
        if accelerator:
            _install(place.rank, place.ranks)
        join(place, store, timeout_s, accelerator, *more)

    module.join = join_with_gpu


def _change_training(module: Any) -> None:
    """Training computes values, and is timed by the host's clock."""
    train = module.train

    def train_with_values(*arguments: Any) -> Any:
        from scaleproof.validator.capture.backend import registration, values
        from scaleproof.validator.capture.backend.memory import Content

        Clock.is_hosts = True
        values.COMPUTED_FLOATS = registration.COMPUTED_FLOATS = values.INVENTED_FLOATS = _EVERYTHING  # type: ignore[misc]
        # also memory that is overwritten next, as that of gathered parameters
        values.Values.content = lambda *_: Content.EXACT  # type: ignore[method-assign]
        return train(*arguments)

    module.train = train_with_values


def _change_sizes(module: Any) -> None:
    """All kernels are timed in full, and layers and optimizers of tiny models."""
    tiny = module.TINY
    module.FULL = replace(
        module.FULL, layers=[(model, kind, samples) for model, _, samples in tiny.layers for kind in ("fp32", "bf16")],
        optimizer_parameters=tiny.optimizer_parameters, message_bytes=tiny.message_bytes, memory_bytes=[2**20, 2**28],
        budget_s=12.0,
    )  # fmt: skip


def _change_scenarios(module: Any) -> None:
    """Tiny models are trained."""
    one = module.DRY.single
    others = [replace(training, name=f"{training.name}-again", precision="bf16") for training in one]
    module.FULL = replace(module.DRY, single=(*one, *others), replicated=replace(module.DRY.replicated, precision="bf16"))
    over, wanted = module._over, os.environ.get(_FAMILIES, "").split()
    if wanted:
        module._over = lambda ranks: {name: fields for name, fields in over(ranks).items() if name in wanted}


_CHANGES: Final[dict[str, Callable[[Any], None]]] = {
    "scaleproof.validator.launch.rank": _change_ranks,
    "scaleproof.validator.strategy.train": _change_training,
    "scaleproof.validator.calibration.gpu_sizes": _change_sizes,
    "scaleproof.proof.gpu_check.scenarios": _change_scenarios,
}


class Clock:
    """busy_s: seconds that this rank's kernels have taken so far. is_hosts: whether events have the host's times."""

    busy_s = 0.0
    is_hosts = False


def _install(rank: int, ranks: int) -> None:
    """Gives this rank its GPU."""
    import torch

    from scaleproof.validator.capture.backend import registration
    from scaleproof.validator.capture.backend.streams import EventBase
    from scaleproof.validator.capture.context import ScriptContext
    from scaleproof.validator.capture.job import CaptureJob, DeviceProperties, Script
    from scaleproof.validator.capture.playing import rank_device
    from scaleproof.validator.capture.trace import RankTrace
    from scaleproof.validator.kernels.devices import shipped

    class Timeline(RankTrace):
        """Advances the clock by each kernel, and records nothing."""

        def add(self, kind: Any, place: Any = None, **columns: Any) -> None:
            if "flops" in columns:
                Clock.busy_s += _seconds(columns)

        def allocated(self, number: int, size: int) -> None:
            pass

        def freed(self, number: int) -> None:
            pass

        def holds(self, number: int, category: Any, module: str = "") -> None:
            pass

        def answer(self, operator: str, policy: str) -> None:
            pass

    def record(event: Any, stream: Any = None) -> None:
        event.busy_s, event.host_s = Clock.busy_s, time.perf_counter()

    def elapsed_time(event: Any, end: Any) -> float:
        return 1e3 * float(end.host_s - event.host_s if Clock.is_hosts else end.busy_s - event.busy_s)

    for name, function in (("record", record), ("elapsed_time", elapsed_time), ("wait", lambda *_: None)):
        setattr(EventBase, name, function)
    gpu = shipped(NAME)
    assert gpu is not None
    job = CaptureJob(Script(""), max(ranks, DEVICES), DEVICES, replace(DeviceProperties.of(gpu), name=NAME), 1, "balanced")

    def unfused(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: Any = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        if not Clock.is_hosts:
            return fused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        unfused = torch.ops.aten._scaled_dot_product_attention_math
        return unfused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]

    # processors compute the unfused one; no time of the host is of interest
    fused, registration.scaled_dot_product_attention = registration.scaled_dot_product_attention, unfused  # type: ignore[attr-defined]
    rank_device._calibrate = lambda _: None  # type: ignore[assignment]
    folder = Path(tempfile.gettempdir())
    rank_device.RankDevice(job, rank, folder, Timeline(ScriptContext(folder)), _Gloo).install()  # type: ignore[arg-type]
    cuda: Any = torch.cuda
    cuda.CUDAGraph, cuda.graph = _Graph, _captured
    _keep_values_of_storages(torch.UntypedStorage)


def _keep_values_of_storages(storage: Any) -> None:
    """Makes storages copy their values to the host, as parameters that are written to a file."""
    to_host = storage.cpu

    def cpu(this: Any) -> Any:
        copied = to_host(this)
        if Clock.is_hosts and this.device.type == "cuda" and this.nbytes():
            ctypes.memmove(copied.data_ptr(), this.data_ptr(), this.nbytes())
        return copied

    storage.cpu = cpu


def _seconds(columns: dict[str, Any]) -> float:
    moved = columns["bytes_read"] + columns["bytes_written"]
    if "host" in columns["name"]:
        return SHORTEST_S + float(moved / 2 / HOST_Bps)
    import torch

    kind = next((kind for _, kind, _ in columns["signature"].inputs if kind in PEAK_FLOPS), "float32")
    if kind == "float32" and torch.get_float32_matmul_precision() != "highest":
        kind = "tf32"
    return SHORTEST_S + max(columns["flops"] / PEAK_FLOPS[kind], moved / MEMORY_Bps)


class _Gloo:
    """`torch.distributed` with ranks that communicate through the host's memory, and say that they use NCCL."""

    def __init__(self, *_: Any) -> None:
        pass

    def install(self) -> None:
        """Replaces functions."""
        import torch
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        from scaleproof.validator.capture.communication.nccl import NcclGroup

        init = dist.init_process_group

        def init_process_group(backend: str, **keywords: Any) -> None:
            init("staged" if backend == "nccl" else backend, **keywords)
            for module in (dist, distributed_c10d):
                module.get_backend = lambda group=None: backend  # type: ignore[attr-defined]

        dist.init_process_group = init_process_group  # type: ignore[assignment]
        # its options are ignored by other backends
        dist.ProcessGroupNCCL = NcclGroup
        # the reducer has no timer of a device without kernels
        logger: Any = torch._C._distributed_c10d.Logger
        logger.set_runtime_stats_and_log = lambda _: None


class _Graph:
    """A graph of kernels, which takes their time."""

    busy_s = 0.0

    def replay(self) -> None:
        Clock.busy_s += self.busy_s


@contextlib.contextmanager
def _captured(graph: _Graph) -> Iterator[None]:
    """What is launched within belongs to the graph."""
    begin_s = Clock.busy_s
    yield
    graph.busy_s, Clock.busy_s = Clock.busy_s - begin_s, begin_s
