"""Launches of Triton's kernels, which are recorded in place of being compiled: name, grid, tensors and the bytes of each."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from scaleproof.simulator.captured.known_kernels import TENSORS, VALUES
from scaleproof.validator.capture.backend.kernels import Kernels
from scaleproof.validator.capture.job import DeviceProperties
from scaleproof.validator.capture.trace import RankTrace

_TUNED: Final = "launches {}, whose configuration is tuned on a GPU; its first configuration counts"
_READS: Final = ("load", "gather", "atomic_cas")
_WRITES: Final = ("store", "scatter", "atomic_")
_PLAIN: Final = (bool, int, float, str)


class TritonLaunches:
    """Records launches. kernels: of the device; trace: gets notes for users."""

    def __init__(self, kernels: Kernels, trace: RankTrace, device: DeviceProperties, index: int) -> None:
        self._kernels, self._trace, self._device, self._index = kernels, trace, device, index

    def install(self, module: types.ModuleType) -> None:
        """Makes an imported Triton, or what stands in for it, record its launches."""
        runtime: Any = module.runtime
        launches = self
        runtime.jit.JITFunction.run = lambda function, *arguments, **keywords: launches.launch(function, arguments, keywords)
        runtime.autotuner.Autotuner.run = lambda tuner, *arguments, **keywords: launches.tuned(tuner, arguments, keywords)
        runtime.driver.set_active(self._driver())

    def launch(self, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Records a launch of a kernel with arguments; `grid`, `warmup` and options of the compiler are among the keywords."""
        if keywords.get("warmup"):
            return
        names = tuple(inspect.signature(function.fn).parameters)
        given = dict(zip(names, arguments, strict=False)) | {name: keywords[name] for name in names if name in keywords}
        grid = keywords.get("grid")
        if callable(grid):
            grid = grid({**keywords, **given})
        sizes = [int(size) for size in grid] if isinstance(grid, (tuple, list)) else [1]
        reads, writes = _accesses(function.fn)
        inputs, outputs = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        for name, value in given.items():
            # descriptors and reinterpreted tensors refer to one
            tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)
            if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
                continue
            # where the source does not show what is written, each tensor counts once, and its values are unknown from now on
            if name in writes or not writes:
                outputs[name] = tensor
            if name in reads or (writes and name not in writes):
                inputs[name] = tensor
        plain = {name: value for name, value in given.items() if isinstance(value, _PLAIN)}
        recorded = {TENSORS: [*inputs, *outputs], VALUES: {**plain, "grid": sizes}}
        self._kernels.launch(f"triton::{function.fn.__name__}", list(inputs.values()), list(outputs.values()), recorded)

    def tuned(self, tuner: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Launches a kernel with the first of its configurations."""
        configuration = tuner.configs[0]
        tuner.best_config = configuration
        own = configuration.all_kwargs()
        if len(tuner.configs) > 1:
            self._trace.note(_TUNED.format(getattr(tuner.base_fn, "__name__", "a kernel")))
        if configuration.pre_hook is not None:
            configuration.pre_hook({**dict(zip(tuner.arg_names, arguments, strict=False)), **keywords, **own})
        tuner.fn.run(*arguments, **keywords, **own)

    def _driver(self) -> Any:
        """What scripts ask of the driver."""
        device = self._device
        major, minor = device.capability
        target = types.SimpleNamespace(backend="cuda", arch=10 * major + minor, warp_size=32)
        properties = {
            "max_shared_mem": 232448, "multiprocessor_count": device.processors, "max_num_regs": 65536, "warpSize": 32,
            "sm_clock_rate": 1, "mem_clock_rate": 1, "mem_bus_width": 1,
        }  # fmt: skip
        return types.SimpleNamespace(
            get_current_target=lambda: target, get_current_device=lambda: self._index, set_current_device=lambda _: None,
            get_current_stream=lambda _=None: self._trace.context.stream, get_active_torch_device=lambda: torch.device("cuda"),
            get_device_interface=lambda: torch.cuda, is_active=lambda: True,
            utils=types.SimpleNamespace(get_device_properties=lambda _=None: properties),
            get_empty_cache_for_benchmark=lambda: torch.empty(1, device="cuda"), clear_cache=lambda _: None,
            get_benchmarker=lambda: lambda call, **_: (call(), [1.0] * 3)[1],
        )  # fmt: skip


@functools.cache
def _accesses(function: Callable[..., Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Names of a kernel's arguments whose memory it reads, and of those whose memory it writes; empty where its source, which
    may pass pointers to other functions, does not show it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return frozenset(), frozenset()
    of: dict[str, set[str]] = {name: {name} for name in inspect.signature(function).parameters}

    def arguments_of(node: ast.AST) -> set[str]:
        return {found for one in ast.walk(node) if isinstance(one, ast.Name) for found in of.get(one.id, ())}

    reads, writes = set[str](), set[str]()
    for node in sorted((one for one in ast.walk(tree) if hasattr(one, "lineno")), key=lambda one: one.lineno):
        if isinstance(node, ast.Assign | ast.AugAssign) and not _is_value(node.value):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in (one.id for one in ast.walk(target) if isinstance(one, ast.Name)):
                    of.setdefault(name, set()).update(arguments_of(node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # tl.load(pointer, …), or descriptor.load(…)
            is_module = isinstance(node.func.value, ast.Name) and node.func.value.id not in of
            pointer = node.args[0] if is_module and node.args else node.func.value
            if node.func.attr.startswith(_READS):
                reads |= arguments_of(pointer)
            elif node.func.attr.startswith(_WRITES):
                writes |= arguments_of(pointer)
    return frozenset(reads), frozenset(writes)


def _is_value(node: ast.AST) -> bool:
    """Whether an expression is what a kernel has read, rather than a pointer."""
    return any(isinstance(one, ast.Attribute) and one.attr.startswith(("load", "atomic_")) for one in ast.walk(node))
