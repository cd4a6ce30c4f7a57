"""Results that unknown floats decide: indices of the largest, order, drawn options, masks, and numbers of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from scaleproof.validator.capture.backend.memory import Content
from scaleproof.validator.capture.backend.values import COMPUTED_INTEGERS, Values

# Operators that choose among options along a dimension: the place of the dimension among their arguments, and of its number.
_CHOOSES: Final = {
    "aten::topk": 2, "aten::argmax": 1, "aten::argmin": 1, "aten::max": 1, "aten::min": 1, "aten::kthvalue": 2, "aten::mode": 1,
}  # fmt: skip
_ORDERS: Final = {"aten::sort": 1, "aten::argsort": 1}
_ORDERS_STABLY: Final = 2
_DRAWS: Final = "aten::multinomial"
_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_HALF: Final = "half of the elements"


def decide(values: Values, name: str, overload: str, arguments: Sequence[Any], outputs: Sequence[torch.Tensor]) -> None:
    """Gives integers and truth values among an operator's outputs the values that the policy decides."""
    # integers next to floats, such as places of maxima in pooling, serve the backward pass: no result depends on them
    is_for_backward = name not in _CHOOSES | _ORDERS and any(output.is_floating_point() for output in outputs)
    for output in outputs:
        if not output.is_cuda or output.numel() > COMPUTED_INTEGERS:
            continue
        if output.dtype is torch.bool:
            if name in ("aten::all", "aten::any"):
                # training goes on: everything is finite, nothing is not
                values.fill(output, torch.tensor(name == "aten::all"), name, "true" if name == "aten::all" else "false")
            elif output.numel() == 1:
                values.fill(output, torch.tensor(False), name, "false")
        elif output.dtype in _INTEGERS and is_for_backward:
            values.arena.on_host(output).zero_()
            values.set_content([output], Content.INVENTED)
        elif output.dtype in _INTEGERS:
            _decide_integers(values, name, overload, arguments, output)


def _decide_integers(values: Values, name: str, overload: str, arguments: Sequence[Any], output: torch.Tensor) -> None:
    source = arguments[0] if arguments and isinstance(arguments[0], torch.Tensor) else output
    text = values.policy.text
    if name in _CHOOSES or name == _DRAWS:
        place = _CHOOSES.get(name, len(arguments))
        given = arguments[place] if place < len(arguments) else -1
        dimension = (given if isinstance(given, int) else -1) % max(source.dim(), 1)
        options = source.shape[dimension] if source.dim() else 1
        keeps = output.dim() == source.dim() and bool(output.dim())
        chosen = output.shape[dimension] if keeps else 1
        rows = output.numel() // max(chosen, 1)
        if name == _DRAWS and chosen > options:
            choices = values.policy.choices(rows * chosen, 1, options).reshape(rows, chosen)
        else:
            choices = values.policy.choices(rows, min(chosen, options), options)
        picked = torch.from_numpy(choices)
        if keeps:
            others = [size for place, size in enumerate(output.shape) if place != dimension]
            picked = picked.reshape([*others, chosen]).movedim(-1, dimension)
        values.fill(output, picked.reshape(output.shape), name, text)
    elif name in _ORDERS:
        place = _ORDERS[name] if overload not in ("stable", "values_stable") else _ORDERS_STABLY
        given = arguments[place] if place < len(arguments) else -1
        dimension = (given if isinstance(given, int) and not isinstance(given, bool) else -1) % max(source.dim(), 1)
        if output.shape != source.shape or not source.dim():
            values.fill(output, torch.zeros((), dtype=output.dtype), name, "0")
            return
        order = torch.arange(source.shape[dimension]).reshape([-1 if at == dimension else 1 for at in range(source.dim())])
        values.fill(output, order.expand(source.shape), name, "the order that is there")
    else:
        values.fill(output, torch.zeros((), dtype=output.dtype), name, "0")


def counted(values: Values, name: str, arguments: Sequence[Any], keywords: Any) -> torch.Tensor | None:
    """The result of an operator whose shape unknown values decide; None for any other operator."""
    source = arguments[0] if arguments and isinstance(arguments[0], torch.Tensor) else None
    if source is None:
        return None
    arena = values.arena
    if name == "aten::nonzero":
        count = source.numel() // 2
        result = arena.empty((count, source.dim()), (max(source.dim(), 1), 1), torch.int64)
        places = torch.unravel_index(2 * torch.arange(count), source.shape) if source.dim() and count else ()
        host = torch.stack(places, 1) if places else torch.zeros((), dtype=torch.int64)
        values.fill(result, host, name, _HALF)
        return result
    if name == "aten::masked_select":
        mask = arguments[1]
        count = source.numel() // 2
        if values.content(mask) is Content.UNKNOWN:
            values.decided(name, _HALF)
        else:
            # each element of a smaller mask counts for several
            count = int(arena.on_host(mask).sum()) * max(1, source.numel() // max(1, mask.numel()))
        result = arena.empty((count,), (1,), source.dtype)
        values.set_content([result], Content.UNKNOWN)
        return result
    if name == "aten::repeat_interleave":
        size = keywords.get("output_size")
        elements = source.numel()
        result = arena.empty((elements if size is None else int(size),), (1,), torch.int64)
        host = torch.arange(result.numel()) * elements // max(result.numel(), 1)
        values.fill(result, host, name, "each element equally often")
        return result
    if name == "aten::bincount":
        given = arguments[2] if len(arguments) > 2 else keywords.get("minlength", 0)
        options = max(int(given), 1)
        result = arena.empty((options,), (1,), torch.int64)
        counts = source.numel() * torch.from_numpy(values.policy.shares(options))
        values.fill(result, counts.round().long(), name, values.policy.text)
        return result
    return None
