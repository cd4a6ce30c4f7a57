"""The trace of a torch module: it runs once on the meta device, where tensors have shapes but no values, and is recorded.

Layers are the elements of the module's Sequentials and ModuleLists (blocks), and the modules next to them. A module without
products belongs to the previous layer, or to the next one if it is the first. Parameters whose `requires_grad` is false are
frozen: autograd computes no gradients of them, nor anything below the first trained one.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.tracing.operator_recording import RecordedModule, Recorder, grouped, layers_of
from scaleproof.simulator.model.tracing.user_function import (
    GpuRequestedError,
    UserModel,
    checked,
    loss_of,
    user_errors,
    user_function,
)


class Trace(NamedTuple):
    """A traced model. unknown: names of operators of unknown cost. modules: by layer, the names of its modules. repeated: names
    of a module with parameters and of one that ran before it ran again; None if each runs at once."""

    layers: tuple[Layer, ...]
    unknown: tuple[str, ...]
    modules: tuple[tuple[str, ...], ...]
    repeated: tuple[str, str] | None


@functools.cache
def trace_of(source: str, folder: Path) -> Trace:
    """The trace of a user's model; errors as in `Traced.build_layers`."""
    with user_function(source, folder) as (torch, function), torch.enable_grad(), _on_meta(torch), warnings.catch_warnings():
        # of torch's own encoder layers, which has no effect on what is traced
        warnings.filterwarnings("ignore", message=".*nested_tensor.*")
        with user_errors(source, "its function", folder):
            returned = function()
        user = checked(torch, source, returned)
        with user_errors(source, "its forward pass on the example inputs", folder):
            recorder, outputs = _run(torch, source, user)
    modules = tuple(tuple(module.name for module in group) for group in grouped(recorder.modules))
    return Trace(tuple(layers_of(recorder, outputs)), tuple(sorted(recorder.unknown)), modules, recorder.repeated)


@contextmanager
def _on_meta(torch: Any) -> Iterator[None]:
    """Creates tensors on the meta device, also if the CPU is requested, except schedules (`linspace`), whose values modules
    read while they are built. Raises GpuRequestedError if a GPU is requested."""

    def meta(device: Any) -> Any:
        if torch.device(device).type not in ("cpu", "meta"):
            raise GpuRequestedError(f"requests device {device}")
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
            if function is torch.linspace:
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

    autocast = torch.autocast.__init__

    def on_cpu(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        """Enters autocast of the CPU in place of that of the meta device, which torch does not have."""
        autocast(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = on_cpu
    try:
        with torch.device("meta"), Devices():
            yield
    finally:
        torch.autocast.__init__ = autocast


def _run(torch: Any, source: str, user: UserModel) -> tuple[Recorder, set[int]]:
    """Runs the forward pass and the user's loss; returns the record, and ids of the storages of the outputs."""
    module = user.module.to("meta").train()
    inputs, targets = ([tensor.to("meta") for tensor in group] for group in (user.inputs, user.targets))
    floats = [tensor for tensor in module.parameters() if tensor.is_floating_point()]
    dtype = floats[0].dtype if floats else torch.get_default_dtype()
    frozen = [tensor for tensor in floats if not tensor.requires_grad]
    recorder = Recorder(len(inputs[0]), dtype, [*module.parameters(), *module.buffers()], [*inputs, *targets], frozen)
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
        if user.loss is not None:
            outputs = loss_of(torch, source, user, outputs, targets)
    loss_of(torch, source, user._replace(loss=None), outputs, ())
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
                has_parameters = next(inner.parameters(), None) is not None
                recorded.setdefault(
                    inner, RecordedModule(full, type(inner).__name__, runs, isinstance(outer, chains), has_parameters)
                )

    visit(module, "")
    return recorded or {module: RecordedModule("model", type(module).__name__, 0, chained=False, has_parameters=True)}


def _assign_parameters(module: Any, recorded: dict[str, RecordedModule], recorder: Recorder) -> None:
    """Assigns each parameter to the innermost recorded module around it that ran, or else to the first one at its path."""
    last = recorder.running
    for name, parameter in module.named_parameters():
        path = name.split(".")[:-1]
        prefixes = [".".join(path[:end]) for end in range(len(path), -1, -1)]
        owners = [recorded[prefix] for prefix in prefixes if prefix in recorded]
        siblings = [ran for ran in recorder.modules if ran.name.startswith(prefixes[0])]
        last = next((owner for owner in (*owners, *siblings) if owner in recorder.modules), last)
        if parameter.requires_grad:
            table = recorder.table(name, parameter, len(last.tensors))
            last.tables += [] if table is None else [table]
            last.tensors.append(parameter.numel())
        else:
            last.frozen += parameter.numel()
