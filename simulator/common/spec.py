"""Base class of everything that users describe in YAML."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Annotated, Any, Final, Self, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError


def _no_truth_value(value: object) -> object:
    """The value, unless it is true or false, which would count as 1 or 0."""
    if isinstance(value, bool):
        raise PydanticKnownError("int_type")
    return value


_Whole = Annotated[int, BeforeValidator(_no_truth_value)]
# Lengths of lists that are built (layers), counts (devices), and widths that are only multiplied. The bounds are far beyond any
# real system, and below what would fill a machine's memory or overflow a float.
Depth = Annotated[_Whole, Field(gt=0, le=100_000)]
Count = Annotated[_Whole, Field(gt=0, le=1_000_000)]
MAX_WIDTH: Final = 1_000_000_000
Width = Annotated[_Whole, Field(gt=0, le=MAX_WIDTH)]


_Value = TypeVar("_Value")
# Ends of the names of durations and of factors on them, and of rates.
_DURATIONS: Final = ("_s", "_slowdown", "launch", "latency_inside", "latency_between")
_RATES: Final = ("_Bps", "_flops", "rate_inside", "rate_between", "adam_rate")


class Spec(BaseModel):
    """Base class: unknown keys are errors, and instances are immutable.

    Attributes have units in their names, YAML keys (aliases) in their values: `bandwidth_Bps` is `bandwidth: 25 Gbit/s`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copies like pydantic, but without the values of cached properties, which may depend on changed fields."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    def __getstate__(self) -> dict[Any, Any]:
        """The state to pickle, without the values of cached properties, which share objects with those of other instances."""
        state = super().__getstate__()
        return state | {"__dict__": {name: state["__dict__"][name] for name in type(self).model_fields}}

    def __eq__(self, other: object) -> bool:
        """Whether the other instance has equal fields; values of cached properties do not count."""
        return self is other or (type(self) is type(other) and self._values() == cast(Self, other)._values())

    def __hash__(self) -> int:
        """Hash of the fields, computed once, so that instances are fast keys of caches; fields may be mappings."""
        if "_hash" not in self.__dict__:
            self.__dict__["_hash"] = hash((type(self), *map(_hashable, self._values())))
        found: int = self.__dict__["_hash"]
        return found

    def _values(self) -> list[Any]:
        return list(map(self.__dict__.__getitem__, type(self).__pydantic_fields__))

    def cached(self, derive: Callable[[Self], _Value]) -> _Value:
        """The value that a function derives from this instance, computed once; copies compute theirs anew."""
        key = f"{derive.__module__}.{derive.__qualname__}"
        if key not in self.__dict__:
            self.__dict__[key] = derive(self)
        value: _Value = self.__dict__[key]
        return value

    def defaulted(self, values: Mapping[str, Any]) -> Self:
        """A copy in which some fields have other values, but count as not given if they did so before."""
        if all(getattr(self, name) == value for name, value in values.items()):
            return self
        changed = self.model_copy(update=values)
        object.__setattr__(changed, "__pydantic_fields_set__", set(self.model_fields_set))
        return changed

    def rebuilt(self, **parts: Any) -> Self:
        """A copy with some fields replaced, by their names in Python, validated like a loaded one. Raises FieldError."""
        return type(self).model_validate({name: getattr(self, name) for name in self.model_fields_set} | parts)


def _hashable(value: object) -> Hashable:
    """A value that is equal for equal values, and has a hash."""
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(part)) for key, part in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


_Part = TypeVar("_Part", bound=Spec)


def slower(part: _Part, slowdown: float, *paths: str) -> _Part:
    """The part with durations `slowdown` times as long, and rates lower by the same factor, by the ends of their names.

    paths: of the fields that change, such as node.link.bandwidth_Bps, with all that they contain; the whole part by default.
    Fields of parts that are absent are left out. Shares stay the same, since they are shares of rates.
    """
    inner: dict[str, list[str]] = {}
    for path in paths or type(part).model_fields:
        name, _, rest = path.partition(".")
        inner.setdefault(name, []).extend([rest] if rest else [])
    values = {name: getattr(part, name) for name in inner}
    return part.model_copy(update={name: _slower_value(name, value, slowdown, inner[name]) for name, value in values.items()})


def _slower_value(name: str, value: Any, slowdown: float, paths: Sequence[str] = ()) -> Any:
    if isinstance(value, Spec):
        return slower(value, slowdown, *paths)
    if isinstance(value, dict):
        return {key: _slower_value(name, one, slowdown) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_slower_value(name, one, slowdown) for one in value)
    if value is None or not name.endswith((*_DURATIONS, *_RATES)):
        return value
    return value / slowdown if name.endswith(_RATES) else value * slowdown
