"""Operators of torchvision, declared where its own library cannot be loaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import torch

# Libraries end with their objects.
_KEPT: Final[list[Any]] = []


def declare_vision() -> None:
    """Declares the operators that importing torchvision needs, where its own library is built for another PyTorch: pip's is for
    CUDA. Scripts that call them fail as they would without a library."""
    found = importlib.util.find_spec("torchvision")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        return
    operators: Any = torch.ops
    untyped: Any = torch.library
    try:
        operators.load_library(str(Path(places[0]) / "_C.so"))
    except OSError:
        library: Any = untyped.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
