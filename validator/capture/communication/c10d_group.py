"""Process groups in Python: the methods that PyTorch calls, as one table of collectives, their works, and a backend of them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from scaleproof.simulator.captured.groups import COLLECTIVES, whole_bytes
from scaleproof.simulator.captured.record import NONE
from scaleproof.validator.capture.backend import replace_functions

# its methods have several signatures each, of which PyTorch calls one from C++
_ProcessGroup: Any = dist.ProcessGroup


class CollectiveMethod(NamedTuple):
    """A method of process groups. collective: its name in records. in_place: whether its first argument is what it reads and
    writes; otherwise it writes the first and reads the second. rooted: whether its options name a root. split: whether lengths
    of the parts that are received and sent come before its options."""

    collective: str
    in_place: bool = False
    rooted: bool = False
    split: bool = False


_GATHER: Final = CollectiveMethod("all_gather")
_REDUCE_SCATTER: Final = CollectiveMethod("reduce_scatter")
# PyTorch 2.13 renamed some; groups have the names of before too.
METHODS: Final[Mapping[str, CollectiveMethod]] = {
    "allreduce": CollectiveMethod("all_reduce", in_place=True),
    "allreduce_coalesced": CollectiveMethod("all_reduce", in_place=True),
    "reduce": CollectiveMethod("reduce", in_place=True, rooted=True),
    "broadcast": CollectiveMethod("broadcast", in_place=True, rooted=True),
    "allgather": _GATHER,
    "allgather_coalesced": _GATHER,
    "_allgather_base": _GATHER,
    "all_gather_single": _GATHER,
    "all_gather_into_tensor": _GATHER,
    "allgather_into_tensor_coalesced": _GATHER,
    "all_gather_single_coalesced": _GATHER,
    "reduce_scatter": _REDUCE_SCATTER,
    "_reduce_scatter_base": _REDUCE_SCATTER,
    "reduce_scatter_single": _REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": _REDUCE_SCATTER,
    "reduce_scatter_single_coalesced": _REDUCE_SCATTER,
    "scatter": CollectiveMethod("scatter", rooted=True),
    "gather": CollectiveMethod("gather", rooted=True),
    "alltoall_base": CollectiveMethod("alltoall", split=True),
    "all_to_all_single": CollectiveMethod("alltoall", split=True),
    "alltoall": CollectiveMethod("alltoall"),
}


class CollectiveCall(NamedTuple):
    """A call of a method. outputs, inputs: tensors, or nested lists of them. root: its rank in the group. splits: lengths of
    the parts of a single tensor that are received and sent, None for a method without."""

    collective: str
    outputs: Any
    inputs: Any
    root: int = NONE
    options: Any = None
    splits: tuple[list[int], list[int]] | None = None

    @property
    def written(self) -> list[torch.Tensor]:
        """The tensors that it writes."""
        return flat(self.outputs)

    @property
    def read(self) -> list[torch.Tensor]:
        """The tensors that it reads."""
        return flat(self.inputs)

    def gathered(self) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        """Of one that gathers: each input, with the tensors that get those of all ranks, one or as many as ranks."""
        read, written = self.read, self.written
        return [(own, written[place :: len(read)]) for place, own in enumerate(read)]

    def size_bytes(self, ranks: int) -> int:
        """Bytes of the whole buffer."""
        read, written = (sum(tensor.nbytes for tensor in tensors) for tensors in (self.read, self.written))
        return whole_bytes(COLLECTIVES[self.collective], read, written, ranks)


class C10dWork(dist.Work):
    """A collective or message under way, for which PyTorch waits in several ways."""

    @abstractmethod
    def wait(self, timeout: Any = None) -> bool:
        """Waits until it is complete."""

    def synchronize(self) -> None:
        """Waits until it is complete."""
        self.wait()

    def block_current_stream(self) -> None:
        """Waits until it is complete."""
        self.wait()


class C10dGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group whose collectives are calls of one method. Messages and barriers are those of subclasses."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._own, self._size, self._name = rank, size, ""

    @abstractmethod
    def collective(self, call: CollectiveCall) -> Any:
        """Issues a collective; returns its work."""

    @property
    def group_name(self) -> str:
        """The name that PyTorch gave it, and forgets before it destroys the group."""
        self._name = distributed_c10d._world.pg_names.get(self, self._name)
        return self._name

    pg_name = group_name

    @property
    def ranks(self) -> list[int]:
        """Its ranks among all, by their places in it."""
        return distributed_c10d.get_process_group_ranks(self)

    @property
    def supports_splitting(self) -> bool:
        """Whether it can be split: no, so that groups are made one by one."""
        return False

    @property
    def options(self) -> Any:
        """Options of NCCL, which change nothing."""
        return dist.ProcessGroupNCCL.Options()

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cuda"), torch.device("cpu")]

    def getBackendName(self) -> str:
        """The backend that scripts expect."""
        return "nccl"

    def name(self) -> str:
        """The same."""
        return "nccl"

    def _get_backend(self, device: Any) -> Any:
        """The group itself, for any device."""
        return self

    def _get_backend_name(self) -> str:
        return "nccl"

    def _is_initialized(self) -> bool:
        return True

    def comm_split_count(self) -> int:
        """Number of groups that were split from this one."""
        return 0

    def get_group_store(self) -> Any:
        """The store of all ranks."""
        return distributed_c10d._get_default_store()

    def _nothing(self, *_: Any, **__: Any) -> None:
        """What changes nothing that is recorded."""

    _group_start = _group_end = _set_default_timeout = _add_ephemeral_timeout = set_timeout = _nothing
    abort = shutdown = eager_connect_single_device = perform_nocolor_split = register_mem_pool = _nothing
    deregister_mem_pool = _wait_for_pending_works = _enable_collectives_timing = _nothing

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Waits for all ranks."""
        self.barrier().wait()

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0


