"""Any torch module as a model: run once on the meta device, where tensors have shapes and no values, and noted down.

A user writes a function that returns the module and an example of its inputs, whose first dimension is the batch:

    def build():
        return MyNetwork(), torch.randn(8, 3, 224, 224)

and calls the model `python:my_file:build`. Layers are the elements of the module's Sequentials and ModuleLists (blocks), and
the modules beside them; what computes no products belongs to the layer before it, or to the one after it where none is before.
All parameters are taken to be trained.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NoReturn

from scaleproof.simulator.common.errors import FieldError, MissingDependencyError
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard
from scaleproof.simulator.model.tracing.operator_recording import RecordedModule, Recorder, layers_of

_PREFIX = "python:"
_EXAMPLE = "`return model, torch.randn(8, 3, 224, 224)`"


class Traced(ModelSpec):
    """A torch module that a user's function builds.

    source: `python:module:function`; the module is looked for in the working folder first. strict: an operator whose cost is
    not known is an error; otherwise it is counted by the bytes that it reads and writes, with a warning.
    """

    kind: Literal["traced"] = "traced"
    source: str
    strict: bool = False

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The layers, traced once in a process. Raises FieldError for whatever is wrong with the function.

        Raises MissingDependencyError where torch is not installed.
        """
        refuse_to_shard(self.kind, shard)
        layers, unknown = _trace(self.source, Path.cwd())
        if unknown:
            problem = f"no cost is known for {', '.join(unknown)}"
            if self.strict:
                _refuse(self.source, f"{problem}; leave strict out to count the bytes that they read and write")
            warnings.warn(f"{self.source}: {problem}; counted by the bytes that they read and write", stacklevel=1)
        return list(layers)


def trace(reference: str, strict: bool = False) -> Traced:
    """The model `python:module:function`, traced. Raises what `Traced.build_layers` raises."""
    traced = Traced(name=reference.rpartition(":")[2], source=reference, strict=strict)
    traced.build_layers()
    return traced


@functools.cache
def _trace(source: str, folder: Path) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Layers, and operators without a known cost."""
    try:
        import torch
    except ImportError:
        raise MissingDependencyError(
            "torch is not installed, and tracing needs it; pip install 'scaleproof[validator]'"
        ) from None
    sys.path.insert(0, str(folder))
    try:
        function = _function(source, folder)
        with torch.enable_grad(), _on_meta(torch):
            with _blaming(source, "its function", folder):
                returned = function()
            module, inputs = _checked(torch, source, returned)
            with _blaming(source, "its forward pass on the example inputs", folder):
                recorder, outputs = _run(torch, module, inputs)
    finally:
        sys.path.remove(str(folder))
    return tuple(layers_of(recorder, outputs)), tuple(sorted(recorder.unknown))


class _GpuAskedError(Exception):
    """The user's code asks for a device that tracing does not have."""


def _refuse(source: str, message: str) -> NoReturn:
    raise FieldError(("model", "source"), f"{source}: {message}")


def _function(source: str, folder: Path) -> Any:
    """The user's function."""
    module_name, _, name = source.removeprefix(_PREFIX).partition(":")
    if not (source.startswith(_PREFIX) and module_name and name):
        _refuse(source, "not of the form python:module:function")
    importlib.invalidate_caches()
    try:
        with _blaming(source, f"module {module_name}", folder):
            module = importlib.import_module(module_name)
    except FieldError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{module_name}.".startswith(f"{cause.name}."):
            _refuse(source, f"there is no module {cause.name} in {folder} or where Python looks for modules")
        raise
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        import difflib

        close = difflib.get_close_matches(name, known, n=1)
        _refuse(source, f"module {module_name} has no function {name}" + (f"; did you mean {close[0]!r}?" if close else ""))
    return function


@contextmanager
def _blaming(source: str, what: str, folder: Path) -> Iterator[None]:
    """Turns whatever the user's code raises into one line that says where."""
    try:
        yield
    except FieldError:
        raise
    except (Exception, SystemExit) as error:
        text, place = " ".join(str(error).split())[:300], _place(error, folder)
        message = f"{what} raised {type(error).__name__}: {text}{place}"
        if isinstance(error, _GpuAskedError) or re.search(r"cuda|nvidia|accelerator", text, re.IGNORECASE):
            message = f"{what} needs a GPU: {text}{place}; leave the device out, tracing needs none"
        elif re.search(r"\bmeta\b|data-dependent", text):
            message += "; while tracing, tensors have shapes and no values"
        raise FieldError(("model", "source"), f"{source}: {message}") from error


