"""Calls that a capture does not support, refused with what to do instead, and launchers of processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
from torch import nn

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.backend import replace_functions

_GRAPHS: Final = "{} records kernels for replay, which a capture does not need; run the script without CUDA graphs"
_ONE_PROCESS: Final = "{} drives several GPUs from one process; use DistributedDataParallel, with a process for each GPU"


class _Processes:
    """What starts processes returns, if it does not wait for them."""

    processes: Final = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Whether all have ended: yes."""
        return True

    def pids(self) -> list[int]:
        """Those of the processes: none."""
        return []


def refuse_unsupported(local_rank: int) -> None:
    """Refuses calls that a capture does not support with what to do instead, and makes launchers run the played rank alone.
    local_rank: of that rank on its node."""
    # types stay types, which scripts compare others with
    for owner, name in ((torch.cuda, "CUDAGraph"), (torch.accelerator, "Graph")):
        refused = {"__init__": _refusing(_GRAPHS, f"{owner.__name__}.{name}")}
        replace_functions(owner, **{name: type(name, (), refused)})
    for name in ("graph", "make_graphed_callables"):
        replace_functions(torch.cuda, **{name: _refusing(_GRAPHS, f"torch.cuda.{name}")})
    nn.DataParallel.__init__ = _refusing(_ONE_PROCESS, "torch.nn.DataParallel")  # type: ignore[method-assign]

    def spawn(fn: Callable[..., Any], args: tuple[Any, ...] = (), *_: Any, join: bool = True, **__: Any) -> _Processes | None:
        """`torch.multiprocessing.spawn`: this process is one of those that it would start."""
        fn(local_rank, *args)
        return None if join else _Processes()

    replace_functions(torch.multiprocessing, spawn=spawn, start_processes=spawn)


def _refusing(message: str, call: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RunError(message.format(call))

    return refuse
