"""Memory of the GPU that does not exist: reserved addresses, whose pages stay untouched unless values are computed."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import defaultdict
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch._C import DispatchKey, DispatchKeySet

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.backend import replace_functions

CPU_KEYS: Final = DispatchKeySet(DispatchKey.CPU)
# Sizes are those of the caching allocator's blocks.
_ROUND_BYTES: Final = 512
_ARENA_BYTES: Final = 1 << 44
_PROTECTION: Final = 3  # PROT_READ | PROT_WRITE
_FLAGS: Final = 0x4022  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
# Most bytes of a storage whose values are copied to the host.
_MOST_COPIED_BYTES: Final = 1 << 22
_FAILED: Final = ctypes.c_void_p(-1).value
_DLPACK_CPU, _DLPACK_CUDA = 1, 2
_DLPACK_UNSIGNED: Final = 1
_Storage: Any = torch._C.StorageBase
_VIEW: Final = torch.ops.aten.view.dtype
_AS_STRIDED: Final = torch.ops.aten.as_strided.default
_SET: Final = torch.ops.aten.set_.source_Storage_storage_offset


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("index", ctypes.c_int))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _DLDevice), ("dimensions", ctypes.c_int), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("width", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )  # fmt: skip


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# A manager and its shape and strides are in a slot.
_SLOT_BYTES: Final = 128
_MOST_SLOTS: Final = 1 << 21
_SHAPE: Final = ctypes.c_int64 * 2
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Content(IntEnum):
    """What is known of the values of an allocation: nothing, invented ones, or those that training would have."""

    UNKNOWN = 0
    INVENTED = 1
    EXACT = 2


class DeviceBlock:
    """An allocation. size: its bytes as requested; capacity: bytes of its addresses; resized: its present bytes. collective:
    that its values come from, as if other ranks had those of this one; empty if none."""

    __slots__ = ("address", "capacity", "collective", "content", "number", "resized", "size")

    def __init__(self, number: int, address: int, size: int, capacity: int) -> None:
        self.number, self.address, self.size, self.capacity, self.resized = number, address, size, capacity, size
        self.content, self.collective = Content.UNKNOWN, ""


class AllocationListener(Protocol):
    """What is notified of allocations and their ends, on any thread."""

    def allocated(self, number: int, size: int) -> None:
        """An allocation of `size` bytes begins."""

    def freed(self, number: int) -> None:
        """It ends."""


class Arena:
    """Reserved addresses for all tensors of a device.

    PyTorch frees tensors on any thread, also while an exception is on its way, when no Python code can run. So a function of
    the C library notes the end of a tensor: `sem_post` adds one to the first number of its manager. `collect` finds them.
    """

    def __init__(self, index: int, listener: AllocationListener) -> None:
        """Reserves addresses. index: of the CUDA device. Raises RunError where the system refuses."""
        self._index, self._listener = index, listener
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        base = libc.mmap(None, _ARENA_BYTES, _PROTECTION, _FLAGS, -1, 0)
        if base in (None, _FAILED):
            size = _ARENA_BYTES >> 40
            raise RunError(f"the system refuses {size} TiB of addresses for tensors without values; allow overcommitment: "
                           "sysctl vm.overcommit_memory=0, ulimit -v unlimited")  # fmt: skip
        self._next = int(base)
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._blocks: dict[int, DeviceBlock] = {}
        # managers of DLPack tensors: their first numbers are 0 until the tensors end
        self._slots = np.zeros((_MOST_SLOTS, _SLOT_BYTES // 8), np.int64)
        self._slots_address = self._slots.ctypes.data
        self._ended = self._slots[:, 0]
        self._used, self._unused = 0, list[int]()
        # the block of a tensor on the device, or the tensor that one on the host is an alias of
        self._owned: dict[int, DeviceBlock | torch.Tensor] = {}
        self._note_end = ctypes.cast(libc.sem_post, ctypes.c_void_p).value
        self._lock = threading.RLock()
        self._count = 0
        self._live_bytes = self._peak_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Bytes of present allocations, each rounded as the caching allocator does."""
        self.collect()
        return self._live_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes since the last reset."""
        return self._peak_bytes

    def reset_peak(self) -> None:
        """Lets the peak begin at the present bytes."""
        self._peak_bytes = self.live_bytes

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on addresses of its own, whose values are unknown."""
        wanted = _extent(size, stride) * item_bytes(dtype)
        block = self._allocate(wanted)
        whole = self._from_dlpack(_DLPACK_CUDA, self._index, block, block, wanted)
        return self._shaped(whole, size, stride, dtype)

    def _allocate(self, wanted: int) -> DeviceBlock:
        capacity = _rounded(max(wanted, 1))
        self.collect()
        with self._lock:
            free = self._free[capacity]
            if free:
                address = free.pop()
            else:
                address, self._next = self._next, self._next + capacity
            self._count += 1
            block = DeviceBlock(self._count, address, wanted, capacity)
            self._blocks[address] = block
            self._grow(_rounded(wanted))
        if wanted:
            self._listener.allocated(block.number, wanted)
        return block

    def _grow(self, by: int) -> None:
        self._live_bytes += by
        self._peak_bytes = max(self._peak_bytes, self._live_bytes)

    def _from_dlpack(
        self, kind: int, index: int, block: DeviceBlock, owned: DeviceBlock | torch.Tensor, length: int
    ) -> torch.Tensor:
        """The first addresses of a block as a tensor of `length` bytes. owned: what ends with it."""
        with self._lock:
            slot = self._unused.pop() if self._unused else self._used
            self._used = max(self._used, slot + 1)
            address = self._slots_address + slot * _SLOT_BYTES
            manager = _DLManagedTensor.from_address(address)
            sizes = address + ctypes.sizeof(_DLManagedTensor)
            shape = _SHAPE.from_address(sizes)
            shape[0], shape[1] = length, 1
            tensor = manager.tensor
            tensor.data, tensor.device.type, tensor.device.index, tensor.dimensions = block.address, kind, index, 1
            tensor.code, tensor.bits, tensor.width, tensor.offset = _DLPACK_UNSIGNED, 8, 1, 0
            tensor.shape, tensor.strides = sizes, sizes + ctypes.sizeof(ctypes.c_int64)
            manager.deleter = self._note_end
            self._owned[slot] = owned
            made: torch.Tensor = torch._C._from_dlpack(_new_capsule(address, b"dltensor", None))
            # PyTorch has copied it; from now on it says whether the tensor has ended
            tensor.data = 0
            return made

    def _shaped(self, of: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        # below autograd, so that the tensor is no view; the CPU's kernels of views never look at the memory
        with torch._C._AutoDispatchBelowAutograd():
            typed = of if dtype == torch.uint8 else _VIEW.redispatch(CPU_KEYS, of, dtype)
            shaped: torch.Tensor = _AS_STRIDED.redispatch(CPU_KEYS, typed, size, stride, 0)
            return shaped

    def collect(self) -> None:
        """Ends the allocations of tensors that have ended."""
        freed: list[int] = []
        with self._lock:
            # aliases on the host keep others alive until they are collected themselves
            while len(slots := np.flatnonzero(self._ended[: self._used])):
                for slot in slots.tolist():
                    self._ended[slot] = 0
                    owned = self._owned.pop(slot)
                    self._unused.append(slot)
                    if isinstance(owned, DeviceBlock):
                        del self._blocks[owned.address]
                        self._free[owned.capacity].append(owned.address)
                        self._live_bytes -= _rounded(owned.resized)
                        if owned.resized:
                            freed.append(owned.number)
                    del owned
        for number in freed:
            self._listener.freed(number)

    def block(self, tensor: torch.Tensor) -> DeviceBlock | None:
        """The allocation of a tensor; None for one that has no storage here."""
        return self._blocks.get(_address(tensor.untyped_storage()))

    def block_at(self, address: int) -> DeviceBlock | None:
        """The allocation at an address."""
        return self._blocks.get(address)

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU tensor on the same memory."""
        block = self.block(tensor)
        if block is None or not tensor.numel():
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        # the alias keeps the storage alive
        whole = self._from_dlpack(_DLPACK_CPU, 0, block, tensor, block.capacity)
        with torch._C._AutoDispatchBelowAutograd():
            typed = whole if tensor.dtype == torch.uint8 else whole.view(tensor.dtype)
            return typed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def move(self, tensor: torch.Tensor, to: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """Makes a tensor refer to the memory of another one."""
        moved: torch.Tensor = _SET.redispatch(CPU_KEYS, tensor, to.untyped_storage(), to.storage_offset(), size, stride)
        return moved

    def resize(self, block: DeviceBlock, size: int) -> None:
        """Changes the bytes of an allocation, as sharded parameters free and allocate their whole ones. Addresses stay."""
        if size == block.resized:
            return
        before, block.resized = block.resized, size
        if before:
            self._listener.freed(block.number)
        with self._lock:
            self._count += 1
            block.number = self._count
            self._grow(_rounded(size) - _rounded(before))
        block.content = Content.UNKNOWN
        if size:
            self._listener.allocated(block.number, size)

    def install_storage(self) -> None:
        """Makes storages of CUDA tensors begin and resize in this arena."""
        storage: Any = torch.UntypedStorage
        new = storage.__new__

        def made(cls: Any, *arguments: Any, device: Any = None, **keywords: Any) -> Any:
            if device is None or torch.device(device).type != "cuda":
                return new(cls, *arguments, **keywords, **({} if device is None else {"device": device}))
            given = arguments[0] if arguments else keywords.get("size", 0)
            # of bytes, whose number or values are given
            values = None if isinstance(given, int) else torch.tensor(list(given), dtype=torch.uint8)
            tensor = self.empty((given if values is None else len(values),), (1,), torch.uint8)
            if values is not None:
                tensor.copy_(values)
            return tensor.untyped_storage()

        resize, nbytes, to_host = _Storage.resize_, _Storage.nbytes, storage.cpu

        def resized(this: torch.UntypedStorage, size: int) -> Any:
            block = self.block_at(_address(this)) if this.device.type == "cuda" else None
            if block is None:
                return resize(this, size)
            self.resize(block, size)
            return this

        def length(this: torch.UntypedStorage) -> int:
            block = self.block_at(_address(this)) if this.device.type == "cuda" else None
            return int(nbytes(this)) if block is None else block.resized

        def on_host(this: torch.UntypedStorage) -> Any:
            block = self.block_at(_address(this)) if this.device.type == "cuda" else None
            if block is None:
                return to_host(this)
            if block.content is Content.UNKNOWN or not 0 < block.resized <= _MOST_COPIED_BYTES:
                # without values, which this memory does not have
                return torch.UntypedStorage(block.resized)  # type: ignore[no-untyped-call]
            values = bytearray(ctypes.string_at(block.address, block.resized))
            return torch.frombuffer(values, dtype=torch.uint8).untyped_storage()

        storage.__new__ = made
        replace_functions(storage, resize_=resized, size=length, nbytes=length, cpu=on_host)


def _address(storage: torch.UntypedStorage) -> int:
    return int(_Storage.data_ptr(storage))


def _rounded(size: int) -> int:
    return -(-size // _ROUND_BYTES) * _ROUND_BYTES


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements between the first and the last one of a tensor."""
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


@functools.cache
def item_bytes(dtype: torch.dtype) -> int:
    """Bytes of an element."""
    return torch.empty(0, dtype=dtype).element_size()
