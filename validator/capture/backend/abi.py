"""The CUDA device of a PyTorch build without CUDA: replaces three tables of functions, after checking that they are there.

PyTorch's builds for processors know CUDA tensors but not the device. What is missing are a device guard, in the registry
`device_guard_impl_registry`, and the hooks `CUDAHooksInterface`, whose base class says that there is no GPU. Places of
functions in both tables are counted in the headers that PyTorch ships, so that they are those of the installed version.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import sys
from pathlib import Path
from typing import Any, Final

import torch

from scaleproof.simulator.common.errors import RunError

_CUDA: Final = 1
_PRIVATE_USE: Final = 20
_DEVICE_TYPES: Final = 24
_REGISTRY: Final = "_ZN3c104impl26device_guard_impl_registryE"
_HOOKS: Final = "_ZTVN2at18CUDAHooksInterfaceE"
# Itanium C++ ABI: a table begins with the offset to the top and the type, and has one entry more than there are functions for
# each destructor.
_HEADER: Final = 2
_VIRTUAL: Final = re.compile(r"virtual\s+[^;{]*?(~?\w+)\s*\(")
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)
_CPU_ALLOCATOR: Final = "_ZN3c1015GetCPUAllocatorEv"
_READ_WRITE: Final = 3
# What ctypes and PyTorch refer to by address only.
_kept: list[Any] = []


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.CUDA


def install_device(devices: int, index: int) -> None:
    """Gives this process `devices` CUDA devices, of which `index` is the current one. Raises RunError for a build of PyTorch
    that is not the expected one."""
    check_build()
    try:
        _install_guard(devices, index)
        _install_hooks(devices, index)
    except (OSError, ValueError, AttributeError) as error:
        raise _refusal(f"PyTorch {torch.__version__} lacks what a capture replaces ({error})") from None
    torch.cuda._lazy_init = lambda: None
    _check_device(index)


def check_training() -> None:
    """Trains a layer, so that an unknown build is refused here and does not fail somewhere in a script. Raises RunError."""
    try:
        layer = torch.nn.Linear(2, 2).to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            result = layer(torch.ones(2, 2, device="cuda"))
        result.sum().backward()
    except RuntimeError as error:
        raise _refusal(f"PyTorch {torch.__version__} does not train on a recorded device ({error})") from None
    weights = layer.weight.grad
    if weights is None or not weights.is_cuda or result.dtype is not torch.bfloat16:
        raise _refusal(f"PyTorch {torch.__version__} trains differently on a recorded device")


def check_build() -> None:
    """Raises RunError where the installed PyTorch, the system or the processor is not one that captures were written for."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise _refusal(f"captures run on Linux on x86-64 or ARM, not on {sys.platform} on {platform.machine()}")
    if torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None:
        raise _refusal(f"PyTorch {torch.__version__} is built for GPUs, whose kernels would run instead of the recording ones")


def _refusal(reason: str) -> RunError:
    return RunError(f"{reason}; install PyTorch's CPU build in an environment for captures: pip install torch "
                    "--index-url https://download.pytorch.org/whl/cpu")  # fmt: skip


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _header(path: str, struct: str) -> str:
    """The body of a struct in a header that PyTorch ships. Raises ValueError or OSError."""
    text = re.sub(r"//.*", "", (Path(torch.__file__).parent / "include" / path).read_text(encoding="utf-8"))
    begin = re.search(rf"struct\s+(?:\w+\s+)?{struct}\b[^;]*?\{{", text)
    if begin is None:
        raise ValueError(f"{path} has no {struct}")
    return text[begin.end() : text.index("\n};", begin.end())]


def _functions(body: str) -> list[str]:
    """Names of virtual functions in the order of the table; a destructor has two entries."""
    names: list[str] = []
    for name in _VIRTUAL.findall(body):
        names += [name, name] if name.startswith("~") else [name]
    return names


