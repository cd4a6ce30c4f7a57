"""What a capture replaces in addition to the device, communication and compilers: checkpoints, and what it does not support.

Tensors of a checkpoint move between host and device as they would, and no file is written or read: values of a capture are not
those of training, so that a file with them would be worthless, and could replace a real one.
"""

from __future__ import annotations

import errno
import importlib.util
import io
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch.distributed.checkpoint as checkpoints
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.metadata import Metadata
from torch.utils._pytree import tree_leaves

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.capture.backend import replace_functions
from scaleproof.validator.capture.steps import local_part
from scaleproof.validator.capture.trace import RankTrace

_SAVES: Final = "saves a checkpoint, which a capture does not write"
_LOADS: Final = "loads a checkpoint, whose values a capture does not read"
_GRAPHS: Final = "{} records kernels for replay, which a capture does not need; run the script without CUDA graphs"
_ONE_PROCESS: Final = "{} drives several GPUs from one process; use DistributedDataParallel, with a process for each GPU"


class Checkpoints:
    """Replaces what saves and loads checkpoints. trace: gets the notes for users."""

    def __init__(self, trace: RankTrace) -> None:
        self._trace = trace
        self._save = torch.save

    def install(self) -> None:
        """Replaces it."""
        torch.save = self._saved  # type: ignore[assignment]
        for module in (checkpoints, state_dict_saver):
            replace_functions(module, save=self._saved_parts, save_state_dict=self._saved_parts, async_save=self._saved_later)
        for module in (checkpoints, state_dict_loader):
            replace_functions(module, load=self._loaded_parts, load_state_dict=self._loaded_parts)
        if importlib.util.find_spec("safetensors") is not None:
            replace_functions(importlib.import_module("safetensors.torch"), save_file=self._saved)

    def _saved(self, content: Any, target: Any = None, *arguments: Any, **keywords: Any) -> None:
        """`torch.save`; what goes to memory instead of a file is no checkpoint."""
        target = target if target is not None else keywords.get("f", keywords.get("filename"))
        if isinstance(target, io.BytesIO):
            self._save(content, target, *arguments, **{name: value for name, value in keywords.items() if name != "f"})
            return
        self._to_host(content)

    def _saved_parts(self, state: Any, *_: Any, **__: Any) -> Metadata:
        """`torch.distributed.checkpoint.save`, by which each rank writes its part; ranks wait for one another."""
        self._to_host(state)
        torch.distributed.barrier()
        return Metadata(state_dict_metadata={})

    def _saved_later(self, state: Any, *_: Any, **__: Any) -> Future[Metadata]:
        """The same, of which only the copies keep the step waiting."""
        self._to_host(state)
        done: Future[Metadata] = Future()
        done.set_result(Metadata(state_dict_metadata={}))
        return done

    def _loaded_parts(self, state: Any, *arguments: Any, **keywords: Any) -> None:
        """`torch.distributed.checkpoint.load`. Raises FileNotFoundError where there is no checkpoint."""
        reader = keywords.get("storage_reader", arguments[0] if arguments else None)
        place = keywords.get("checkpoint_id") or getattr(reader, "path", None)
        if place is not None and not Path(place).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
        self._trace.note(_LOADS)
        for tensor in _device_tensors(state):
            tensor.copy_(torch.empty_like(tensor, device="cpu"))

    def _to_host(self, content: Any) -> None:
        self._trace.note(_SAVES)
        for tensor in _device_tensors(content):
            tensor.cpu()


@torch.no_grad()
def _device_tensors(content: Any) -> list[torch.Tensor]:
    """The parts on this device of all tensors in nested dictionaries and lists, and in objects with a state."""
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(content):
        state = getattr(leaf, "state_dict", None)
        if isinstance(leaf, torch.Tensor):
            local = local_part(leaf).detach()
            found += [local] if local.is_cuda else []
        elif callable(state):
            found += _device_tensors(state())
    return found


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
