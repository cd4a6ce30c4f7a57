"""Any torch module as a model: it runs once on the meta device, where tensors have shapes but no values, and is recorded.

The user writes a function that returns the module and example inputs, whose first dimension is the batch:

    def build():
        return MyNetwork(), torch.randn(8, 3, 224, 224)

and gives the model as `python:my_file:build`. Layers are the elements of the module's Sequentials and ModuleLists (blocks), and
the modules next to them. A module without products belongs to the previous layer, or to the next one if it is the first. All
parameters are assumed to be trained.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
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

    source: `python:module:function`; the working folder is searched first. strict: whether an operator of unknown cost is an
    error; otherwise its cost is that of the bytes that it reads and writes, with a warning.
    """

    kind: Literal["traced"] = "traced"
    source: str
    strict: bool = False

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The layers, traced once per process.

        Raises FieldError for any problem with the function, and MissingDependencyError if torch is not installed.
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
    """The traced model `python:module:function`; errors as in `Traced.build_layers`."""
    traced = Traced(name=reference.rpartition(":")[2], source=reference, strict=strict)
    traced.build_layers()
    return traced


@functools.cache
def _trace(source: str, folder: Path) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """The layers, and names of operators of unknown cost."""
    module_name, function_name = _names(source)
    sys.path.insert(0, str(folder))
    try:
        # before torch is imported, which takes seconds
        _check_exists(source, module_name, folder)
        try:
            import torch
        except ImportError:
            raise MissingDependencyError(
                "torch is not installed, and tracing needs it; pip install 'scaleproof[validator]'"
            ) from None
        function = _function(source, module_name, function_name, folder)
        with torch.enable_grad(), _on_meta(torch), warnings.catch_warnings():
            # of torch's own encoder layers, which has no effect on what is traced
            warnings.filterwarnings("ignore", message=".*nested_tensor.*")
            with _user_errors(source, "its function", folder):
                returned = function()
            module, inputs = _checked(torch, source, returned)
            with _user_errors(source, "its forward pass on the example inputs", folder):
                recorder, outputs = _run(torch, module, inputs)
    finally:
        sys.path.remove(str(folder))
    return tuple(layers_of(recorder, outputs)), tuple(sorted(recorder.unknown))


class _GpuRequestedError(Exception):
    """The user's code requests a device that tracing does not have."""


def _refuse(source: str, message: str) -> NoReturn:
    raise FieldError(("model", "source"), f"{source}: {message}")


def _names(source: str) -> tuple[str, str]:
    """The names of the user's module and function. Raises FieldError."""
    module_name, _, name = source.removeprefix(_PREFIX).partition(":")
    # a file is written as often as its module
    if module_name.endswith(".py"):
        module_name = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
    if not (source.startswith(_PREFIX) and module_name and name) or module_name.startswith("."):
        _refuse(source, "not of the form python:module:function")
    return module_name, name


def _check_exists(source: str, module_name: str, folder: Path) -> None:
    """Raises FieldError if there is no such module, or no package that it would be in."""
    importlib.invalidate_caches()
    package = module_name.partition(".")[0]
    with _user_errors(source, f"module {module_name}", folder):
        found = importlib.util.find_spec(package)
    if found is None:
        _refuse(source, f"there is no module {package} in {folder} or where Python looks for modules")


def _function(source: str, module_name: str, name: str, folder: Path) -> Any:
    """The user's function. Raises FieldError if it cannot be imported."""
    try:
        with _user_errors(source, f"module {module_name}", folder):
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
def _user_errors(source: str, activity: str, folder: Path) -> Iterator[None]:
    """Turns any error of the user's code into a FieldError in one line with its place. activity: what raised it."""
    try:
        yield
    except FieldError:
        raise
    except (Exception, SystemExit) as error:
        text, place = " ".join(str(error).split())[:300], _place(error, folder)
        message = f"{activity} raised {type(error).__name__}: {text}{place}"
        if isinstance(error, _GpuRequestedError) or re.search(r"cuda|nvidia|accelerator", text, re.IGNORECASE):
            message = f"{activity} needs a GPU: {text}{place}; leave the device out, tracing needs none"
        elif re.search(r"\bmeta\b|data-dependent", text):
            message += "; while tracing, tensors have shapes and no values"
        raise FieldError(("model", "source"), f"{source}: {message}") from error


