"""NCCL on GPUs that do not exist: refuses what NCCL refuses, and logs each kernel."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from scaleproof.simulator.captured.record import EventKind
from scaleproof.validator.capture.communication.c10d_group import CollectiveCall
from scaleproof.validator.capture.communication.distributed_api import DistributedApi
from scaleproof.validator.capture.communication.process_group import RecordedGroup
from scaleproof.validator.capture.communication.recording import RecordedWork
from tests.validator.gpus.kernels import EVERYBODY, RECEIVE, SEND, Kernel, Operation
from tests.validator.gpus.published import Published
from tests.validator.gpus.waits import Futures, Waits

_engine: Any = torch.autograd.Variable._execution_engine
_OWN: Final = "/validator/strategy/"
# Ranks may give different sizes to it.
_UNEVEN: Final = "alltoall"
_Tensors = Sequence[torch.Tensor]


class NcclLog:
    """The kernels of a rank in the order of their launch. published: where other ranks read them."""

    def __init__(self, rank: int, waits: Waits, futures: Futures, published: Published) -> None:
        self.rank, self.waits, self.futures = rank, waits, futures
        self.kernels: list[Kernel] = []
        self._published = published
        # locked during a batch
        self._lock = threading.RLock()
        # operations of the batch under way
        self._batch: list[Operation] | None = None
        waits.until_complete = published.wait

    def launch(self, group: dist.ProcessGroup, operation: Operation) -> int:
        """Logs an operation of a group; returns the number of its kernel."""
        with self._lock:
            if self._batch is not None:
                self._batch.append(operation)
                if len(self._batch) == 1:
                    self.kernels.append(self._kernel(group, operation))
                self.kernels[-1] = self.kernels[-1]._replace(operations=tuple(self._batch), is_batch=True)
            else:
                self.kernels.append(self._kernel(group, operation))
                self._published.add(self.kernels[-1])
            return len(self.kernels) - 1

    def install_batches(self) -> None:
        """Makes each batch of messages one kernel."""
        original: Any = dist.batch_isend_irecv
        module: Any = distributed_c10d

        def batch_isend_irecv(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
            with self._lock:
                self._batch = []
                try:
                    return original(p2p_op_list)  # type: ignore[no-any-return]
                finally:
                    if self._batch:
                        self._published.add(self.kernels[-1])
                    self._batch = None

        dist.batch_isend_irecv = module.batch_isend_irecv = batch_isend_irecv

    def _kernel(self, group: dist.ProcessGroup, operation: Operation) -> Kernel:
        return Kernel(
            group=distributed_c10d._world.pg_names[group],
            members=tuple(distributed_c10d.get_process_group_ranks(group)),
            operations=(operation,),
            is_batch=False,
            after=self.waits.of_stream(),
            launched_after=self.waits.of_thread,
            stream=self.waits.context.stream,
            thread=threading.get_ident(),
            line=_line(),
        )


class LoggedWork(RecordedWork):
    """A kernel that was launched; what waits for it is followed."""

    def __init__(self, recording: Any, log: NcclLog, kernel: int, tensors: Any) -> None:
        super().__init__(recording, kernel, tensors)
        self._log, self._kernels = log, frozenset([kernel])
        log.futures.complete(self._future, self._kernels)

    def wait(self, timeout: Any = None) -> bool:
        self._log.waits.stream_waits(self._kernels)
        return True

    def get_future(self) -> Any:
        if torch._C._current_autograd_node() is not None:
            # torch's reducer waits at the end of the backward pass, without a call of a method
            _engine.queue_callback(self.wait)
        return self._future


class LoggedGroup(RecordedGroup):
    """A group of NCCL, or of gloo for tensors in the host's memory."""

    log: NcclLog
    # names of gloo's groups
    on_hosts: set[str]

    def barrier(self, opts: Any = None) -> Any:
        work = super().barrier(opts)
        work.wait()
        self._recording.trace.add(EventKind.SYNCHRONIZE, other_stream=self.log.waits.context.stream)
        return work

    def send(self, tensors: Any, target: int, tag: int = 0) -> Any:
        self._refuse("send", tensors)
        return self._logged(super().send(tensors, target, tag), SEND, target, tensors)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        self._refuse("recv", tensors)
        return self._logged(super().recv(tensors, source, tag), RECEIVE, source, tensors)

    def recv_anysource(self, *_: Any) -> Any:
        raise RuntimeError("NCCL cannot receive from any rank")

    def collective(self, call: CollectiveCall) -> Any:
        name, inputs, outputs, root = call.collective, call.read, call.written, call.root
        self._refuse(name, [*inputs, *outputs])
        work = super().collective(call)
        if self._is_on_hosts:
            return work
        given = outputs if name == "scatter" else inputs
        size_bytes = 0 if name == _UNEVEN else sum(tensor.nbytes for tensor in given)
        peer = self.ranks[root] if root >= 0 else EVERYBODY
        number = self.log.launch(self, Operation(name, peer, size_bytes))
        return LoggedWork(self._recording, self.log, number, list(outputs or inputs))

    def _logged(self, work: Any, kind: str, peer: int, tensors: _Tensors) -> Any:
        if self._is_on_hosts:
            return work
        number = self.log.launch(self, Operation(kind, self.ranks[peer], sum(tensor.nbytes for tensor in tensors)))
        return LoggedWork(self._recording, self.log, number, tensors)

    @property
    def _is_on_hosts(self) -> bool:
        return self.group_name in self.on_hosts

    def _refuse(self, name: str, tensors: _Tensors) -> None:
        """Raises RuntimeError for tensors that NCCL does not take."""
        if self._is_on_hosts:
            return
        for tensor in tensors:
            if not tensor.is_cuda:
                raise RuntimeError(f"NCCL takes no tensor in the host's memory ({name}, {tuple(tensor.shape)})")
            if tensor.dtype is torch.bool:
                raise RuntimeError(f"NCCL has no type for booleans ({name}, {tuple(tensor.shape)})")
            if not tensor.is_contiguous():
                raise RuntimeError(f"NCCL's tensors must be contiguous ({name}, {tuple(tensor.shape)})")


class LoggedApi(DistributedApi):
    """`torch.distributed` with logged groups. log: of this process. backend: of the group of all ranks."""

    log: NcclLog
    backend: str

    def install(self) -> None:
        super().install()
        self.log.install_batches()
        LoggedGroup.log, LoggedGroup.on_hosts = self.log, set()

    def _init_process_group(self, backend: str, *_: Any, **__: Any) -> None:
        LoggedApi.backend = backend
        super()._init_process_group()

    def _group(self, store: Any, rank: int, size: int, timeout: Any = None) -> RecordedGroup:
        return LoggedGroup(rank, size, self._recording, self._values, self._mailbox)

    def _make_group(self, *arguments: Any, **keywords: Any) -> Any:
        group = super()._make_group(*arguments, **keywords)
        if self._signature.bind(*arguments, **keywords).arguments.get("backend") == "gloo":
            LoggedGroup.on_hosts.add(distributed_c10d._world.pg_names.get(group, ""))
        return group


def _line() -> str:
    """The line of the validator that launches a kernel."""
    frame = sys._getframe(3)
    while frame.f_back is not None:
        if _OWN in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "training"
