"""What is captured: a script, the job whose ranks run it, their environment, and the device that they see."""

from __future__ import annotations

import os
import string
import types
from dataclasses import dataclass
from typing import Final

from scaleproof.simulator.cluster.device.device import Device

# Version of CUDA's capabilities that the kernels of each generation have; those of other vendors see an NVIDIA A100's.
_CAPABILITIES: Final = {
    "kepler": (3, 7), "pascal": (6, 0), "volta": (7, 0), "turing": (7, 5), "ampere": (8, 0), "ampere-rtx": (8, 6),
    "ada": (8, 9), "hopper": (9, 0), "blackwell": (10, 0), "blackwell-rtx": (12, 0),
}  # fmt: skip
_USUAL_CAPABILITY: Final = (8, 0)
_USUAL_PROCESSORS: Final = 108
_CLOCK_KHZ: Final = 1_755_000


@dataclass(frozen=True)
class Script:
    """What is run: a file, a console command, or, with is_module, a module. Arguments and variables of the environment may have
    fields, see `set_environment`."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DeviceProperties:
    """What a script reads of its GPU. capability: of CUDA, such as (9, 0)."""

    name: str
    memory_bytes: int
    processors: int
    l2_bytes: int
    capability: tuple[int, int]

    @classmethod
    def of(cls, device: Device) -> DeviceProperties:
        """The properties of a device of the catalog."""
        kernels = device.kernels
        generation = kernels.generation if kernels is not None else ""
        return cls(
            name=device.name.replace("-", " ")
            if generation not in _CAPABILITIES
            else f"NVIDIA {device.name.replace('-', ' ')}",
            memory_bytes=int(device.capacity_bytes),
            processors=int(kernels.processors or _USUAL_PROCESSORS) if kernels is not None else _USUAL_PROCESSORS,
            l2_bytes=int(device.l2_bytes or 0),
            capability=_CAPABILITIES.get(generation, _USUAL_CAPABILITY),
        )

    def plain(self, index: int) -> types.SimpleNamespace:
        """As `torch.cuda.get_device_properties` returns it. index: of the device on its machine."""
        major, minor = self.capability
        return types.SimpleNamespace(
            name=self.name, major=major, minor=minor, total_memory=self.memory_bytes, multi_processor_count=self.processors,
            L2_cache_size=self.l2_bytes, warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
            shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
            gcnArchName="", uuid=str(index), is_integrated=0, is_multi_gpu_board=0, pci_bus_id=0, pci_device_id=0,
            pci_domain_id=0, clock_rate=_CLOCK_KHZ, memory_clock_rate=_CLOCK_KHZ, memory_bus_width=5120,
            max_threads_per_block=1024,
        )  # fmt: skip


def set_environment(
    script: Script, rank: int, ranks: int, per_node: int, address: str = "127.0.0.1", port: int = 29500, run: str = "capture"
) -> None:
    """Sets what a script's command and torchrun set for a rank, with one thread for its kernels. per_node: ranks of a node.
    run: its identifier. Variables have the fields ${rank}, ${local_rank}, ${node}, ${ranks}, ${per_node}, ${nodes}, and
    ${last_node}."""
    node, local = map(str, divmod(rank, per_node))
    nodes, of_node = -(-ranks // per_node), str(min(per_node, ranks))
    fields = {
        "rank": rank, "local_rank": local, "node": node, "ranks": ranks, "per_node": of_node, "nodes": nodes,
        "last_node": nodes - 1,
    }  # fmt: skip
    os.environ.update({name: string.Template(value).safe_substitute(fields) for name, value in script.environment})
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=local, WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=of_node, GROUP_RANK=node, NODE_RANK=node,
        MASTER_ADDR=address, MASTER_PORT=str(port), OMP_NUM_THREADS="1", TORCHELASTIC_RUN_ID=run,
    )  # fmt: skip


@dataclass(frozen=True)
class CaptureJob:
    """The job that ranks belong to. steps: of the script, of which the last is kept; values: a policy's text. keeps_calls:
    whether operators are kept with their arguments, so that another device can repeat them. packages: that count as installed,
    see `packages`."""

    script: Script
    world_size: int
    ranks_per_node: int
    device: DeviceProperties
    steps: int
    values: str
    keeps_calls: bool = False
    packages: tuple[str, ...] = ()
