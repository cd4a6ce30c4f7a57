"""`torch.cuda` and `torch.accelerator` of the GPU that does not exist."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from scaleproof.simulator.captured.record import EventKind
from scaleproof.validator.capture.backend import replace_functions
from scaleproof.validator.capture.backend.memory import Arena
from scaleproof.validator.capture.backend.streams import on_stream, stream_types
from scaleproof.validator.capture.job import DeviceProperties
from scaleproof.validator.capture.trace import RankTrace

_SEED: Final = 0
_NCCL: Final = (2, 27, 5)
# Bytes of a generator's state.
_STATE_BYTES: Final = 16


class _CurrentDevice(contextlib.ContextDecorator):
    """`torch.cuda.device`: there is one device per process."""

    def __init__(self, device: Any = None) -> None:
        self.idx = -1

    def __enter__(self) -> _CurrentDevice:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def install(trace: RankTrace, arena: Arena, device: DeviceProperties, index: int, devices: int) -> None:
    """Replaces the functions of `torch.cuda` and `torch.accelerator`, and what they share with `torch`."""
    stream, event = stream_types(trace, index)
    default = stream(stream_id=0)
    streams = {0: default}

    def current_stream(_: Any = None) -> Any:
        number = trace.context.stream
        return streams.setdefault(number, default if number == 0 else stream(stream_id=number))

    def set_stream(of: Any) -> None:
        if of is not None:
            trace.context.stream = of.stream_id

    def synchronize(_: Any = None) -> None:
        trace.add(EventKind.SYNCHRONIZE)

    shared: dict[str, Callable[..., Any]] = {
        "is_available": _always(True), "device_count": _always(devices), "current_stream": current_stream,
        "set_stream": set_stream, "synchronize": synchronize, **_memory(arena, device),
    }  # fmt: skip
    architecture = f"sm_{''.join(map(str, device.capability))}"
    own: dict[str, Any] = {
        "is_initialized": _always(True), "init": _always(None), "_lazy_init": _always(None), "current_device": _always(index),
        "set_device": _always(None), "device": _CurrentDevice, "device_of": _CurrentDevice, "Stream": stream, "Event": event,
        "ExternalStream": stream, "default_stream": _always(default), "stream": lambda of: on_stream(trace, of),
        "get_device_properties": _always(device.plain(index)), "get_device_name": _always(device.name),
        "get_device_capability": _always(device.capability), "get_arch_list": _always([architecture]),
        "is_bf16_supported": _always(device.capability >= (8, 0)), "is_tf32_supported": _always(device.capability >= (8, 0)),
        "is_current_stream_capturing": _always(False), "can_device_access_peer": _always(True), "ipc_collect": _always(None),
        "utilization": _always(100), "_exchange_device": _always(index), "_maybe_exchange_device": _always(index),
        "_device_count_nvml": _always(devices), "_get_nvml_device_index": _always(index), **_random(),
    }  # fmt: skip
    # torch.cuda has the functions of these modules too
    for module in (torch.cuda, torch.cuda.random, torch.cuda.memory, torch.cuda.streams):
        for name, function in (shared | own).items():
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, function)
    replace_functions(torch.cuda.nvtx, range_push=_always(None), range_pop=_always(None), mark=_always(None))
    replace_functions(torch.cuda.nccl, version=_always(_NCCL))
    replace_functions(
        torch.accelerator, **shared, current_accelerator=lambda check_available=False: torch.device("cuda"),
        current_device_index=_always(index), current_device_idx=_always(index), set_device_index=_always(None),
        set_device_idx=_always(None), device_index=_CurrentDevice,
    )  # fmt: skip
    replace_functions(torch, Stream=stream, Event=event, Generator=_generators())
    replace_functions(torch._C, _get_accelerator=lambda _=None: torch.device("cuda"))
    replace_functions(
        torch.Tensor, pin_memory=lambda tensor, *_, **__: tensor, is_pinned=_always(False), record_stream=_always(None)
    )  # fmt: skip


def _memory(arena: Arena, device: DeviceProperties) -> dict[str, Callable[..., Any]]:
    def statistics(*_: Any, **__: Any) -> Mapping[str, int]:
        known = {"current": arena.live_bytes, "peak": arena.peak_bytes}
        names = (f"{kind}_bytes.all" for kind in ("allocated", "active", "reserved", "requested"))
        return collections.defaultdict(int, {f"{name}.{when}": size for name in names for when, size in known.items()})

    def reset(*_: Any) -> None:
        arena.reset_peak()

    def peak(*_: Any) -> int:
        return arena.peak_bytes

    def live(*_: Any) -> int:
        return arena.live_bytes

    return {
        "memory_allocated": live, "max_memory_allocated": peak, "memory_reserved": live, "max_memory_reserved": peak,
        "memory_stats": statistics, "memory_summary": _always(""), "memory_snapshot": _always([]), "empty_cache": _always(None),
        "reset_peak_memory_stats": reset, "reset_max_memory_allocated": reset, "reset_accumulated_memory_stats": _always(None),
        "mem_get_info": lambda *_: (max(0, device.memory_bytes - arena.live_bytes), device.memory_bytes),
        "set_per_process_memory_fraction": _always(None),
    }  # fmt: skip


def _random() -> dict[str, Callable[..., Any]]:
    state = torch.zeros(_STATE_BYTES, dtype=torch.uint8)
    return {
        "manual_seed": _always(None), "manual_seed_all": _always(None), "seed": _always(None), "seed_all": _always(None),
        "initial_seed": _always(_SEED), "get_rng_state": lambda *_: state.clone(), "set_rng_state": _always(None),
        "get_rng_state_all": lambda: [state.clone()], "set_rng_state_all": _always(None),
    }  # fmt: skip


def _generators() -> Any:
    """The type of generators: those of CUDA are on the CPU."""
    original = torch.Generator

    class Instances(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    class Generator(metaclass=Instances):
        def __new__(cls, device: Any = "cpu") -> Any:
            return original()

    return Generator


def _always(value: Any) -> Callable[..., Any]:
    # a function of its own each, since some of PyTorch's registries have one entry per function
    return lambda *_, **__: value
