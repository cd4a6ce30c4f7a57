"""A GPU that does not exist: CUDA tensors on virtual memory, whose operators are recorded and mostly not computed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

# By the names of modules: the number of names in a module, and identities of what they refer to. Each replacement looks for
# its originals in all modules, of which few have one.
_REFERENCES: Final[dict[str, tuple[int, frozenset[int]]]] = {}


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
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("scaleproof."):
            # which keeps the originals
            continue
        names = getattr(module, "__dict__", {})
        if not _references(module_name, names).isdisjoint(by_original):
            names.update({name: by_original[id(value)] for name, value in names.items() if id(value) in by_original})
            del _REFERENCES[module_name]


def _references(module_name: str, names: dict[str, Any]) -> frozenset[int]:
    """Identities of what the names in a module refer to, looked at again where names have been added."""
    count, found = _REFERENCES.get(module_name, (-1, frozenset[int]()))
    if count != len(names):
        found = frozenset(map(id, names.values()))
        _REFERENCES[module_name] = len(names), found
    return found


def _named_as(original: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replacement(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return replacement