def _install_guard(devices: int, index: int) -> None:
    """Registers the guard of Python devices as that of CUDA devices, with its own number of devices and current device."""
    registry = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(_library("libc10.so"), _REGISTRY)
    guard = _Guard()
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    if not registry[_PRIVATE_USE]:
        raise ValueError("the registry of device guards has another layout")
    registry[_CUDA], registry[_PRIVATE_USE] = registry[_PRIVATE_USE], None
    names = _functions(_header("c10/core/impl/DeviceGuardImplInterface.h", "DeviceGuardImplInterface"))
    table = ctypes.c_void_p.from_address(_address(registry[_CUDA]))
    # a copy that is this object's own, since others of its class share the original
    copied = (ctypes.c_void_p * (_HEADER + len(names) + 2))()
    ctypes.memmove(copied, _address(table.value) - _HEADER * _POINTER, ctypes.sizeof(copied) - 2 * _POINTER)
    # a c10::Device is two bytes, its type and its index, and a c10::Stream a device and a number in a second register; those of
    # Python would call Python while an error of a hook of the backward pass is raised, which ends the process
    device = _CUDA | index << 8
    results = {"type": _CUDA, "deviceCount": devices}
    results |= dict.fromkeys(("getDevice", "exchangeDevice", "getStream", "exchangeStream"), device)
    for name, value in results.items():
        copied[_HEADER + names.index(name)] = _returning(value)
    table.value = ctypes.addressof(copied) + _HEADER * _POINTER
    _kept.extend((guard, copied))


def _install_hooks(devices: int, index: int) -> None:
    """Replaces functions in the table of the hooks, which the only object of the class uses."""
    base = _functions(_header("ATen/detail/AcceleratorHooksInterface.h", "AcceleratorHooksInterface"))
    # overrides are at their base's place
    own = [name for name in _functions(_header("ATen/detail/CUDAHooksInterface.h", "CUDAHooksInterface")) if name not in base]
    places = {name: place for place, name in enumerate([*base, *own])}
    table = ctypes.addressof((ctypes.c_void_p * (_HEADER + len(places))).in_dll(_library("libtorch_cpu.so"), _HOOKS))
    page = table - table % mmap.PAGESIZE
    protect = ctypes.CDLL(None).mprotect
    if protect(ctypes.c_void_p(page), ctypes.c_size_t(table - page + _POINTER * (_HEADER + len(places))), _READ_WRITE):
        raise ValueError("the table of CUDAHooksInterface cannot be made writable")
    results = {
        "hasCUDA": 1, "isBuilt": 1, "isAvailable": 1, "hasPrimaryContext": 1, "deviceCount": devices, "getNumGPUs": devices,
        "getCurrentDevice": index, "current_device": index, "init": 0, "deviceSynchronize": 0, "setCurrentDevice": 0,
        "isPinnedPtr": 1,
    }  # fmt: skip
    functions = {name: _returning(value) for name, value in results.items()}
    # pinned memory is the host's
    functions["getPinnedMemoryAllocator"] = _address(ctypes.cast(_library("libc10.so")[_CPU_ALLOCATOR], ctypes.c_void_p).value)
    for name, function in functions.items():
        ctypes.c_void_p.from_address(table + _POINTER * (_HEADER + places[name])).value = function


def _returning(value: int) -> int:
    """The address of a function that returns a number of 16 bits, and 0 in the second register of results. PyTorch calls some
    for each node of the backward pass, which functions of Python would slow down."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    if platform.machine() == "x86_64":
        # mov eax, value; xor edx, edx; ret
        page.write(b"\xb8" + value.to_bytes(4, "little") + b"\x31\xd2\xc3")
    else:
        # movz w0, value; movz x1, 0; ret
        page.write(b"".join(word.to_bytes(4, "little") for word in (0x52800000 | value << 5, 0xD2800001, 0xD65F03C0)))
    _kept.append(page)
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


def _address(value: int | None) -> int:
    if not value:
        raise ValueError("a table of functions is empty")
    return value


def _check_device(index: int) -> None:
    """Checks that PyTorch sees the device. Raises RunError."""
    accelerator = torch._C._get_accelerator()
    if accelerator.type != "cuda":
        raise _refusal(f"PyTorch {torch.__version__} has another table of device functions: its accelerator is {accelerator}")
