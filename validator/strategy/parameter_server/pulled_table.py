"""Tables of which a worker has the rows alone that its samples of a step look up."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

# Names of the first arguments of torch's lookups; those of operators are in their schemas.
_ARGUMENTS: Final[dict[Any, tuple[str, ...]]] = {
    functional.embedding: ("input", "weight"),
    functional.embedding_bag: ("input", "weight"),
    torch.embedding: ("weight", "indices", "padding_idx"),
    torch.embedding_bag: ("weight", "indices"),
}
_OPERATORS: Final = ("aten::embedding", "aten::embedding_bag", "aten::_embedding_bag")


class PulledTable(nn.Parameter):
    """Rows of a table. Lookups of a module give numbers of rows of the whole table, which become places among these.

    rows: their numbers in the whole table, sorted; the last one may be repeated, and its repetitions are never looked up.
    """

    rows: Tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls a function of torch; lookups read the pulled rows."""
        given, names = kwargs or {}, _argument_names(function)
        with torch._C.DisableTorchFunctionSubclass():
            if names:
                given = dict(zip(names, args, strict=False)) | given
                given |= given["weight"].placed(given)
                # operators have names of arguments that are positional in Python
                args = [given.pop(name) for name in names[: len(args)]]
            return function(*args, **given)

    def placed(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a lookup that are numbers of rows, as places among the pulled ones."""
        name = "input" if "input" in given else "indices"
        numbers = given[name]
        found: dict[str, Any] = {name: torch.searchsorted(self.rows, numbers.to(self.rows).contiguous()).to(numbers)}
        padding = given.get("padding_idx")
        if padding is not None and padding >= 0:
            place = int(torch.searchsorted(self.rows, padding))
            is_pulled = place < len(self.rows) and int(self.rows[place]) == padding
            # no row is left out where none of the samples has it
            found["padding_idx"] = place if is_pulled else (-1 if name == "indices" else None)
        return found


def _argument_names(function: Any) -> tuple[str, ...]:
    """The names of a lookup's positional arguments; none for other functions."""
    if isinstance(function, torch._ops.OpOverload):
        schema = function._schema
        return tuple(one.name for one in schema.arguments) if schema.name in _OPERATORS else ()
    return _ARGUMENTS.get(function, ())
