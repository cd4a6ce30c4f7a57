"""Scripts for GPUs on a machine without any: PyTorch's names of CUDA devices stand for the processor.

Tensors, modules, meshes and contexts that a script makes on `cuda` are made on the processor, with real values. All else
that decides what is computed stays as on a GPU: half precision where autocast has it on GPUs, and optimizers that update lists
of tensors.
"""

from __future__ import annotations

import functools
import importlib.abc
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils import _foreach_utils
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map

from scaleproof.validator.capture.backend import cuda_api
from scaleproof.validator.capture.job import DeviceProperties

_CPU: Final = torch.device("cpu")
_DEVICE: Final = torch.device
# What a real run replaces, for users.
REPLACED: Final = (
    "cuda by the processor (one thread per rank), whose freed memory stays with the process; nccl by gloo; torch.compile does "
    "not compile"
)
_LIKE: Final = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_NEW: Final = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_MS_PER_S: Final = 1e3
# Operators that autocast runs in fp32 on GPUs, and not on processors: losses, norms and functions with a wide range
# (https://docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast to float32"), by overload.
_IN_FP32: Final = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "frobenius_norm.dim", "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "prod", "prod.dim_int", "softmax.int",
    "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList", "norm.Scalar", "norm.ScalarOpt_dim",
)  # fmt: skip
_AUTOCAST: Final = "AutocastCPU"
_LOWER: Final = (torch.float16, torch.bfloat16)
# What PyTorch refers to by name only.
_libraries: list[Any] = []


def on_cpu(device: Any) -> Any:
    """The processor in place of a CUDA device, which is a name, a number or a device; anything else as it is."""
    if isinstance(device, str):
        return "cpu" if device.partition(":")[0] == "cuda" else device
    if isinstance(device, int) and not isinstance(device, bool):
        return _CPU
    return _CPU if isinstance(device, _DEVICE) and device.type == "cuda" else device


def install(device: DeviceProperties, index: int, devices: int) -> None:
    """Replaces the functions in this process. index: of the rank's device among those of its node."""
    cuda_api.install(_Streams(), _NoMemory(), device, index, devices)  # type: ignore[arg-type]
    torch.cuda.Event = _TimedEvent  # type: ignore[assignment, misc]
    torch.device = _device_type()  # type: ignore[assignment, misc]
    _replace_functions()
    _replace_methods()
    _replace_classes()
    _install_autocast()
    sys.meta_path.insert(0, _Accelerators())
    # optimizers and norms of gradients take the lists of tensors that they take on GPUs
    optimizer: Any = sys.modules[Optimizer.__module__]
    foreach: Any = _foreach_utils
    supported = [*foreach._get_foreach_kernels_supported_devices(), "cpu"]
    for module in (foreach, optimizer):
        module._get_foreach_kernels_supported_devices = lambda: supported


