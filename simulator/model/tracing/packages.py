"""Modules of packages by name, built for tracing: `timm:NAME` and `torchvision:NAME`, with `@SIZE` for other images."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

from scaleproof.simulator.model.tracing.user_function import refuse

# Samples of the example: a prime number, so that no dimension of a module is a multiple of it by chance.
_SAMPLES: Final = 7
_USUAL_SIDE: Final = 224


def package_function(source: str, torch: Any) -> Callable[[], Any]:
    """A function that returns a package's module and example images. Raises FieldError if the package is not installed."""
    package, _, rest = source.partition(":")
    name, _, size = rest.partition("@")
    for operator in ("nms", "qnms"):
        # wheels for GPUs cannot load torchvision's compiled operators next to a torch for processors
        with contextlib.suppress(RuntimeError):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        module = importlib.import_module("timm" if package == "timm" else "torchvision.models")
    except ImportError:
        refuse(source, f"{package} is not installed, and the module is not recorded in this size; pip install {package}")
    return functools.partial(_built, source, torch, module, name, int(size or 0))


def _built(source: str, torch: Any, package: Any, name: str, size: int) -> tuple[Any, Any]:
    is_timm = package.__name__ == "timm"
    create = functools.partial(package.create_model if is_timm else package.get_model, name)
    if not (package.is_model(name.partition(".")[0]) if is_timm else name in package.list_models()):
        refuse(source, f"{package.__name__} has no model called {name}")
    # only some modules have the option; without it, images of another size do not fit learned positions
    attempts: tuple[dict[str, int], ...] = ({("img_size" if is_timm else "image_size"): size}, {}) if size else ({},)
    for number, options in enumerate(attempts):
        try:
            module = _created(torch, functools.partial(create, **options))
            break
        except TypeError:
            if number == len(attempts) - 1:
                raise
    channels, side = getattr(module, "pretrained_cfg", {}).get("input_size", (3, _USUAL_SIDE))[:2]
    side = size or side
    return module, torch.randn(_SAMPLES, channels, side, side)


def _created(torch: Any, create: Callable[[], Any]) -> Any:
    """A new module; with values where it reads them while it is built."""
    try:
        return create()
    except (RuntimeError, NotImplementedError):
        with torch._C.DisableTorchFunction():
            return create()
