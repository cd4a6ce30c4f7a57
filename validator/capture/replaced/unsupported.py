"""Calls that a capture does not support, refused with what to do instead, and launchers of processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch
from torch import nn

from scaleproof.simulator.common.errors import RunError

_GRAPHS: Final = "{} records kernels for replay, which a capture does not need; run the script without CUDA graphs"
_ONE_PROCESS: Final = "{} drives several GPUs from one process; use DistributedDataParallel, with a process for each GPU"


def refuse_unsupported(local_rank: int) -> None:
    """Refuses calls that a capture does not support with what to do instead, and makes launchers run the played rank alone.
    local_rank: of that rank on its node."""
    # types stay types, which scripts compare others with
    setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (), {"__init__": _refusing(_GRAPHS, "torch.cuda.CUDAGraph")}))  # noqa: B010
    nn.DataParallel.__init__ = _refusing(_ONE_PROCESS, "torch.nn.DataParallel")  # type: ignore[method-assign]
    for name in ("graph", "make_graphed_callables"):
        setattr(torch.cuda, name, _refusing(_GRAPHS, f"torch.cuda.{name}"))

    def spawn(function: Callable[..., Any], args: tuple[Any, ...] = (), *_: Any, **__: Any) -> None:
        """`torch.multiprocessing.spawn`: this process is one of those that it would start."""
        function(local_rank, *args)

    for name in ("spawn", "start_processes"):
        setattr(torch.multiprocessing, name, spawn)


def _refusing(message: str, call: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise RunError(message.format(call))

    return refuse
