"""Where the script is: the part of the step, the module, the stream, and the line that is the script's own."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, _flat_param, _runtime_utils
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel

from scaleproof.simulator.captured.record import ModelInput, TrainingPass
from scaleproof.validator.capture.communication.branches import Expression

# Folders whose files are never the script's own, even if the environment is inside the script's folder.
_INSTALLED: Final = (*sysconfig.get_paths().values(), str(Path(__file__).parents[2]))
_PYTORCH: Final = str(Path(torch.__file__).parent)
# Where what is called lies when a tensor's method or a collective is called.
_CALLED: Final = (
    str(Path(__file__).parent),
    *(f"{_PYTORCH}/{name}.py" for name in ("_ops", "_tensor", "distributed/distributed_c10d", "distributed/c10d_logger")),
)
_REENTRANT: Final = "CheckpointFunctionBackward"
# Names of modules that wrap one of the script's, as parts of paths.
_WRAPPERS: Final = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod", "_forward_module")
_NO_TASK: Final = -1
# Methods that gather, free and reduce the parameters of a group, of fully_shard, or of a flat parameter, of
# FullyShardedDataParallel.
_SHARDED_GROUP: Final = ("unshard", "wait_for_unshard", "reshard", "post_backward", "finalize_backward")
_FLAT_PARAMETER: Final = ("pre_unshard", "unshard", "post_unshard", "reshard")
_graph_task = torch._C._current_graph_task_id
_next_number: Any = torch._C._autograd._get_sequence_nr
_current_node: Any = torch._C._current_autograd_node


class Place(NamedTuple):
    """The part of the step, the module's path, whether the forward pass is repeated, the node of autograd, and the line."""

    phase: TrainingPass
    module: str
    recomputed: bool
    node: str
    line: str


class _OfThread(threading.local):
    """What each thread has of its own: its current stream, its modules, those that own sharded parameters which it handles,
    lines and modules by number of autograd's node, and compiled regions, those that run and by number of autograd's node."""

    def __init__(self) -> None:
        self.stream = 0
        self.modules: list[tuple[str, int]] = []
        self.owners: list[str] = []
        self.is_nested = False
        self.own: dict[int, tuple[str, str]] = {}
        self.regions: list[str] = []
        self.own_regions: dict[int, str] = {}


