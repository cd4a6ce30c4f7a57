"""Work of kernels from outside PyTorch: as their record gives it, or as files of known kernels do, by the names of arguments.

A file has a list `kernels`. Each entry has `names`, a regular expression that the kernel's name matches in whole; then `bound:
bytes` for a kernel whose time is that of the bytes which it moves, `products`, a list of [m, n, k] or [m, n, k, batch], or
`attention` with samples, heads, key_heads, queries, keys, width, causal and backward; and `source`. Sizes are expressions of
the kernel's arguments: `x[0]` is the first dimension of the tensor x, `n` a number; `//`, `*`, `+`, `-`, `==` combine them.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.captured.record import Signature
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model.operators import Attention, Product
from scaleproof.simulator.model.torch_operators import Work, work_of

# Arguments of a signature: work of a kernel as `plain_of` writes it; names of its tensors in order, and its plain arguments.
WORK: Final = "work"
TENSORS: Final = "tensors"
VALUES: Final = "values"
# FLOPs of attention's backward pass over those of its forward pass where the scores that it computes again count, as PyTorch
# counts them.
_COUNTED_BACKWARD: Final = 2.5
_OPERATIONS: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Add: operator.add, ast.Sub: operator.sub, ast.Eq: operator.eq,
}  # fmt: skip
# Namespaces of operators that PyTorch itself defines; those of others may mean something else by the same names.
_PYTORCH: Final = ("", "aten", "inductor", "fsdp", "prims", "c10d", "_c10d_functional", "torchvision", "quantized")
_ATTENTION: Final = ("samples", "heads", "key_heads", "queries", "keys", "width", "causal", "backward")


def attention_work(
    samples: float, heads: int, queries: int, keys: int, width: int, *, key_heads: int = 0, value_width: int = 0,
    seen: float = 1.0, backward: bool = False,
) -> Work:  # fmt: skip
    """The work of attention in one kernel. seen: share of scores that a mask leaves."""
    sizes = heads, key_heads or heads, queries, keys, width, value_width or width
    return Work(attention=Attention("attention", *sizes, seen=seen, flash=True), samples=samples, backward=backward)


def counted_flops(work: Work) -> float:
    """FLOPs as PyTorch counts them, which include the scores that attention's backward pass computes again."""
    if work.attention is not None and work.backward:
        return _COUNTED_BACKWARD * work.attention.forward_flops * work.samples
    return work.flops


def plain_of(work: Work) -> dict[str, Any]:
    """Work without its bytes, as a record keeps it."""
    defaults = Work()
    changed = {one.name: value for one in fields(Work) if (value := getattr(work, one.name)) != getattr(defaults, one.name)}
    if work.attention is not None:
        changed["attention"] = asdict(work.attention)
    return changed


def kernel_work(name: str, signature: Signature, moved_bytes: float, file: Path | None = None) -> Work:
    """The work of a recorded operator. file: of further known kernels. Raises InputError for a wrong file."""
    given = signature.arguments.get(WORK)
    if given is not None:
        products = tuple(Product(*sizes) for sizes in given.get("products", ()))
        attention = Attention(**given["attention"]) if "attention" in given else None
        work = Work(**given | {"products": products, "attention": attention})
        return replace(work, moved_bytes=moved_bytes, boundness=work.boundness or "bandwidth")
    if TENSORS not in signature.arguments and name.rpartition("::")[0] in _PYTORCH:
        return work_of(name, [shape for shape, _, _ in signature.inputs], signature.arguments, moved_bytes)
    for entry in (*(_entries(file) if file is not None else ()), *_entries(catalog.ROOT / "kernels" / "known_kernels.yaml")):
        if entry.pattern.fullmatch(name.rpartition("::")[2]):
            return replace(entry.work(_arguments(signature)), moved_bytes=moved_bytes, boundness="bandwidth")
    return Work(moved_bytes=moved_bytes, boundness="unknown")


def _arguments(signature: Signature) -> dict[str, Any]:
    """Shapes of a kernel's tensors and its other arguments, by name."""
    shapes = [shape for shape, _, _ in (*signature.inputs, *signature.outputs)]
    return dict(zip(signature.arguments.get(TENSORS, ()), shapes, strict=False)) | dict(signature.arguments.get(VALUES, {}))


class _Entry:
    """Known kernels of a file."""

    def __init__(self, path: Path, plain: Mapping[str, Any]) -> None:
        self._path, self._plain = path, plain
        self.pattern = re.compile(plain["names"])
        if not any(key in plain for key in ("bound", "products", "attention")):
            raise KeyError("bound, products or attention")

    def work(self, arguments: Mapping[str, Any]) -> Work:
        """The work of a kernel with arguments. Raises InputError where they do not have what the entry names."""
        try:
            if "products" in self._plain:
                sizes = [[int(_value(str(size), arguments)) for size in one] for one in self._plain["products"]]
                return Work(products=tuple(Product(*one) for one in sizes))
            if "attention" in self._plain:
                given = {name: _value(str(text), arguments) for name, text in self._plain["attention"].items()}
                return attention_work(seen=0.5 if given.pop("causal", False) else 1.0, **given)
        except (KeyError, IndexError, TypeError) as error:
            words = f"{self._path}: {self._plain['names']}: {error} is no argument of the kernel, which has"
            raise InputError(f"{words} {', '.join(map(str, arguments))}; correct the entry") from None
        return Work()


def _value(text: str, arguments: Mapping[str, Any]) -> Any:
    """The value of an expression. Raises KeyError, IndexError or TypeError for one that arguments do not have."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return arguments[node.id]
            case ast.Subscript():
                return value(node.value)[value(node.slice)]
            case ast.BinOp():
                return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
            case ast.Compare(ops=[one], comparators=[other]):
                return _OPERATIONS[type(one)](value(node.left), value(other))
        raise TypeError(text)

    return value(ast.parse(text, mode="eval").body)


@functools.cache
def _entries(path: Path) -> Sequence[_Entry]:
    """Known kernels of a file. Raises InputError for a wrong one."""
    plain: Any = yaml_file.read(path).data
    try:
        entries = [_Entry(path, one) for one in plain["kernels"]]
        unknown = [name for one in plain["kernels"] for name in one.get("attention", ()) if name not in _ATTENTION]
        if unknown:
            raise KeyError(unknown[0])
    except (KeyError, TypeError, re.error) as error:
        words = "expected a list 'kernels' of entries with names, and bound, products or attention"
        raise InputError(f"{path}: {words} ({type(error).__name__}: {error}); see known_kernels.yaml") from None
    return entries
