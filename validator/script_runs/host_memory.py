"""Memory of the processor as that of a GPU: what tensors free stays with the process."""

from __future__ import annotations

import ctypes
from typing import Final

# Parameters of mallopt, see malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER: Final = -1


def keep_freed() -> None:
    """Makes the C library keep what is freed for later allocations, as PyTorch's allocator for GPUs does. Pages of the system
    would otherwise be returned and cleared again, or not, as chance has it."""
    library = ctypes.CDLL(None)
    for parameter, value in ((_TRIM_THRESHOLD, _NEVER), (_MMAP_MAX, 0)):
        library.mallopt(parameter, value)
