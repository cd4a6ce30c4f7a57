"""Registry of strategies by kind. Other packages add theirs as entry points of the group `scaleproof.strategies`."""

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
    """Strategies by `kind`: built-in ones, and those of installed packages, which are imported when first used.

    As an annotation of a pydantic field, it selects the strategy class by `kind`.
    """

    def __init__(self, *built_in: type[Strategy]) -> None:
        self._built_in: dict[str, type[Strategy]] = {strategy.model_fields["kind"].default: strategy for strategy in built_in}

    def names(self) -> list[str]:
        """All kinds, without importing plugins. Raises PluginError if two strategies have the same kind."""
        return [*self._built_in, *self._installed]

    def find(self, kind: object) -> type[Strategy] | None:
        """The strategy class of a kind, or None. Raises PluginError if its package is broken."""
        if not isinstance(kind, str):
            return None
        if kind in self._built_in:
            return self._built_in[kind]
        return _loaded(self._installed[kind]) if kind in self._installed else None

    @functools.cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages by kind."""
        entries: dict[str, EntryPoint] = {}
        for entry in entry_points(group=GROUP):
            if entry.name in self._built_in or entry.name in entries:
                owner = _package(entries[entry.name]) if entry.name in entries else "scaleproof"
                raise PluginError(
                    f"{_package(entry)}: {owner} also defines a strategy {entry.name!r}; uninstall one, or rename it"
                )
            entries[entry.name] = entry
        return entries

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        built_in = handler.generate_schema(_among(self._built_in.values()))
        # serialise each strategy by its own class
        serialization = core_schema.simple_ser_schema("any")
        return core_schema.no_info_wrap_validator_function(self._validated, built_in, serialization=serialization)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """JSON schema of all strategies. Raises PluginError if a package is broken."""
        installed = map(_loaded, self._installed.values())
        return handler(TypeAdapter(_among([*self._built_in.values(), *installed])).core_schema)

    def _validated(self, value: Any, built_in: Callable[[Any], Strategy]) -> Strategy:
        if isinstance(value, Strategy):
            return value
        kind = value.get("kind") if isinstance(value, dict) else None
        strategy = self.find(kind)
        return built_in(value) if strategy is None or kind in self._built_in else strategy.model_validate(value)


def _among(strategies: Any) -> Any:
    """Union of strategy types, discriminated by kind."""
    return Annotated[Union[tuple(strategies)], Field(discriminator="kind")]  # noqa: UP007


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _loaded(entry: EntryPoint) -> type[Strategy]:
    """Imports the strategy of an installed package. Raises PluginError if it cannot be used."""
    try:
        strategy = entry.load()
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise _broken(entry, f"cannot be imported ({reason}); fix the package, or uninstall it") from None
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise _broken(entry, "is not a subclass of scaleproof.simulator.strategy.Strategy; derive it from Strategy")
    if inspect.isabstract(strategy):
        missing = ", ".join(sorted(strategy.__abstractmethods__))
        raise _broken(entry, f"does not define {missing}; define it")
    field, name = strategy.model_fields["kind"], entry.name
    if get_args(field.annotation) != (name,) or field.default != name:
        raise _broken(entry, f"has a different kind; give it the field kind: Literal[{name!r}] = {name!r}")
    return strategy


def _broken(entry: EntryPoint, problem: str) -> PluginError:
    return PluginError(f"{_package(entry)}: the strategy {entry.name!r}, {entry.value}, {problem}")