class _Accelerators(importlib.abc.MetaPathFinder):
    """Finds Lightning's modules for GPUs, whose accelerators then take the processor as device."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """See importlib."""
        found = PathFinder.find_spec(name, path) if name.endswith(".accelerators.cuda") else None
        if found is None:
            return None
        loader: Any = found.loader
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            module.CUDAAccelerator.setup_device = lambda *_: None

        loader.exec_module = exec_module
        return found


class _Streams:
    """The streams of a device that completes each operator before the next one."""

    def __init__(self) -> None:
        self.context = SimpleNamespace(stream=0)

    def add(self, *_: Any, **__: Any) -> None:
        """Nothing is recorded."""

    def answer(self, *_: Any) -> None:
        """Nothing is recorded."""


class _NoMemory:
    """The memory of a device that has none of its own."""

    live_bytes = 0
    peak_bytes = 0

    def reset_peak(self) -> None:
        """Nothing is counted."""


class _TimedEvent:
    """An event of a device that completes each operator before the next one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.time_s = 0.0

    def record(self, stream: Any = None) -> None:
        """Notes the time."""
        self.time_s = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Is complete."""

    def synchronize(self) -> None:
        """Is complete."""

    def query(self) -> bool:
        """Whether it has happened: always."""
        return True

    def elapsed_time(self, end: _TimedEvent) -> float:
        """Milliseconds until another event."""
        return _MS_PER_S * (end.time_s - self.time_s)


def _device_type() -> type:
    """The type of devices, whose calls return the processor in place of a CUDA device."""

    class Instances(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _DEVICE)

    class Device(metaclass=Instances):
        def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
            given = arguments[0] if arguments else keywords.get("device", keywords.get("type"))
            return _CPU if on_cpu(given) is not given else _DEVICE(*arguments, **keywords)

    Device.__name__ = Device.__qualname__ = "device"
    return Device


def _redirected(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose argument `device` is the processor in place of a CUDA device."""

    @functools.wraps(function)
    def redirected(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("device") is not None:
            keywords["device"] = on_cpu(keywords["device"])
        return function(*arguments, **keywords)

    # by its identity, torch.jit.script takes it for the operator that it calls
    scripted: Any = torch.jit._builtins
    if (operator := scripted._get_builtin_table().get(id(function))) is not None:
        scripted._register_builtin(redirected, operator)
    return redirected


def _replace_functions() -> None:
    """Replaces the functions that make tensors."""
    makers = _device_constructors()
    for module in (torch, torch.fft, torch.nested):
        for name in dir(module):
            function = getattr(module, name)
            if callable(function) and (function in makers or (module is torch and name in _LIKE)):
                setattr(module, name, _redirected(function))
    library: Any = torch
    load = torch.load

    def loaded(file: Any, map_location: Any = None, **keywords: Any) -> Any:
        return load(file, map_location=on_cpu(map_location), **keywords)

    library.load = loaded


def _replace_methods() -> None:
    """Replaces methods that move tensors and modules to a device. Those of modules call those of tensors."""
    tensor: Any = torch.Tensor
    to = tensor.to

    def moved(own: Any, *arguments: Any, **keywords: Any) -> Any:
        if arguments and not isinstance(arguments[0], torch.Tensor):
            arguments = (on_cpu(arguments[0]), *arguments[1:])
        if "device" in keywords:
            keywords["device"] = on_cpu(keywords["device"])
        return to(own, *arguments, **keywords)

    tensor.to = moved
    tensor.cuda = lambda own, *_, **__: own
    for name in _NEW:
        setattr(tensor, name, _redirected(getattr(tensor, name)))
    module: Any = torch.nn.Module
    module.cuda = lambda own, *_, **__: own
    module.to_empty = _redirected(module.to_empty)


def _replace_classes() -> None:
    """Replaces arguments of classes that name a device."""
    from torch.distributed import device_mesh

    _with_first(torch.amp.GradScaler)
    _with_first(device_mesh.DeviceMesh)
    for module in (device_mesh, torch.distributed):
        make = module.init_device_mesh
        module.init_device_mesh = functools.wraps(make)(  # type: ignore[attr-defined]
            lambda kind, *arguments, _make=make, **keywords: _make(on_cpu(kind), *arguments, **keywords)
        )
    parallel: Any = DistributedDataParallel
    init = parallel.__init__

    def initialised(
        own: Any, module: Any, device_ids: Any = None, output_device: Any = None, *rest: Any, **others: Any
    ) -> None:
        # a processor has no numbered devices
        init(own, module, None, None, *rest, **others)

    parallel.__init__ = initialised


def _with_first(of: Any) -> None:
    """Replaces a class's constructor by one whose first argument is the processor in place of a CUDA device."""
    init = of.__init__

    @functools.wraps(init)
    def initialised(own: Any, first: Any = "cuda", *arguments: Any, **keywords: Any) -> None:
        for name in ("device", "device_type"):
            if name in keywords:
                first = keywords.pop(name)
        init(own, on_cpu(first), *arguments, **keywords)

    of.__init__ = initialised


def _install_autocast() -> None:
    """Makes autocast for `cuda` one for the processor, by the rules of GPUs."""
    from torch.amp.autocast_mode import autocast

    scope: Any = autocast
    init = scope.__init__

    def initialised(own: Any, device_type: str, dtype: Any = None, *arguments: Any, **keywords: Any) -> None:
        if device_type == "cuda":
            # the type that autocast has on GPUs by default
            device_type, dtype = "cpu", dtype or torch.float16
        init(own, device_type, dtype, *arguments, **keywords)

    scope.__init__ = initialised
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    for name in _IN_FP32:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), _AUTOCAST):
            library.impl(operator, _in_fp32(operator), _AUTOCAST)


def _in_fp32(operator: Any) -> Callable[..., Any]:
    """An operator whose inputs in half precision are converted to fp32."""
    excluded = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def wide(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in _LOWER else value

    def computed(*arguments: Any, **keywords: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(excluded):
            return operator(*tree_map(wide, arguments), **tree_map(wide, keywords))

    return computed