def _calling(name: str, method: CollectiveMethod) -> Callable[..., Any]:
    """The method that calls `collective`."""

    def call(group: C10dGroup, outputs: Any, *arguments: Any, opts: Any = None) -> Any:
        inputs, *rest = (outputs, *arguments) if method.in_place else arguments
        splits = (_lengths(rest.pop(0)), _lengths(rest.pop(0))) if method.split else None
        options = rest[0] if rest else opts
        root = getattr(options, "rootRank", 0) if method.rooted else NONE
        return group.collective(CollectiveCall(method.collective, outputs, inputs, root, options, splits))

    call.__name__ = name
    return call


def _lengths(given: Any) -> list[int]:
    """Lengths of parts that are given as a list or an array; none for equal parts."""
    return [] if given is None else [int(length) for length in given]


for _name, _method in METHODS.items():
    setattr(C10dGroup, _name, _calling(_name, _method))


class GroupsOfBackend(ABC):
    """Makes all groups of a script those of one backend, whatever the script names. name: of the backend."""

    name: str

    def __init__(self) -> None:
        self._init, self._new_group = dist.init_process_group, distributed_c10d._new_group_with_tag
        self._signature = inspect.signature(self._new_group)
        # backends that the script names, where they are not NCCL alone
        self._named: dict[Any, str] = {}

    def install(self) -> None:
        """Replaces the functions of `torch.distributed`."""
        register: Callable[..., None] = dist.Backend.register_backend
        register(self.name, self._group, devices=["cpu", "cuda"])
        self.replace(init_process_group=self._init_process_group, get_backend=self._get_backend, is_nccl_available=lambda: True)
        # new_group calls it
        distributed_c10d._new_group_with_tag = self._make_group

    @staticmethod
    def replace(**functions: Any) -> None:
        """Replaces functions of `torch.distributed` by their names."""
        replace_functions(distributed_c10d, **functions)

    @abstractmethod
    def _group(self, store: Any, rank: int, size: int, timeout: Any = None) -> C10dGroup:
        """Makes a group of `size` ranks, of which this process is one."""

    @abstractmethod
    def _made(self, group: Any, ranks: Any, description: str) -> None:
        """Notes a group that was made. ranks: of all, None for all of them. group: no member of `_group` on other ranks."""

    def _init_process_group(self, backend: Any = None, *arguments: Any, **keywords: Any) -> None:
        others = {name: value for name, value in keywords.items() if name != "device_id"}
        self._init(self.name, *arguments, **others)
        self._named[dist.group.WORLD] = str(backend or "nccl")
        self._made(dist.group.WORLD, None, "world")

    def _get_backend(self, group: Any = None) -> str:
        named = self._named.get(group or dist.group.WORLD, "nccl")
        return "nccl" if "nccl" in named or "cuda" in named else named

    def _make_group(self, *arguments: Any, **keywords: Any) -> Any:
        call = self._signature.bind(*arguments, **keywords)
        named = call.arguments.get("backend")
        call.arguments |= {"backend": self.name, "backend_options": None, "device_id": None}
        group = self._new_group(*call.args, **call.kwargs)
        self._named[group] = str(named or self._named.get(dist.group.WORLD, "nccl"))
        self._made(group, call.arguments.get("ranks"), str(call.arguments.get("group_desc") or ""))
        return group


def flat(tensors: Any) -> list[torch.Tensor]:
    """Tensors in nested lists, or a single one."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for each in tensors for tensor in flat(each)] if isinstance(tensors, (list, tuple)) else []
