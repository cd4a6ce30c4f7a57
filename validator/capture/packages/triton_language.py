"""Stands in for Triton where it is not installed: kernels are defined and launched, and nothing of them is run."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch.utils._triton import has_triton, has_triton_package


class _Anything(types.ModuleType):
    """A name of Triton's language, which only compiled code uses: its attributes, calls and items are such names too."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.__name__}.{name}")

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        # a decorator returns what it decorates
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else self

    def __getitem__(self, _: Any) -> Any:
        return self


class Constexpr:
    """`tl.constexpr`: a value."""

    def __init__(self, value: Any) -> None:
        self.value = getattr(value, "value", value)

    def __index__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == getattr(other, "value", other))

    def __hash__(self) -> int:
        return hash(self.value)


class KernelInterface:
    """What is launched by `kernel[grid](…)`."""

    run: Callable[..., Any]

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *arguments, **keywords: self.run(*arguments, grid=grid, warmup=False, **keywords)


class JITFunction(KernelInterface):
    """A kernel, or a function that kernels call."""

    def __init__(self, fn: Callable[..., Any], **_: Any) -> None:
        self.fn, self.__name__, self.__doc__, self.__module__ = fn, fn.__name__, fn.__doc__, fn.__module__
        code = fn.__code__
        self.arg_names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Refused, as by Triton."""
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


class Config:
    """A configuration of a tuned kernel."""

    def __init__(
        self, kwargs: Mapping[str, Any], num_warps: int = 4, num_stages: int = 3, num_ctas: int = 1, pre_hook: Any = None,
        **_: Any,
    ) -> None:  # fmt: skip
        self.kwargs, self.num_warps, self.num_stages, self.num_ctas = dict(kwargs), num_warps, num_stages, num_ctas
        self.pre_hook = pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        """Constants of the kernel, and options of the compiler."""
        return {**self.kwargs, "num_warps": self.num_warps, "num_stages": self.num_stages}


class Autotuner(KernelInterface):
    """A kernel with several configurations."""

    def __init__(self, fn: Any, configs: Sequence[Config]) -> None:
        self.fn, self.configs, self.arg_names = fn, list(configs) or [Config({})], fn.arg_names
        self.base_fn = getattr(fn, "base_fn", fn)
        self.__name__ = self.base_fn.__name__


class Heuristics(KernelInterface):
    """A kernel some of whose constants follow from its arguments."""

    def __init__(self, fn: Any, values: Mapping[str, Callable[[Any], Any]]) -> None:
        self.fn, self.values, self.arg_names = fn, values, fn.arg_names
        self.base_fn = getattr(fn, "base_fn", fn)
        self.__name__ = self.base_fn.__name__

    def run(self, *arguments: Any, **keywords: Any) -> Any:
        """Launches it."""
        for name, of in self.values.items():
            keywords[name] = of({**dict(zip(self.arg_names, arguments, strict=False)), **keywords})
        return self.fn.run(*arguments, **keywords)


class TensorDescriptor:
    """A tensor whose tiles a kernel loads."""

    def __init__(self, base: Any, shape: Any, strides: Any, block_shape: Any, padding: str = "zero") -> None:
        self.base, self.shape, self.strides, self.block_shape, self.padding = base, shape, strides, block_shape, padding

    @classmethod
    def from_tensor(cls, tensor: Any, block_shape: Any, padding: str = "zero") -> TensorDescriptor:
        """The descriptor of a whole tensor."""
        return cls(tensor, list(tensor.shape), list(tensor.stride()), block_shape, padding)


class _Drivers:
    active: Any = None

    def set_active(self, driver: Any) -> None:
        """Makes a driver the one that scripts ask."""
        self.active = driver


def _jit(function: Any = None, **options: Any) -> Any:
    return JITFunction(function) if function is not None else lambda of: JITFunction(of, **options)


def _next_power_of_2(number: int) -> int:
    return 1 << (int(number) - 1).bit_length() if number > 0 else 0


_drivers: Final = _Drivers()
_runtime: Final = types.SimpleNamespace(
    jit=types.SimpleNamespace(JITFunction=JITFunction, KernelInterface=KernelInterface), driver=_drivers,
    autotuner=types.SimpleNamespace(Autotuner=Autotuner, Heuristics=Heuristics, Config=Config),
)  # fmt: skip
_top: Final = {
    "jit": _jit, "Config": Config, "JITFunction": JITFunction, "KernelInterface": KernelInterface,
    "autotune": lambda configs=(), **_: lambda function: Autotuner(function, configs),
    "heuristics": lambda values: lambda function: Heuristics(function, values),
    "cdiv": lambda number, by: -(-number // by), "next_power_of_2": _next_power_of_2, "set_allocator": lambda _: None,
}  # fmt: skip
_language: Final = {"__getattr__": _Anything("triton.language").__getattr__, "constexpr": Constexpr}
# PyTorch looks for Triton once, and needs more of it than a script does
has_triton_package()
has_triton()
MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "triton": _top, "triton.language": _language, "triton.language.*": _language,
    "triton.runtime": vars(_runtime), "triton.runtime.jit": vars(_runtime.jit),
    "triton.runtime.autotuner": vars(_runtime.autotuner),
    "triton.testing": {"__getattr__": _Anything("triton.testing").__getattr__},
    "triton.tools.tensor_descriptor": {"TensorDescriptor": TensorDescriptor},
}  # fmt: skip
