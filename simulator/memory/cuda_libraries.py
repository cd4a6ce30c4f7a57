"""Bytes that CUDA, cuBLAS and NCCL allocate on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from scaleproof.simulator.cluster import Cluster, Device
from scaleproof.simulator.cluster.collectives.settings import facts_of
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.parallelism.mesh import Axis
from scaleproof.simulator.parallelism.plan import Plan

# NCCL, src/init.cc: buffers of one connection for its three protocols (LL 512 KiB, LL128 4.7 MiB, Simple 4 MiB).
_CONNECTION_BYTES: Final = 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + 2**22
# Neighbours from which a channel receives: one on the ring, and on the tree up to three, or inside a node, where trees are
# chains, two. Four A100 hold 688 MiB for a communicator (NVIDIA/nccl, issue 964); 24 channels of three come to 664 MiB.
_CONNECTIONS: Final = {True: 1 + 2, False: 1 + 3}
# PyTorch, aten/src/ATen/cuda: cuBLAS 4096 KiB · 2 + 16 KiB · 8, from Hopper on 4096 KiB · 8 (CublasHandlePool.cpp), and
# cuBLASLt 1 MiB, on Ampere 4 MiB, from Hopper on 32 MiB (CUDABlas.cpp). cuDNN's memory is not included.
_WORKSPACE_BYTES: Final = {"volta": 8_519_680 + 2**20, "ampere": 8_519_680 + 2**22, "hopper": 2**26, "blackwell": 2**26}


def libraries_bytes(inputs: MemoryInputs, copies: bool) -> dict[str, float]:
    """Bytes of libraries by holder. copies: whether the first and the last stage share weights, and have a group for them."""
    return {
        "workspace": workspace_bytes(inputs.scenario.cluster.device) if inputs.is_gpu else 0.0,
        "library": 0.0 if inputs.servers else nccl_bytes(inputs.scenario.cluster, inputs.plan, copies),
        "context": float(inputs.software.context_bytes) if inputs.is_gpu else 0.0,
    }


def workspace_bytes(device: Device) -> float:
    """Bytes of the workspaces of cuBLAS and cuBLASLt on a GPU."""
    facts = facts_of(device.name)
    return float(_WORKSPACE_BYTES.get(facts.generation if facts else "ampere", _WORKSPACE_BYTES["ampere"]))


def nccl_bytes(cluster: Cluster, plan: Plan, copies: bool) -> float:
    """Bytes of NCCL's buffers on one rank; zero if another library is used."""
    return connections_bytes(cluster, _spans(plan, cluster.node.devices, copies), plan.expert)


def connections_bytes(cluster: Cluster, spans: Iterable[int], exchanging: int) -> float:
    """Bytes of NCCL's buffers on one rank; zero if another library is used. Between GPUs of a node without peer-to-peer access
    they are in the host's memory (NCCL, src/transport/shm.cc).

    spans: number of ranks from the first to the last of each group that the rank is in. exchanging: ranks of the largest group
    with all-to-alls.
    """
    facts = cluster.nccl_facts
    if facts is None or cluster.library != "nccl":
        return 0.0
    devices, cards, total = cluster.node.devices, cluster.node.cards_used, 0
    has_peers = cluster.node.link is None or cluster.node.link.peer_to_peer is not False
    for span in spans:
        nodes = -(-span // devices)
        if has_peers or nodes > 1:
            total += facts.channels(nodes, cards) * _CONNECTIONS[nodes == 1]
    if exchanging > 1 and has_peers:
        # all-to-all: channels of their own within a node, shared buffers between nodes
        total += facts.channels(1, cards) * (min(exchanging, devices) - 1)
    return float(total * _CONNECTION_BYTES)


def _spans(plan: Plan, devices: int, copies: bool) -> Iterator[int]:
    """The number of ranks from the first to the last of each group that a rank is in: all ranks, each axis, the ranks of a
    model replica, which reduce the norm of gradients, and the stages that share weights."""
    axes: tuple[tuple[Axis, int], ...] = (
        ("tensor", plan.tensor), ("context", plan.context), ("workers", plan.workers), ("stages", plan.stages),
    )  # fmt: skip
    grid = plan.grid(devices)
    spans = {axis: (size - 1) * grid.stride(axis) for axis, size in axes}
    yield from (1 + spans[axis] for axis, size in axes if 1 < size < plan.ranks)
    if copies:
        yield 1 + spans["stages"]
    if plan.tensor > 1 and plan.stages > 1 and plan.workers > 1:
        yield 1 + spans["tensor"] + spans["stages"]
    if plan.ranks > 1:
        yield plan.ranks
