"""`torch.distributed` of one rank of a large job: groups are made as usual, of a backend that records."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from scaleproof.validator.capture.backend import replace_functions
from scaleproof.validator.capture.backend.values import Values
from scaleproof.validator.capture.communication import nccl
from scaleproof.validator.capture.communication.c10d_group import GroupsOfBackend
from scaleproof.validator.capture.communication.mailbox import ALL, Mailbox
from scaleproof.validator.capture.communication.process_group import RecordedGroup
from scaleproof.validator.capture.communication.recording import Recording
from scaleproof.validator.capture.communication.store import store_type

_STORES: Final = ("TCPStore", "FileStore", "HashStore")


class DistributedApi(GroupsOfBackend):
    """The functions of `torch.distributed` that are replaced."""

    name = "scaleproof"

    def __init__(self, recording: Recording, values: Values, mailbox: Mailbox, world_size: int) -> None:
        super().__init__()
        self._recording, self._values, self._mailbox, self._world = recording, values, mailbox, world_size
        self._store = store_type(mailbox, recording.rank, world_size, recording.trace.note)

    def install(self) -> None:
        """Replaces them."""
        nccl.install()
        super().install()
        replace_functions(dist, **dict.fromkeys(_STORES, self._store))
        self.replace(
            split_group=self._split_group, is_gloo_available=lambda: True, is_torchelastic_launched=lambda: True,
            all_gather_object=self._noted(self._all_gather_object), gather_object=self._noted(self._gather_object),
            broadcast_object_list=self._noted(self._broadcast_object_list),
            scatter_object_list=self._noted(self._scatter_object_list),
            send_object_list=self._send_object_list, recv_object_list=self._recv_object_list,
            monitored_barrier=lambda group=None, timeout=None, wait_all_ranks=False: dist.barrier(group),
        )  # fmt: skip
        # the reducer has no timer of a device without kernels
        logger: Any = torch._C._distributed_c10d.Logger
        logger.set_runtime_stats_and_log = lambda _: None

    def _group(self, store: Any, rank: int, size: int, timeout: Any = None) -> RecordedGroup:
        return RecordedGroup(rank, size, self._recording, self._values, self._mailbox)

    def _made(self, group: Any, ranks: Any, description: str) -> None:
        members = sorted(ranks) if ranks is not None else range(self._world)
        self._recording.add_group(distributed_c10d._world.pg_names.get(group, ""), members, description)

    def _init_process_group(self, backend: Any = None, *_: Any, **__: Any) -> None:
        super()._init_process_group(backend, store=self._store(), rank=self._recording.rank, world_size=self._world)

    def _split_group(
        self, parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, pg_options: Any = None,
        group_desc: str | None = None, backend: Any = None,
    ) -> Any:  # fmt: skip
        """The group of those that the ranks of another one are divided into, to which this rank belongs."""
        ranks = self._ranks(parent_pg)
        made = [
            dist.new_group([ranks[place] for place in part], backend=backend, group_desc=group_desc)
            for part in split_ranks or ()
        ]
        return next((group for group in made if isinstance(group, RecordedGroup)), None)

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A collective of objects, which counts as a call."""
        signature = inspect.signature(function)

        @functools.wraps(function)
        def noted(*arguments: Any, **keywords: Any) -> Any:
            group = signature.bind(*arguments, **keywords).arguments.get("group") or dist.group.WORLD
            names: dict[Any, str] = distributed_c10d._world.pg_names  # type: ignore[assignment]
            self._recording.called(function.__name__.removeprefix("_"), names.get(group, ""))
            return function(*arguments, **keywords)

        return noted

    def _ranks(self, group: Any) -> list[int]:
        return distributed_c10d.get_process_group_ranks(group or dist.group.WORLD)

    def _channel(self, group: Any) -> str:
        return f"object-{_name_of(group)}"

    def _all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)
        self._recording.trace.of_collective("all_gather_object", is_read=False)

    def _gather_object(
        self, obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None,
        group_dst: int | None = None,
    ) -> None:  # fmt: skip
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)
            self._recording.trace.of_collective("gather_object", is_read=False)

    def _source(self, group: Any, source: int | None, in_group: int | None) -> int:
        return self._ranks(group)[in_group] if in_group is not None else source or 0

    def _broadcast_object_list(
        self, object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
        group_src: int | None = None,
    ) -> None:  # fmt: skip
        source = self._source(group, src, group_src)
        if source == self._recording.rank:
            self._mailbox.put(self._channel(group), ALL, list(object_list))
        else:
            object_list[:] = self._mailbox.get(self._channel(group), source, ALL)

    def _scatter_object_list(
        self, scatter_object_output_list: list[Any], scatter_object_input_list: Sequence[Any] | None = None,
        src: int | None = None, group: Any = None, group_src: int | None = None,
    ) -> None:  # fmt: skip
        source = self._source(group, src, group_src)
        output, objects = scatter_object_output_list, scatter_object_input_list
        place = self._ranks(group).index(self._recording.rank)
        if source == self._recording.rank and objects is not None:
            self._mailbox.put(self._channel(group), ALL, list(objects))
            output[0] = objects[place]
        else:
            output[0] = self._mailbox.get(self._channel(group), source, ALL)[place]

    def _send_object_list(
        self, object_list: list[Any], dst: int | None = None, group: Any = None, device: Any = None,
        group_dst: int | None = None, use_batch: bool = False,
    ) -> None:  # fmt: skip
        self._mailbox.put(self._channel(group), self._source(group, dst, group_dst), [_detached(one) for one in object_list])

    def _recv_object_list(
        self, object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
        group_src: int | None = None, use_batch: bool = False,
    ) -> int:  # fmt: skip
        source = self._source(group, src, group_src)
        object_list[:] = self._mailbox.get(self._channel(group), source, self._recording.rank)
        return source


def _name_of(group: Any) -> str:
    """The name that PyTorch gave a group; without one, to the group of all ranks."""
    names: dict[Any, str] = distributed_c10d._world.pg_names  # type: ignore[assignment]
    return names[group or dist.group.WORLD]


def _detached(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value
