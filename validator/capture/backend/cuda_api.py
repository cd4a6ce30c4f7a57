"""`torch.cuda` and `torch.accelerator` of the GPU that does not exist."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import torch

from scaleproof.simulator.captured.record import EventKind
from scaleproof.validator.capture.backend import legacy_types, replace_functions
from scaleproof.validator.capture.backend.memory import Arena
from scaleproof.validator.capture.backend.streams import on_stream, stream_types
from scaleproof.validator.capture.job import DeviceProperties
from scaleproof.validator.capture.trace import RankTrace

# Versions and states that scripts are given, as of a GPU in use: none is measured.
NCCL_VERSION: Final = (2, 27, 5)
_CUDA, _CUDNN = "12.8", 91_002
_CELSIUS, _WATTS, _PERCENT = 50, 500, 100
_GRAPH_POOL: Final = (0, 1)

# Recording what is allocated, which PyTorch documents under names of its own.
_SNAPSHOTS: Final[Mapping[str, Callable[..., Any]]] = {
    "_record_memory_history": lambda *_, **__: None,
    "_snapshot": lambda *_, **__: {"segments": [], "device_traces": [[]]},
}
_ACCELERATOR_MEMORY: Final = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
    "reset_peak_memory_stats", "reset_accumulated_memory_stats",
)  # fmt: skip


class _CurrentDevice(contextlib.ContextDecorator):
    """`torch.cuda.device` and such: there is one device per process."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.idx = -1

    def __enter__(self) -> _CurrentDevice:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Runtime:
    """`torch.cuda.cudart()`: functions of CUDA's runtime, of which all succeed. memory: returns free and all bytes."""

    def __init__(self, memory: Callable[..., tuple[int, int]]) -> None:
        self.cudaError = types.SimpleNamespace(success=0)
        self.cudaMemGetInfo = memory

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return _always(0)


