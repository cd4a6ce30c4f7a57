"""Fields of the classes that users describe scenarios with, and other values for them, found by introspection."""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ValidationError

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.units import Unit
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.scenario.fields import Value, fields_of
from scaleproof.simulator.scenario.schema import KINDS, Scenario

# Keys of attributes and items from a scenario down to a part.
Path = tuple[str | int, ...]
# Values for numbers whose present value says nothing of their size: absent, or zero.
_NUMBERS: Final = (0.3, 1.0, 2.0, 7.0, 1e-3, 1e3, 1e6, 1e9, 1e12, 1e-6, 1e-9)


def classes_of(annotation: Any, found: dict[type[Spec], None] | None = None) -> dict[type[Spec], None]:
    """All classes of specs that an annotation contains, those of their fields included."""
    found = {} if found is None else found
    if isinstance(annotation, type) and issubclass(annotation, Spec) and annotation not in found:
        found[annotation] = None
        for field in annotation.model_fields.values():
            classes_of(field.annotation, found)
    for part in typing.get_args(annotation):
        classes_of(part, found)
    return found


@functools.cache
def schema() -> tuple[type[Spec], ...]:
    """All classes of a scenario that can be made, the strategies by their registry."""
    found = classes_of(Scenario)
    for kind in KINDS.names():
        strategy = KINDS.find(kind)
        if strategy is not None and strategy.__module__.startswith("scaleproof."):
            classes_of(strategy, found)
    return tuple(owner for owner in found if not inspect.isabstract(owner) and owner is not Strategy)


def parts_of(spec: Spec, path: Path = ()) -> Iterator[tuple[Path, Spec]]:
    """A spec and the specs that it contains, with their paths."""
    yield path, spec
    for name in type(spec).model_fields:
        yield from _parts_in(getattr(spec, name), (*path, name))


def _parts_in(value: Any, path: Path) -> Iterator[tuple[Path, Spec]]:
    if isinstance(value, Spec):
        yield from parts_of(value, path)
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from _parts_in(item, (*path, number))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _parts_in(item, (*path, key))


def changed(part: Any, path: Path, values: Mapping[str, Any]) -> Any:
    """A copy in which some fields of the part at a path have other values, read as from YAML. Raises FieldError and others."""
    if not path:
        return _rebuilt(part, values)
    key, rest = path[0], path[1:]
    if isinstance(part, Spec):
        assert isinstance(key, str)
        return _rebuilt(part, {key: changed(getattr(part, key), rest, values)})
    if isinstance(part, tuple):
        return tuple(changed(item, rest, values) if number == key else item for number, item in enumerate(part))
    return {**part, key: changed(part[key], rest, values)}


def _rebuilt(part: Spec, values: Mapping[str, Any]) -> Any:
    """A part with other values of some fields; quantities are texts with their unit."""
    named = zip(type(part).model_fields, fields_of(Value(part, None)), strict=True)
    units = {name: of_field.unit for name, (_, of_field) in named}
    every = {name: getattr(part, name) for name in part.model_fields_set} | values
    return type(part).model_validate({name: _with_unit(one, units[name]) for name, one in every.items()})


def _with_unit(value: Any, unit: Unit | None) -> Any:
    if unit is None or value is None or isinstance(value, Spec | str):
        return value
    if isinstance(value, dict):
        return {key: _with_unit(item, unit) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_with_unit(item, unit) for item in value]
    return unit.exactly(value)


@dataclass(frozen=True)
class Change:
    """Fields of the part of a scenario at a path, with other values. scenario: its name."""

    scenario: str
    path: Path
    values: Mapping[str, Any]

    def apply(self, scenario: Scenario) -> Scenario | None:
        """The scenario with the change, or None if it is not valid."""
        try:
            result: Scenario = changed(scenario, self.path, self.values)
        except (ScaleproofError, ValidationError, ValueError, TypeError):
            return None
        return result


def contains_parts(annotation: Any) -> bool:
    """Whether a field consists of specs, which have fields of their own, or of none."""
    inner = [part for part in typing.get_args(annotation) if part not in (type(None), Ellipsis)]
    if typing.get_origin(annotation) is dict:
        return contains_parts(inner[1])
    if isinstance(annotation, type):
        return issubclass(annotation, Spec) or (bool(inner) and all(map(contains_parts, inner)))
    if typing.get_origin(annotation) is Annotated:
        return contains_parts(inner[0])
    return typing.get_origin(annotation) is not Literal and bool(inner) and all(map(contains_parts, inner))


def other_values(value: Any, annotation: Any) -> Iterator[Any]:
    """Other values for a field by its present value, or by its type where it has none."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (number for number in (value * 2, value + 1, value // 2, value - 1) if number >= 0)
    elif isinstance(value, float):
        yield from (value * factor for factor in (1.5, 0.5, 3.0, 0.1) if value and math.isfinite(value))
        yield from _NUMBERS if not value else ()
    elif isinstance(value, tuple):
        yield from _other_tuples(value)
    elif isinstance(value, dict):
        first = {key: list(other_values(item, None))[:1] for key, item in value.items()}
        yield {key: others[0] if others else value[key] for key, others in first.items()}
    elif isinstance(value, str) and not (literals := _literals(annotation)):
        yield f"{value}-other"
    if literals := _literals(annotation):
        yield from (literal for literal in literals if literal != value and not isinstance(value, bool))
    if value is None:
        yield from _NUMBERS if {int, float} & _plain_types(annotation) else ()
        yield from (1, 2, 4, 8) if int in _plain_types(annotation) else ()
        yield from (True, False) if bool in _plain_types(annotation) else ()
    elif type(None) in typing.get_args(annotation):
        yield None


def _other_tuples(value: tuple[Any, ...]) -> Iterator[Any]:
    for number, item in enumerate(value):
        if isinstance(item, int | float) and not isinstance(item, bool):
            yield from ((*value[:number], other, *value[number + 1 :]) for other in other_values(item, None))
    if value:
        yield value[:-1]


def _literals(annotation: Any) -> Sequence[Any]:
    """The values of literals in an annotation."""
    if typing.get_origin(annotation) is Literal:
        return typing.get_args(annotation)
    return [literal for part in typing.get_args(annotation) for literal in _literals(part)]


def _plain_types(annotation: Any) -> set[Any]:
    """The numbers and truth values that an annotation accepts."""
    if annotation in (int, float, bool):
        return {annotation}
    return {kind for part in typing.get_args(annotation) for kind in _plain_types(part)}
