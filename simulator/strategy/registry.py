"""Kinds: the strategies that there are. Other packages bring theirs as entry points of the group `scaleproof.strategies`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Final, Union, get_args

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from scaleproof.simulator.common.errors import PluginError
from scaleproof.simulator.strategy.base import Strategy

GROUP: Final = "scaleproof.strategies"


class StrategyRegistry:
    """Strategies by `kind`: our own, and those of installed packages, which are imported when one is asked for by name.

    As an annotation of a field it makes pydantic read a strategy by its kind.
    """

    def __init__(self, *own: type[Strategy]) -> None:
        self._own: dict[str, type[Strategy]] = {strategy.model_fields["kind"].default: strategy for strategy in own}

    def names(self) -> list[str]:
        """Every kind, without importing any. Raises PluginError where two strategies are of one kind."""
        return [*self._own, *self._installed]

    def find(self, kind: object) -> type[Strategy] | None:
        """The strategy of that kind, None where there is none. Raises PluginError where its package is broken."""
        if not isinstance(kind, str):
            return None
        if kind in self._own:
            return self._own[kind]
        return _loaded(self._installed[kind]) if kind in self._installed else None

    @functools.cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """What packages say that they bring."""
        found: dict[str, EntryPoint] = {}
        for entry in entry_points(group=GROUP):
            if entry.name in self._own or entry.name in found:
                by = _package(found[entry.name]) if entry.name in found else "scaleproof"
                raise PluginError(f"{_package(entry)}: {by} has a strategy {entry.name!r} as well; uninstall one, or rename it")
            found[entry.name] = entry
        return found

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        own = handler.generate_schema(_among(self._own.values()))
        # each is dumped as what it is
        dumped = core_schema.simple_ser_schema("any")
        return core_schema.no_info_wrap_validator_function(self._validated, own, serialization=dumped)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Of all strategies. Raises PluginError where a package is broken."""
        installed = map(_loaded, self._installed.values())
        return handler(TypeAdapter(_among([*self._own.values(), *installed])).core_schema)

    def _validated(self, value: Any, own: Callable[[Any], Strategy]) -> Strategy:
        if isinstance(value, Strategy):
            return value
        kind = value.get("kind") if isinstance(value, dict) else None
        strategy = self.find(kind)
        return own(value) if strategy is None or kind in self._own else strategy.model_validate(value)


def _among(strategies: Any) -> Any:
    """The type of what is one of these, told apart by kind."""
    return Annotated[Union[tuple(strategies)], Field(discriminator="kind")]  # noqa: UP007


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _loaded(entry: EntryPoint) -> type[Strategy]:
    """Imports the strategy of an installed package. Raises PluginError where that cannot be used."""
    try:
        strategy = entry.load()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise _broken(entry, f"cannot be imported ({reason}); mend the package, or uninstall it") from None
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise _broken(entry, "is no subclass of scaleproof.simulator.strategy.Strategy; make it one")
    if inspect.isabstract(strategy):
        missing = ", ".join(sorted(strategy.__abstractmethods__))
        raise _broken(entry, f"lacks {missing}; define it")
    field, name = strategy.model_fields["kind"], entry.name
    if get_args(field.annotation) != (name,) or field.default != name:
        raise _broken(entry, f"is of another kind; give it the field kind: Literal[{name!r}] = {name!r}")
    return strategy


def _broken(entry: EntryPoint, what: str) -> PluginError:
    return PluginError(f"{_package(entry)}: the strategy {entry.name!r}, {entry.value}, {what}")