def install(trace: RankTrace, arena: Arena, device: DeviceProperties, index: int, devices: int) -> None:
    """Replaces the functions of `torch.cuda` and `torch.accelerator`, and what they share with `torch`."""
    stream, event = stream_types(trace, index)
    default = stream(stream_id=0)
    streams = {0: default}

    def current_stream(device: Any = None) -> Any:
        number = trace.context.stream
        return streams.setdefault(number, default if number == 0 else stream(stream_id=number))

    def set_stream(stream: Any) -> None:
        if stream is not None:
            trace.context.stream = stream.stream_id

    def synchronize(device: Any = None) -> None:
        trace.add(EventKind.SYNCHRONIZE)

    memory = _memory(arena, device)
    shared: dict[str, Any] = {
        "is_available": _always(True), "device_count": _always(devices), "current_stream": current_stream,
        "set_stream": set_stream, "synchronize": synchronize, "empty_cache": _always(None),
    }  # fmt: skip
    major, minor = device.capability
    own: dict[str, Any] = {
        "is_initialized": _always(True), "init": _always(None), "_lazy_init": _always(None), "current_device": _always(index),
        "set_device": _always(None), "device": _CurrentDevice, "device_of": _CurrentDevice, "Stream": stream, "Event": event,
        "ExternalStream": stream, "default_stream": _always(default), "get_stream_from_external": _always(default),
        "stream": lambda stream: on_stream(trace, stream), "get_device_properties": _always(device.plain(index)),
        "get_device_name": _always(device.name), "get_device_capability": _always(device.capability),
        "get_arch_list": _always([f"sm_{major}{minor}"]), "get_gencode_flags": _always(""),
        "is_bf16_supported": _always(major >= 8), "is_tf32_supported": _always(major >= 8),
        "is_current_stream_capturing": _always(False), "can_device_access_peer": _always(True), "ipc_collect": _always(None),
        "utilization": _always(_PERCENT), "memory_usage": _always(_PERCENT), "temperature": _always(_CELSIUS),
        "power_draw": _always(1000 * _WATTS), "clock_rate": _always(device.plain(index).clock_rate // 1000),
        "cudart": _always(_Runtime(memory["mem_get_info"])), "check_error": _always(None), "current_blas_handle": _always(0),
        "current_solver_handle": _always(0), "set_sync_debug_mode": _always(None), "get_sync_debug_mode": _always(0),
        "graph_pool_handle": _always(_GRAPH_POOL), "_exchange_device": _always(index),
        "_maybe_exchange_device": _always(index), "_device_count_nvml": _always(devices),
        "_get_nvml_device_index": _always(index),
    }  # fmt: skip
    replace_functions(torch.cuda, **shared, **own, **memory)
    setattr(torch.cuda, "default_generators", tuple(_CudaGenerator(place) for place in range(devices)))  # noqa: B010
    replace_functions(torch.cuda.memory, MemPool=_MemoryPool, **_SNAPSHOTS)
    setattr(torch.cuda, "MemPool", _MemoryPool)  # noqa: B010
    replace_functions(
        torch.cuda.nvtx, range_push=_always(0), range_pop=_always(0), mark=_always(None), range_start=_always(0),
        range_end=_always(None),
    )  # fmt: skip
    types_of_data = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
    replace_functions(torch.cuda.nccl, version=_always(NCCL_VERSION), is_available=_always(False))
    replace_functions(
        torch.accelerator, **shared, current_accelerator=_always(torch.device("cuda")), current_device_index=_always(index),
        current_device_idx=_always(index), set_device_index=_always(None), set_device_idx=_always(None),
        device_index=_CurrentDevice, empty_host_cache=_always(None), get_memory_info=memory["mem_get_info"],
        get_device_capability=_always({"supported_dtypes": types_of_data}),
        **{name: memory[name] for name in _ACCELERATOR_MEMORY},
    )  # fmt: skip
    replace_functions(torch, Stream=stream, Event=event, Generator=_generators(index))
    # scripts ask for these versions before they use 16 bits
    torch.version.cuda = _CUDA
    replace_functions(torch.backends.cuda, is_built=_always(True))
    replace_functions(torch.backends.cudnn, version=_always(_CUDNN), is_available=_always(True))
    replace_functions(
        torch._C, _get_accelerator=lambda check=None: torch.device("cuda"), _set_linalg_preferred_backend=_always(None),
        _set_blas_preferred_backend=_always(None), _cuda_getCurrentRawStream=lambda device: trace.context.stream,
        _show_config=_always("PyTorch built with:\n  - CUDA Runtime"),
    )  # fmt: skip
    legacy_types.install()
    _install_profiler()
    replace_functions(
        torch.Tensor, pin_memory=lambda tensor, device=None: tensor, is_pinned=_always(False), record_stream=_always(None)
    )  # fmt: skip


def _install_profiler() -> None:
    """Makes profilers look at the host alone, since nothing runs on the device."""
    profile: Any = torch.autograd.profiler.profile
    init = profile.__init__

    def without_device(this: Any, *arguments: Any, use_cuda: bool = False, use_device: Any = None, **keywords: Any) -> None:
        init(this, *arguments, **keywords)

    profile.__init__ = without_device
    replace_functions(torch.autograd.profiler, emit_nvtx=lambda enabled=True, record_shapes=False: contextlib.nullcontext())


def _memory(arena: Arena, device: DeviceProperties) -> dict[str, Callable[..., Any]]:
    """Functions of memory. Host memory that is pinned counts as none."""

    def statistics(device: Any = None) -> Mapping[str, int]:
        known = {"current": arena.live_bytes, "peak": arena.peak_bytes}
        names = (f"{kind}_bytes.all" for kind in ("allocated", "active", "reserved", "requested"))
        return collections.defaultdict(int, {f"{name}.{when}": size for name in names for when, size in known.items()})

    def nested(device: Any = None) -> Mapping[str, Any]:
        result: Mapping[str, Any] = _nested()
        for name, size in statistics().items():
            kind, pool, when = name.split(".")
            result[kind][pool][when] = size
        return result

    def reset(device: Any = None) -> None:
        arena.reset_peak()

    def peak(device: Any = None) -> int:
        return arena.peak_bytes

    def live(device: Any = None) -> int:
        return arena.live_bytes

    def free_and_all() -> tuple[int, int]:
        return max(0, device.memory_bytes - arena.live_bytes), device.memory_bytes

    def allocate(size: int, device: Any = None, stream: Any = None) -> int:
        kept = arena.empty((size,), (1,), torch.uint8)
        pointers[kept.data_ptr()] = kept
        return kept.data_ptr()

    pointers: dict[int, torch.Tensor] = {}
    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved", "memory_cached", "device_memory_used"), live),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "max_memory_cached"), peak),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), reset),
        "memory_stats": statistics, "memory_stats_as_nested_dict": nested, "memory_summary": _always(""),
        "host_memory_stats": lambda: collections.defaultdict(int), "host_memory_stats_as_nested_dict": _nested,
        "reset_accumulated_host_memory_stats": _always(None), "reset_peak_host_memory_stats": _always(None),
        "memory_snapshot": _always([]), "reset_accumulated_memory_stats": _always(None),
        "mem_get_info": lambda device=None: free_and_all(), "set_per_process_memory_fraction": _always(None),
        "get_per_process_memory_fraction": _always(1.0), "list_gpu_processes": _always(""),
        "get_allocator_backend": _always("native"), "caching_allocator_enable": _always(None),
        "caching_allocator_disabled": contextlib.nullcontext, "change_current_allocator": _always(None),
        "caching_allocator_alloc": allocate, "caching_allocator_delete": lambda mem_ptr: pointers.pop(mem_ptr, None),
        "use_mem_pool": lambda pool, device=None: contextlib.nullcontext(),
    }  # fmt: skip