class ScriptContext:
    """Follows a script through hooks on modules.

    folder: of the script's files. phase: of what belongs to no module and no node. inputs: of the outermost modules.
    """

    def __init__(self, folder: Path) -> None:
        self._of_thread = _OfThread()
        self.follow(folder)
        self._names: dict[int, str] = {}
        self._forward: dict[int, tuple[str, str]] = {}
        self._regions: dict[int, str] = {}
        self._lines: dict[str, str] = {}
        self._root_names: set[str] = set()
        self._optimizing = 0
        self._before_backward = False
        self.roots: dict[int, nn.Module] = {}
        self.inputs: list[ModelInput] = []

    def follow(self, folder: Path) -> None:
        """Changes the folder of the script's files."""
        self._folder = str(folder)
        # an installed package may be the script
        self._installed = tuple(path for path in _INSTALLED if not folder.is_relative_to(path))
        # names of the script's own files, empty for others
        self._files: dict[str, str] = {}

    def install(self) -> None:
        """Adds the hooks."""
        modules.register_module_forward_pre_hook(self._enter)
        modules.register_module_forward_hook(self._leave, with_kwargs=True, always_call=True)
        _follow_sharding(self)

    @property
    def stream(self) -> int:
        """Number of the thread's current stream."""
        return self._of_thread.stream

    @stream.setter
    def stream(self, number: int) -> None:
        self._of_thread.stream = number

    def begin_optimizer(self) -> None:
        """An optimizer's step begins."""
        self._optimizing += 1

    def end_optimizer(self) -> None:
        """An optimizer's step ends."""
        self._optimizing -= 1
        self._before_backward = False

    def begin_step(self) -> None:
        """Forgets nodes of the step before, and its inputs."""
        self._forward.clear()
        self._regions.clear()
        self.inputs.clear()

    @contextlib.contextmanager
    def within_region(self, module: nn.Module) -> Iterator[None]:
        """What happens within belongs to the compiled region of a module."""
        regions = self._of_thread.regions
        regions.append(self.path_of(module))
        try:
            yield
        finally:
            regions.pop()

    def region(self) -> str:
        """The path of the module whose compiled graph runs, or whose gradients it computes; '' where there is none."""
        own, node = self._of_thread, _current_node()
        if own.regions:
            (self._regions if node is None else own.own_regions)[_next_number() - 1] = own.regions[-1]
            return own.regions[-1]
        number = -1 if node is None else node._sequence_nr()
        return own.own_regions.get(number) or self._regions.get(number, "")

    def owned_by(self, module: nn.Module) -> contextlib.AbstractContextManager[None]:
        """See `within`: the path of a module."""
        return self.within(self._names.get(id(module), ""))

    def path_of(self, module: nn.Module) -> str:
        """The path of a module; '' for the root, and for one that has never been called."""
        name = self._names.get(id(module), "")
        return "" if name in self._root_names else name

    @contextlib.contextmanager
    def within(self, path: str) -> Iterator[None]:
        """What happens within belongs to the module with a path, as its gathered parameters do, and to the line that calls it;
        nothing changes if the path is empty."""
        own = self._of_thread
        if path and _graph_task() == _NO_TASK:
            self._lines.setdefault(path, self.line())
        own.owners.append(path)
        try:
            yield
        finally:
            own.owners.pop()

    def place(self) -> Place:
        """Where the script is now."""
        place, owners = self._present_place(), self._of_thread.owners
        if not owners or not owners[-1]:
            return place
        return place._replace(module=owners[-1], line=self._lines.get(owners[-1]) or place.line)

    def _present_place(self) -> Place:
        node: Any = _current_node()
        own = self._of_thread
        if node is None:
            module = own.modules[-1][0] if own.modules else ""
            line = self.line()
            phase = self.phase()
            if phase is not TrainingPass.OPTIMIZER:
                # the node of an operator has been made before the operator runs; that of an autograd.Function, which runs
                # without gradients, is not the node of any operator before
                if torch.is_grad_enabled():
                    self._forward[_next_number() - 1] = line, module
                else:
                    self._forward.setdefault(_next_number() - 1, (line, module))
            return Place(phase, module, False, "", line)
        self._before_backward = False
        name, number = node.name(), node._sequence_nr()
        recomputed = torch.is_grad_enabled() and (bool(own.modules) or name.startswith(_REENTRANT))
        if recomputed:
            module, line = own.modules[-1][0] if own.modules else "", self.line()
            if own.is_nested or name.startswith(_REENTRANT):
                own.own[_next_number() - 1] = line, module
        else:
            line, module = own.own.get(number) or self._forward.get(number) or (self.line(), "")
        return Place(TrainingPass.BACKWARD, module, recomputed, name, line)

    def phase(self) -> TrainingPass:
        """The part of the step of what runs in no node of autograd."""
        if _graph_task() != _NO_TASK:
            return TrainingPass.BACKWARD
        if self._of_thread.modules or self._before_backward:
            return TrainingPass.FORWARD
        return TrainingPass.OPTIMIZER if self._optimizing else TrainingPass.OTHER

    def line(self, frame: FrameType | None = None) -> str:
        """File and line of the innermost frame, from this or the caller's, that is the script's own; empty if there is none."""
        frame = frame or sys._getframe(1)
        files = self._files
        while frame is not None:
            path = frame.f_code.co_filename
            file = files.get(path)
            if file is None:
                file = files[path] = self._short(path) if self.is_own_file(path) else ""
            if file:
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def expression(self) -> Expression | None:
        """What calls a tensor's method or a collective, in the script or a library; None in PyTorch, or if Python does not
        know."""
        frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
        frame = next((one for one in frames if not one.f_code.co_filename.startswith(_CALLED)), None)
        if frame is None or frame.f_code.co_filename.startswith(_PYTORCH):
            return None
        position = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
        return None if None in position else Expression(frame.f_code.co_filename, *position)  # type: ignore[arg-type]

    def is_own_file(self, path: str) -> bool:
        """Whether a file is the script's, or of a package next to it."""
        path = _resolved(path)
        return path.startswith(f"{self._folder}/") and not path.startswith(self._installed)

    def _short(self, path: str) -> str:
        return _resolved(path).removeprefix(f"{self._folder}/")

    def _enter(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        own = self._of_thread
        identity = id(module)
        if identity not in self._names:
            for name, inner in module.named_modules():
                self._names.setdefault(id(inner), path_in(module, name))
            self.roots[identity] = module
            self._root_names.add(self._names[identity])
        if not own.modules and _current_node() is None:
            self._before_backward = torch.is_grad_enabled()
        node = _current_node()
        own.is_nested = node is not None and node.name().startswith(_REENTRANT)
        own.modules.append((self._names[identity], _next_number()))

    def _leave(self, module: nn.Module, *called: Any) -> None:
        """Ends the call of a module. called: positional arguments, those by keywords unless the call failed, and the result."""
        if torch.compiler.is_dynamo_compiling():
            return
        own = self._of_thread
        if own.modules:
            own.modules.pop()
        if not own.modules and _current_node() is None:
            self.inputs.append(ModelInput(type(module).__name__, _shapes(called[:-1]), 1))


def _resolved(path: str) -> str:
    """An absolute path without links; what is no path stays."""
    return path if path.startswith("<") else str(Path(path).resolve())


def path_in(root: nn.Module, name: str) -> str:
    """The path of a module in a root, without those that only wrap others; of the root, its class."""
    parts = inner_parts(name)
    if isinstance(root, DistributedDataParallel):
        parts = parts[1:]
    if parts:
        return ".".join(parts)
    inner: nn.Module | None = root
    while inner is not None:
        root, inner = inner, _wrapped(inner)
    return type(root).__name__.removeprefix("FSDP" if isinstance(root, FSDPModule) else "")


def inner_parts(name: str) -> list[str]:
    """The parts of a module's path, without those that only wrap others."""
    return [part for part in name.split(".") if part and part not in _WRAPPERS]


def _wrapped(module: nn.Module) -> nn.Module | None:
    """The module that another one only wraps."""
    names = ("module", *_WRAPPERS) if isinstance(module, DistributedDataParallel) else _WRAPPERS
    found = (getattr(module, name, None) for name in names)
    return next((one for one in found if isinstance(one, nn.Module)), None)


def _shapes(arguments: Any) -> tuple[tuple[int, ...], ...]:
    leaves = torch.utils._pytree.tree_leaves(arguments)
    return tuple(tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _follow_sharding(context: ScriptContext) -> None:
    """Makes a context follow what shards and gathers parameters, also where hooks gather them for the backward pass."""
    for name in _SHARDED_GROUP:
        _replace_owned(FSDPParamGroup, name, context, lambda group, *_: group.modules[0])
    for name in _FLAT_PARAMETER:
        _replace_owned(_flat_param.FlatParamHandle, name, context, lambda handle, *_: handle._fully_sharded_module)
    _replace_owned(_runtime_utils, "_post_backward_hook", context, lambda _, handle, *__: handle._fully_sharded_module)


def whole_parameters(roots: Iterable[nn.Module], parameters: Iterable[torch.Tensor]) -> int:
    """Number of elements of parameters, those of flat ones before they were divided among ranks."""
    modules = (module for root in roots for module in root.modules() if isinstance(module, FullyShardedDataParallel))
    flat = {id(handle): handle.flat_param for module in modules if (handle := module._handle) is not None}
    parts = {id(part) for one in flat.values() for part in (one, *(one._params or ()))}
    whole = sum(one._unpadded_unsharded_size.numel() for one in flat.values())
    return whole + sum(parameter.numel() for parameter in parameters if id(parameter) not in parts)


def _replace_owned(owner: Any, name: str, context: ScriptContext, module_of: Callable[..., Any]) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def within(*arguments: Any, **keywords: Any) -> Any:
        with context.owned_by(module_of(*arguments)):
            return original(*arguments, **keywords)

    setattr(owner, name, within)
