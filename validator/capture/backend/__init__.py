"""A GPU that does not exist: CUDA tensors on virtual memory, whose operators are recorded and mostly not computed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def replace_functions(owner: Any, **functions: Any) -> None:
    """Replaces functions and types of a module or class by their names, also in all modules that have imported them by name.

    A function that replaces another one gets its name and signature, and is an object of its own, since some of PyTorch's
    registries have one entry per function.
    """
    by_original: dict[int, Any] = {}
    originals = [getattr(owner, name, None) for name in functions]
    for original, (name, function) in zip(originals, functions.items(), strict=True):
        replacement = _named_as(original, function) if callable(original) and not isinstance(function, type) else function
        setattr(owner, name, replacement)
        if callable(original):
            by_original[id(original)] = replacement
    for name, module in list(sys.modules.items()):
        if name.startswith("scaleproof."):
            # which keeps the originals
            continue
        names = getattr(module, "__dict__", {})
        if not by_original.keys().isdisjoint(map(id, names.values())):
            names.update({name: by_original[id(value)] for name, value in names.items() if id(value) in by_original})


def _named_as(original: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replacement(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return replacement