class _MemoryPool:
    """`torch.cuda.MemPool`: all pools are one."""

    id = _GRAPH_POOL

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        self.allocator = allocator

    def use_count(self) -> int:
        """Number of users: one."""
        return 1

    def snapshot(self, include_traces: bool = True) -> list[Any]:
        """What is allocated: not recorded."""
        return []


def _nested() -> Any:
    return collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(int)))


_Generator: Any = torch.Generator


class _CudaGenerator(_Generator):  # type: ignore[misc]
    """A generator of a GPU: one of the host, with the state of the GPU's."""

    def __new__(cls, index: int) -> Self:
        return super().__new__(cls)  # type: ignore[no-any-return]

    def __init__(self, index: int) -> None:
        self._device, self._offset = torch.device("cuda", index), 0

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return self._device

    def get_state(self) -> torch.Tensor:
        """Seed and offset as bytes."""
        # seeds have no sign, and 64 bits
        seed = (self.initial_seed() + (1 << 63)) % (1 << 64) - (1 << 63)
        return torch.tensor([seed, self._offset], dtype=torch.int64).view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> _CudaGenerator:
        """Takes a seed and an offset."""
        seed, offset = new_state.cpu().contiguous().view(torch.int64)[:2].tolist()
        self.manual_seed(seed)
        self._offset = offset
        return self

    def get_offset(self) -> int:
        """The offset."""
        return self._offset

    def set_offset(self, offset: int) -> _CudaGenerator:
        """Takes an offset."""
        self._offset = offset
        return self

    def clone_state(self) -> _CudaGenerator:
        """Another generator in the same state."""
        return _CudaGenerator(self._device.index).set_state(self.get_state())

    def graphsafe_get_state(self) -> _CudaGenerator:
        """A generator in the same state."""
        return self.clone_state()

    def graphsafe_set_state(self, state: _CudaGenerator) -> _CudaGenerator:
        """Takes the state of another generator."""
        return self.set_state(state.get_state())

    def __reduce__(self) -> Any:
        return _CudaGenerator, (self._device.index,)


def _generators(index: int) -> Any:
    """The type of generators, of the host and of GPUs."""
    original = torch.Generator

    class Instances(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class Generator(metaclass=Instances):
        def __new__(cls, device: Any = "cpu") -> Any:
            wanted = torch.device(device)
            return original() if wanted.type != "cuda" else _CudaGenerator(index if wanted.index is None else wanted.index)

    return Generator


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value
