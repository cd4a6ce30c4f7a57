"""Memory of the GPU that does not exist: reserved addresses, whose pages stay untouched unless values are computed."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol

import torch
from torch._C import DispatchKey, DispatchKeySet

from scaleproof.simulator.common.errors import RunError

CPU_KEYS: Final = DispatchKeySet(DispatchKey.CPU)
# Sizes are those of the caching allocator's blocks.
_ROUND_BYTES: Final = 512
_ARENA_BYTES: Final = 1 << 44
_PROTECTION: Final = 3  # PROT_READ | PROT_WRITE
_FLAGS: Final = 0x4022  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
_FAILED: Final = ctypes.c_void_p(-1).value
_DLPACK_CPU, _DLPACK_CUDA = 1, 2
_DLPACK_UNSIGNED: Final = 1
_VIEW: Final = torch.ops.aten.view.dtype
_AS_STRIDED: Final = torch.ops.aten.as_strided.default
_SET: Final = torch.ops.aten.set_.source_Storage_storage_offset


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("index", ctypes.c_int))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _DLDevice), ("dimensions", ctypes.c_int), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )  # fmt: skip


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Content(IntEnum):
    """What is known of the values of an allocation: nothing, invented ones, or those that training would have."""

    UNKNOWN = 0
    INVENTED = 1
    EXACT = 2


class Block:
    """An allocation. size: its bytes as requested; capacity: bytes of its addresses; resized: its present bytes."""

    __slots__ = ("address", "capacity", "content", "number", "resized", "size")

    def __init__(self, number: int, address: int, size: int, capacity: int) -> None:
        self.number, self.address, self.size, self.capacity, self.resized = number, address, size, capacity, size
        self.content = Content.UNKNOWN


class AllocationListener(Protocol):
    """What is notified of allocations and their ends, on any thread."""

    def allocated(self, number: int, size: int) -> None:
        """An allocation of `size` bytes begins."""

    def freed(self, number: int) -> None:
        """It ends."""


class Arena:
    """Reserved addresses for all tensors of a device.

    live_bytes: of present allocations, each rounded as the caching allocator does; peak_bytes: the most since the last reset.
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
        self._blocks: dict[int, Block] = {}
        # what the managers of DLPack tensors refer to, by the address of the manager
        self._owned: dict[int, tuple[Any, ...]] = {}
        self._lock = threading.RLock()
        self._count = 0
        self.live_bytes = self.peak_bytes = 0
        self._delete_block, self._delete_alias = _Deleter(self._on_delete), _Deleter(self._on_alias_delete)

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on addresses of its own, whose values are unknown."""
        wanted = _extent(size, stride) * item_bytes(dtype)
        block = self._allocate(wanted)
        return self._shaped(self._bytes_at(block), size, stride, dtype)

    def _allocate(self, wanted: int) -> Block:
        capacity = _rounded(max(wanted, 1))
        with self._lock:
            free = self._free[capacity]
            if free:
                address = free.pop()
            else:
                address, self._next = self._next, self._next + capacity
            self._count += 1
            block = Block(self._count, address, wanted, capacity)
            self._blocks[address] = block
            self._grow(_rounded(wanted))
        if wanted:
            self._listener.allocated(block.number, wanted)
        return block

    def _grow(self, by: int) -> None:
        self.live_bytes += by
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _bytes_at(self, block: Block) -> torch.Tensor:
        """The addresses of a block as a CUDA tensor of bytes, which ends the block when its storage ends."""
        return self._from_dlpack(_DLPACK_CUDA, self._index, block, self._delete_block, ())

    def _from_dlpack(self, kind: int, index: int, block: Block, deleter: Any, keeps: tuple[Any, ...]) -> torch.Tensor:
        manager, shape = _DLManagedTensor(), (ctypes.c_int64 * 2)(block.capacity, 1)
        tensor = manager.tensor
        tensor.data, tensor.device.type, tensor.device.index, tensor.dimensions = block.address, kind, index, 1
        tensor.code, tensor.bits, tensor.lanes = _DLPACK_UNSIGNED, 8, 1
        tensor.shape, tensor.strides = ctypes.addressof(shape), ctypes.addressof(shape) + ctypes.sizeof(ctypes.c_int64)
        manager.deleter = ctypes.cast(deleter, ctypes.c_void_p).value
        address = ctypes.addressof(manager)
        self._owned[address] = (block, manager, shape, *keeps)
        return torch._C._from_dlpack(_new_capsule(address, b"dltensor", None))  # type: ignore[no-any-return]

    def _shaped(self, of: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        # below autograd, so that the tensor is no view; the CPU's kernels of views never look at the memory
        with torch._C._AutoDispatchBelowAutograd():  # type: ignore[attr-defined]
            typed = of if dtype == torch.uint8 else _VIEW.redispatch(CPU_KEYS, of, dtype)
            shaped: torch.Tensor = _AS_STRIDED.redispatch(CPU_KEYS, typed, size, stride, 0)
            return shaped

    def _on_delete(self, manager: int) -> None:
        with self._lock:
            owned = self._owned.pop(manager, None)
            if owned is None:
                return
            block: Block = owned[0]
            self._blocks.pop(block.address, None)
            self._free[block.capacity].append(block.address)
            self.live_bytes -= _rounded(block.resized)
        if block.resized:
            self._listener.freed(block.number)

    def _on_alias_delete(self, manager: int) -> None:
        self._owned.pop(manager, None)

    def block(self, tensor: torch.Tensor) -> Block | None:
        """The allocation of a tensor; None for one that has no storage here."""
        return self._blocks.get(_address(tensor.untyped_storage()))

    def block_at(self, address: int) -> Block | None:
        """The allocation at an address."""
        return self._blocks.get(address)

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU tensor on the same memory."""
        block = self.block(tensor)
        if block is None or not tensor.numel():
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        # the alias keeps the storage alive
        whole = self._from_dlpack(_DLPACK_CPU, 0, block, self._delete_alias, (tensor,))
        with torch._C._AutoDispatchBelowAutograd():  # type: ignore[attr-defined]
            typed = whole if tensor.dtype == torch.uint8 else whole.view(tensor.dtype)
            return typed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def move(self, tensor: torch.Tensor, to: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """Makes a tensor refer to the memory of another one."""
        moved: torch.Tensor = _SET.redispatch(CPU_KEYS, tensor, to.untyped_storage(), to.storage_offset(), size, stride)
        return moved

    def resize(self, block: Block, size: int) -> None:
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
        """Makes storages of CUDA tensors resize in this arena."""
        storage, base = torch.UntypedStorage, torch._C.StorageBase
        resize, nbytes = base.resize_, base.nbytes

        def resized(this: torch.UntypedStorage, size: int) -> Any:
            block = self.block_at(_address(this)) if this.device.type == "cuda" else None
            if block is None:
                return resize(this, size)
            self.resize(block, size)
            return this

        def length(this: torch.UntypedStorage) -> int:
            block = self.block_at(_address(this)) if this.device.type == "cuda" else None
            return 0 if block is not None and not block.resized else int(nbytes(this))

        _replace(storage, resize_=resized, size=length, nbytes=length)


def _replace(owner: Any, **functions: Callable[..., Any]) -> None:
    for name, function in functions.items():
        setattr(owner, name, function)


def _address(storage: torch.UntypedStorage) -> int:
    return torch._C.StorageBase.data_ptr(storage)


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
