"""Failures of other ranks while this one may wait in a kernel of NCCL, which does not notice them.

gloo's connections break with a rank that leaves. NCCL's kernels wait for it for ever, so that a thread looks for failures in
the store, and aborts the communicators.
"""

from __future__ import annotations

import contextlib
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

import torch.distributed as dist
from torch.distributed import Store, distributed_c10d  # type: ignore[attr-defined]

_KEY: Final = "failed"
# Seconds between two looks; rank 0's host serves those of all ranks.
_PERIOD_S: Final = 1.0
_JOIN_S: Final = 10.0


class FailureWatch:
    """Watches for failures of a process group's ranks while it is entered. store: by which the group is formed."""

    def __init__(self, store: Store) -> None:
        # the group's waits block its connection
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._ended = Event()
        self._thread = Thread(target=self._look, daemon=True)
        self.has_seen_failure = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join(_JOIN_S)

    def report(self) -> None:
        """Reports that this rank has failed, and ends its own kernels that wait for others."""
        self._ended.set()
        with contextlib.suppress(dist.DistError):
            self._store.set(_KEY, "")
        abort()

    def _look(self) -> None:
        # without the store, ranks lose contact, which the meeting reports
        with contextlib.suppress(dist.DistError):
            while not self._ended.wait(_PERIOD_S):
                if self._store.check([_KEY]):
                    self.has_seen_failure = True
                    abort()
                    return


def abort() -> None:
    """Ends all kernels of NCCL on this rank, and its process groups; whoever waits for them gets an error."""
    if dist.is_initialized() and dist.get_backend() == dist.Backend.NCCL:
        distributed_c10d._abort_process_group()
