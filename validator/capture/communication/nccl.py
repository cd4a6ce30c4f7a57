"""Names of NCCL that PyTorch's builds for processors lack. Options change nothing: groups are recorded whatever they are."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

import torch.distributed as dist
from torch._C import _distributed_c10d

from scaleproof.validator.capture.backend.cuda_api import NCCL_VERSION
from scaleproof.validator.capture.communication.c10d_group import C10dGroup

_TIMEOUT: Final = timedelta(minutes=10)


class NcclConfig(SimpleNamespace):
    """NCCL's own options of a group; any other can be set."""

    def __init__(self) -> None:
        super().__init__(
            blocking=1, cga_cluster_size=4, min_ctas=1, max_ctas=32, net_name=None, split_share=0, traffic_class=0,
            comm_name=None, collnet_enable=0, cta_policy=0, shrink_share=0, nvls_ctas=0, n_channels_per_net_peer=0,
            nvlink_centric_sched=0,
        )  # fmt: skip


class NcclOptions(_distributed_c10d.Backend.Options):
    """Options of a group."""

    def __init__(self, is_high_priority_stream: bool = False, timeout: timedelta = _TIMEOUT) -> None:
        super().__init__("nccl", timeout)
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NcclConfig()
        self.split_from: Any = None
        self.split_color = 0


class _IsGroup(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, C10dGroup)


class NcclGroup(metaclass=_IsGroup):
    """`ProcessGroupNCCL`: every group is one."""

    Options = NcclOptions
    NCCLConfig = NcclConfig

    def __new__(cls, store: Any, rank: int, size: int, options: Any = None) -> Any:
        """A group made without `new_group`, which nothing can record."""
        raise NotImplementedError("groups are made by torch.distributed.new_group; a capture has no other ones")

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        """Version of NCCL."""
        return NCCL_VERSION

    get_runtime_nccl_version = get_build_nccl_version


def install() -> None:
    """Defines the names."""
    for module in (dist, dist.distributed_c10d, _distributed_c10d):
        setattr(module, "ProcessGroupNCCL", NcclGroup)  # noqa: B010
