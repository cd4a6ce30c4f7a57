"""A GPU that does not exist: CUDA tensors on virtual memory, whose operators are recorded and mostly not computed."""

from __future__ import annotations

from typing import Any


def replace_functions(owner: Any, **functions: Any) -> None:
    """Replaces functions and types of a module or class by their names."""
    for name, function in functions.items():
        setattr(owner, name, function)
