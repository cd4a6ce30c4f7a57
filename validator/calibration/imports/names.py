"""Names that other tools give to types, collectives and GPUs, and their counterparts here."""

from __future__ import annotations

import re
from typing import Final

from scaleproof.simulator.cluster.collectives.groups import OPS, Op

# Names in nccl-tests, torch's profiler (c10 and C++ names) and Chakra.
_ELEMENT_BYTES: Final = {
    "int8": 1, "uint8": 1, "char": 1, "byte": 1, "bool": 1, "signedchar": 1, "unsignedchar": 1,
    "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "half": 2, "float16": 2, "fp16": 2, "bfloat16": 2, "bf16": 2, "short": 2, "int16": 2,
    "float": 4, "float32": 4, "fp32": 4, "int32": 4, "uint32": 4, "int": 4,
    "double": 8, "float64": 8, "fp64": 8, "int64": 8, "uint64": 8, "long": 8, "longint": 8,
}  # fmt: skip
_PRECISIONS: Final = {
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "double": "fp64",
    "float64": "fp64",
}
_OPS: Final[dict[str, Op]] = {op.replace("_", ""): op for op in OPS} | {"send": "sendrecv", "recv": "sendrecv"}
# Parts of torch's names of collectives that give the shape of the buffers.
_ADDED: Final = re.compile(r"into|tensor|coalesced|base|single|_|-| ")
# Kernels of NCCL and RCCL (by prefix), DeepEP, NVSHMEM and oneCCL.
_COMMUNICATION: Final = re.compile(r"^(?:nccl|rccl)|deep_?ep|nvshmem|oneccl|(?:inter|intra)node::", re.I)
_KERNEL: Final = re.compile(r"nccl(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AlltoAll)", re.I)


def element_bytes(name: str) -> int | None:
    """Bytes of an element of a type; None if the type is unknown."""
    return _ELEMENT_BYTES.get(_plain(name))


def precision_of(name: str) -> str:
    """Training precision for gradients of a type; fp32 for other types."""
    return _PRECISIONS.get(_plain(name), "fp32")


def _plain(name: str) -> str:
    return name.lower().removeprefix("c10::").replace("torch.", "").replace(" ", "")


def collective(name: str) -> Op | None:
    """The collective with a name such as '_allgather_base', 'AllReduce', 'all_to_allv' or 'ALL_TO_ALL'; None if unknown."""
    plain = _ADDED.sub("", name.lower().replace("nccl:", "").replace("gloo:", "").replace("c10d::", ""))
    return _OPS.get(plain) or _OPS.get(plain.removesuffix("v"))


def collective_of_kernel(name: str) -> Op | None:
    """The collective of an NCCL kernel, by its name."""
    match = _KERNEL.search(name)
    return collective(match[1]) if match else None


def is_communication(kernel: str) -> bool:
    """Whether a kernel communicates: one of NCCL, RCCL, DeepEP, NVSHMEM or oneCCL."""
    return _COMMUNICATION.search(kernel) is not None