def _place(error: BaseException, folder: Path) -> str:
    """` (file:line)` of the last line that is neither torch's nor ours."""
    if isinstance(error, SyntaxError) and error.filename:
        frames = [(error.filename, error.lineno)]
    else:
        frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours = str(Path(__file__).parent)
    known = [
        (name, line)
        for name, line in frames
        if not name.startswith((ours, "<frozen")) and "/torch/" not in name and "/importlib/" not in name
    ]
    if not known:
        return ""
    name, line = known[-1]
    path = Path(name)
    return f" ({path.relative_to(folder) if path.is_relative_to(folder) else path}:{line})"


def _checked(torch: Any, source: str, returned: Any) -> tuple[Any, list[Any]]:
    """The module and its example inputs."""
    if isinstance(returned, torch.nn.Module):
        _refuse(source, f"returns a module alone; return an example of its inputs too, such as {_EXAMPLE}")
    if not (isinstance(returned, tuple) and len(returned) > 1 and isinstance(returned[0], torch.nn.Module)):
        _refuse(source, f"returns a {type(returned).__name__}; return a module and its example inputs, such as {_EXAMPLE}")
    module, *inputs = returned
    for number, tensor in enumerate(inputs, start=1):
        if not isinstance(tensor, torch.Tensor):
            _refuse(source, f"example input {number} is a {type(tensor).__name__}; give tensors")
        if tensor.dim() == 0 or len(tensor) == 0 or len(tensor) != len(inputs[0]):
            shape = "×".join(map(str, tensor.shape)) or "no dimensions"
            _refuse(source, f"example input {number} has {shape}; the first dimension of each is the batch, the same for all")
    return module, inputs


