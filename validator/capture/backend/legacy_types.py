"""Types of tensors on the GPU as PyTorch named them first, such as `torch.cuda.FloatTensor`: functions of those on the host."""

from __future__ import annotations

from typing import Any, Final

import torch

from scaleproof.validator.capture.backend import replace_functions

_TYPES: Final = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16, "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8, "CharTensor": torch.int8, "ShortTensor": torch.int16, "IntTensor": torch.int32,
    "LongTensor": torch.int64, "BoolTensor": torch.bool,
}  # fmt: skip
_PREFIX: Final = "torch.cuda."


class _TensorType(type):
    """The type of these types."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype

    def __call__(cls, *arguments: Any, **_: Any) -> torch.Tensor:
        """A tensor with sizes, or with values."""
        values = arguments[0] if arguments else ()
        if len(arguments) == 1 and not isinstance(values, (int, torch.Size)):
            return torch.as_tensor(values, dtype=cls.dtype).cuda()
        return torch.empty(*arguments, dtype=cls.dtype, device="cuda")


def install() -> None:
    """Defines the types, and lets functions of PyTorch take them, and their names."""
    types = {name: _TensorType(name, (), {"dtype": dtype}) for name, dtype in _TYPES.items()}
    for name, made in types.items():
        setattr(torch.cuda, name, made)
    convert, set_default = torch.Tensor.type, torch.set_default_tensor_type

    def found(given: Any) -> Any:
        return types.get(given.removeprefix(_PREFIX)) if isinstance(given, str) and given.startswith(_PREFIX) else given

    def tensor_type(tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **_: Any) -> Any:
        wanted = found(dtype)
        if isinstance(wanted, _TensorType):
            return tensor.to("cuda", wanted.dtype, non_blocking=non_blocking)
        return convert(tensor) if dtype is None else convert(tensor, dtype, non_blocking)

    def set_default_type(t: Any) -> None:
        wanted = found(t)
        if not isinstance(wanted, _TensorType):
            set_default(t)
            return
        torch.set_default_dtype(wanted.dtype)
        torch.set_default_device("cuda")

    replace_functions(torch.Tensor, type=tensor_type)
    replace_functions(torch, set_default_tensor_type=set_default_type)