def _place(error: BaseException, folder: Path) -> str:
    """` (file:line)` of the innermost line that is neither torch's nor ours."""
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
    """The module and its example inputs. Raises FieldError if the function returned something else."""
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
    """Creates tensors on the meta device, also if the CPU is requested. Raises _GpuRequestedError if a GPU is requested."""

    def meta(device: Any) -> Any:
        if torch.device(device).type not in ("cpu", "meta"):
            raise _GpuRequestedError(f"requests device {device}")
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
    """Runs the forward pass; returns the record, and ids of the storages of the outputs."""
    module, inputs = module.to("meta").train(), [tensor.to("meta") for tensor in inputs]
    floats = [tensor.requires_grad_() for tensor in module.parameters() if tensor.is_floating_point()]
    dtype = floats[0].dtype if floats else torch.get_default_dtype()
    recorder = Recorder(len(inputs[0]), dtype, [*module.parameters(), *module.buffers()], inputs)
    names = {inner: name for name, inner in module.named_modules()}
    recorded = _recorded_modules(torch, module)
    running: list[str] = []

    def enter(inner: Any, _: Any) -> None:
        running.append(names.get(inner, ""))
        recorder.within = running[-1]
        if inner in recorded:
            recorder.enter(recorded[inner])

    def leave(inner: Any, _: Any, __: Any) -> None:
        running.pop()
        recorder.within = running[-1] if running else ""

    hooks = torch.nn.modules.module
    with ExitStack() as stack:
        stack.callback(hooks.register_module_forward_pre_hook(enter).remove)
        stack.callback(hooks.register_module_forward_hook(leave).remove)
        stack.enter_context(_recording(torch, recorder))
        outputs = module(*inputs)
    _assign_parameters(module, {names[inner]: record for inner, record in recorded.items()}, recorder)
    tensors = [tensor for tensor in torch.utils._pytree.tree_leaves(outputs) if torch.is_tensor(tensor)]
    return recorder, {id(tensor.untyped_storage()) for tensor in tensors}


@contextmanager
def _recording(torch: Any, recorder: Recorder) -> Iterator[None]:
    """Records operators and the tensors that autograd saves."""
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
    """Functions that GPUs run as one kernel but the meta device decomposes, each with a function that records one kernel."""
    hooks, functional = torch.autograd.graph.saved_tensors_hooks, torch.nn.functional
    original = functional.scaled_dot_product_attention

    def unrecorded(function: Any, args: Any, kwargs: Any) -> Any:
        recorder.paused = True
        with hooks(lambda tensor: tensor, lambda tensor: tensor):
            result = function(*args, **kwargs)
            if function is original and result.dim() > 3:
                # fused kernels write heads innermost, so that concatenating them copies nothing
                result = result.transpose(-3, -2).contiguous().transpose(-3, -2)
        recorder.paused = False
        return result

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = unrecorded(original, (query, key, value, attn_mask, *args), kwargs)
        causal = args[1] if len(args) > 1 else kwargs.get("is_causal", False)
        recorder.attention(query, key, value, attn_mask, causal, result)
        return result

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002 (torch's name)
        result = unrecorded(functional.dropout, (input, p, training, inplace), {})
        if training and p > 0:
            recorder.dropout(input, result)
        return result

    def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:  # noqa: A002 (torch's name)
        result = unrecorded(functional.rms_norm, (input, normalized_shape, weight, eps), {})
        recorder.rms_norm(input, weight, result)
        return result

    def attention_of_heads(*args: Any, **kwargs: Any) -> Any:
        # modes do not intercept calls inside torch's own functions
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


def _recorded_modules(torch: Any, module: Any) -> dict[Any, RecordedModule]:
    """The modules that are recorded as a whole, in order of registration.

    Sequentials, ModuleLists, ModuleDicts, and modules with one of these and more than half of all parameters are recorded by
    their submodules.
    """
    chains = torch.nn.Sequential, torch.nn.ModuleList
    total = sum(tensor.numel() for tensor in module.parameters())
    recorded: dict[Any, RecordedModule] = {}
    runs = 0

    def is_open(inner: Any) -> bool:
        if isinstance(inner, (*chains, torch.nn.ModuleDict)):
            return True
        large = 2 * sum(tensor.numel() for tensor in inner.parameters()) > total
        return large and any(isinstance(part, chains) and len(part) > 1 for part in inner.modules())

    def visit(outer: Any, path: str) -> None:
        nonlocal runs
        runs += 1
        for name, inner in outer.named_children():
            full = f"{path}.{name}" if path else name
            if is_open(inner):
                visit(inner, full)
                runs += 1
            else:
                recorded.setdefault(inner, RecordedModule(full, type(inner).__name__, runs, isinstance(outer, chains)))

    visit(module, "")
    return recorded or {module: RecordedModule("model", type(module).__name__, 0, chained=False)}


def _assign_parameters(module: Any, recorded: dict[str, RecordedModule], recorder: Recorder) -> None:
    """Assigns each parameter to the innermost recorded module around it that ran, or else to the first one at its path."""
    last = recorder.running
    for name, parameter in module.named_parameters():
        path = name.split(".")[:-1]
        prefixes = [".".join(path[:end]) for end in range(len(path), -1, -1)]
        owners = [recorded[prefix] for prefix in prefixes if prefix in recorded]
        siblings = [ran for ran in recorder.modules if ran.name.startswith(prefixes[0])]
        last = next((owner for owner in (*owners, *siblings) if owner in recorder.modules), last)
        last.tensors.append(parameter.numel())