@contextmanager
def _on_meta(torch: Any) -> Iterator[None]:
    """Tensors are made on the meta device, also where the CPU is asked for. Raises _GpuAskedError where a GPU is."""

    def meta(device: Any) -> Any:
        if torch.device(device).type not in ("cpu", "meta"):
            raise _GpuAskedError(f"asks for device {device}")
        return torch.device("meta")

    class Devices(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if function is torch.Tensor.cpu:
                return args[0]
            if function is torch.Tensor.cuda:
                meta("cuda")
            devices = (torch.device, str) if function is torch.Tensor.to else torch.device
            args = tuple(meta(value) if isinstance(value, devices) else value for value in args)
            if kwargs.get("device") is not None:
                kwargs["device"] = meta(kwargs["device"])
            return function(*args, **kwargs)

    with torch.device("meta"), Devices():
        yield


def _run(torch: Any, module: Any, inputs: list[Any]) -> tuple[Recorder, set[int]]:
    """Runs the forward pass; what was noted, and ids of the storages that it returns."""
    module, inputs = module.to("meta").train(), [tensor.to("meta") for tensor in inputs]
    floats = [tensor.requires_grad_() for tensor in module.parameters() if tensor.is_floating_point()]
    dtype = floats[0].dtype if floats else torch.get_default_dtype()
    recorder = Recorder(len(inputs[0]), dtype, [*module.parameters(), *module.buffers()], inputs)
    names = {inner: name for name, inner in module.named_modules()}
    pieces = _pieces(torch, module)
    running: list[str] = []

    def enter(inner: Any, _: Any) -> None:
        running.append(names.get(inner, ""))
        recorder.within = running[-1]
        if inner in pieces:
            recorder.enter(pieces[inner])

    def leave(inner: Any, _: Any, __: Any) -> None:
        running.pop()
        recorder.within = running[-1] if running else ""

    hooks = torch.nn.modules.module
    with ExitStack() as stack:
        stack.callback(hooks.register_module_forward_pre_hook(enter).remove)
        stack.callback(hooks.register_module_forward_hook(leave).remove)
        stack.enter_context(_noting(torch, recorder))
        outputs = module(*inputs)
    _give_tensors(module, {names[inner]: piece for inner, piece in pieces.items()}, recorder)
    tensors = [tensor for tensor in torch.utils._pytree.tree_leaves(outputs) if torch.is_tensor(tensor)]
    return recorder, {id(tensor.untyped_storage()) for tensor in tensors}


@contextmanager
def _noting(torch: Any, recorder: Recorder) -> Iterator[None]:
    """Notes operators and what autograd keeps."""
    kernels = _kernels(torch, recorder)

    class Operators(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            recorder.operator(function, (args, kwargs), result)
            return result

    class Kernels(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return kernels.get(function, function)(*args, **(kwargs or {}))

    with Operators(), Kernels(), torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda tensor: tensor):
        yield


def _kernels(torch: Any, recorder: Recorder) -> dict[Any, Any]:
    """What GPUs run as one kernel and the meta device takes apart, each with a function that notes it as one."""
    hooks, functional = torch.autograd.graph.saved_tensors_hooks, torch.nn.functional
    original = functional.scaled_dot_product_attention

    def quietly(function: Any, args: Any, kwargs: Any) -> Any:
        recorder.paused = True
        with hooks(lambda tensor: tensor, lambda tensor: tensor):
            result = function(*args, **kwargs)
            if function is original and result.dim() > 3:
                # fused kernels write heads innermost, so that putting them together copies nothing
                result = result.transpose(-3, -2).contiguous().transpose(-3, -2)
        recorder.paused = False
        return result

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = quietly(original, (query, key, value, attn_mask, *args), kwargs)
        causal = args[1] if len(args) > 1 else kwargs.get("is_causal", False)
        recorder.attention(query, key, value, attn_mask, causal, result)
        return result

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002 (torch's name)
        result = quietly(functional.dropout, (input, p, training, inplace), {})
        if training and p > 0:
            recorder.dropout(input, result)
        return result

    def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:  # noqa: A002 (torch's name)
        result = quietly(functional.rms_norm, (input, normalized_shape, weight, eps), {})
        recorder.rms_norm(input, weight, result)
        return result

    def attention_of_heads(*args: Any, **kwargs: Any) -> Any:
        # modes do not see what torch's own functions call
        functional.scaled_dot_product_attention = attention
        try:
            return functional.multi_head_attention_forward(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = original

    return {
        original: attention,
        functional.dropout: dropout,
        functional.rms_norm: rms_norm,
        functional.multi_head_attention_forward: attention_of_heads,
    }


def _pieces(torch: Any, module: Any) -> dict[Any, RecordedModule]:
    """The modules that are not looked into, in order of registration.

    Looked into are Sequentials, ModuleLists and ModuleDicts, and what holds more than half of all parameters and one of these.
    """
    chains = torch.nn.Sequential, torch.nn.ModuleList
    total = sum(tensor.numel() for tensor in module.parameters())
    pieces: dict[Any, RecordedModule] = {}
    runs = 0

    def is_open(inner: Any) -> bool:
        if isinstance(inner, (*chains, torch.nn.ModuleDict)):
            return True
        large = 2 * sum(tensor.numel() for tensor in inner.parameters()) > total
        return large and any(isinstance(part, chains) and len(part) > 1 for part in inner.modules())

    def look_into(outer: Any, path: str) -> None:
        nonlocal runs
        runs += 1
        for name, inner in outer.named_children():
            full = f"{path}.{name}" if path else name
            if is_open(inner):
                look_into(inner, full)
                runs += 1
            else:
                pieces.setdefault(inner, RecordedModule(full, type(inner).__name__, runs, isinstance(outer, chains)))

    look_into(module, "")
    return pieces or {module: RecordedModule("model", type(module).__name__, 0, chained=False)}


def _give_tensors(module: Any, pieces: dict[str, RecordedModule], recorder: Recorder) -> None:
    """Gives each parameter to the piece that it stands in, of those that ran, or to the first that stands beside it."""
    last = recorder.running
    for name, parameter in module.named_parameters():
        path = name.split(".")[:-1]
        above = [".".join(path[:end]) for end in range(len(path), -1, -1)]
        owners = [pieces[prefix] for prefix in above if prefix in pieces]
        beside = [piece for piece in recorder.pieces if piece.name.startswith(above[0])]
        last = next((piece for piece in (*owners, *beside) if piece in recorder.pieces), last)
        last.tensors.append(parameter.numel())
