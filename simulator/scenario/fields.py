"""Fields of scenarios by the path that `--set` takes: their values, units and types, and the differences of two scenarios."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Unit
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.scenario import aliases
from scaleproof.simulator.scenario.schema import KINDS, Scenario

# The field of overrides and axes that changes the number of GPUs, which is no field of a scenario (`scenario/gpus.py`).
GPUS: Final = "gpus"
# Network cards as `8 x 400 Gbit/s`, and the field that has their bandwidth (`cluster/network/nics.py`).
_NICS: Final = "cluster.network.nics"
_NICS_ARE: Final = "cluster.network.bandwidth"
# Parts whose fields may be named without their part, in the order of search.
_PARTS: Final = ("strategy", "training", "batch", "model", "cluster", "cluster.node", "cluster.device", "cluster.network")
# Fields for information, which do not affect times.
_TEXTS: Final = ("description", "source", "provenance", "l2", "clock", "measured", "assumed")
_NONE: Final = "–"


class Value(NamedTuple):
    """The value of a field: a number in SI units, a text, or a part. unit: None for numbers without one."""

    value: Any
    unit: Unit | None

    def __str__(self) -> str:
        if self.value is None:
            return _NONE
        if isinstance(self.value, bool):
            return str(self.value).lower()
        if isinstance(self.value, int | float):
            return self.unit.format(self.value) if self.unit else f"{self.value:,}"
        if _is_table(self.value):
            return _entries(len(self.value))
        if isinstance(self.value, tuple):
            return ", ".join(str(Value(item, self.unit)) for item in self.value) or _NONE
        return str(self.value)


@dataclass(frozen=True)
class Change:
    """A field in which scenarios A and B differ, with the value of each as text."""

    field: str
    a: str
    b: str


def value_at(scenario: Scenario, path: str) -> Value:
    """The value of a field such as `cluster.network.bandwidth` of a scenario. Raises InputError if there is no such field."""
    if path == GPUS:
        return Value(scenario.strategy.training_ranks, None)
    value: Value = Value(scenario, None)
    for at, key in enumerate(path.split(".")):
        known = dict(fields_of(value))
        if key not in known:
            where = ".".join(path.split(".")[:at]) or "scenario"
            if value.value is None:
                raise InputError(f"{path}: the scenario has no {where}; set it first")
            raise InputError(f"{path}: {_unknown(where, key, known)}")
        value = known[key]
    return value


class Field(NamedTuple):
    """A field that scenarios may have. column: its name in tables, which is its path with the unit."""

    info: FieldInfo
    column: str

    @property
    def unit(self) -> Unit | None:
        """The unit of its values, if they have one."""
        return _unit((self.info.annotation, *self.info.metadata))


def field_at(path: str) -> Field:
    """The field at a path, for any kind of parts on the path; also by an abbreviation that `--set` takes. Raises InputError if
    no scenario has such a field."""
    if path == GPUS:
        return Field(FieldInfo.from_annotation(Count), GPUS)
    if path == _NICS:
        return field_at(_NICS_ARE)._replace(column=f"{_NICS}_Bps")
    path = aliases.canonical_text(path)
    specs: list[type[Spec]] = [Scenario]
    info: FieldInfo | None = None
    names: list[str] = []
    keys = path.split(".")
    for at, key in enumerate(keys):
        known = {_name(name, info): (name, info) for spec in specs for name, info in spec.model_fields.items()}
        if key in known:
            name, info = known[key]
            names.append(name)
            specs = list(_specs(info.annotation))
        elif not specs and info is not None and get_origin(info.annotation) is dict:
            names.append(key)
            _, value = get_args(info.annotation)
            info, specs = FieldInfo.from_annotation(value), list(_specs(value))
        else:
            raise InputError(_unknown(".".join(keys[:at]) or "a scenario", key, known))
    assert info is not None
    return Field(info, ".".join(names))


def field_named(name: str) -> str:
    """The path of the field that a short name stands for, such as strategy.tensor for tp; "" if no field has that name."""
    for path in (aliases.canonical_text(path) for path in (name, *(f"{part}.{name}" for part in _PARTS))):
        try:
            field_at(path)
        except InputError:
            continue
        return path
    return ""


def _specs(annotation: Any) -> Iterator[type[Spec]]:
    """The types of all parts that a field may have, without those of a mapping's values."""
    if annotation is Strategy:
        yield from (kind for name in KINDS.names() if (kind := KINDS.find(name)) is not None)
    elif isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    elif get_origin(annotation) is not dict:
        for argument in get_args(annotation):
            yield from _specs(argument)


def _unknown(where: str, key: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known there: {', '.join(sorted(known)) or 'nothing'}"
    return f"{where} has no field {key!r}; {hint}"


def differences(a: Scenario, b: Scenario) -> tuple[Change, ...]:
    """The fields in which two scenarios differ, except names and descriptions.

    If parts have different kinds, fields that only one of them has are left out where they have their default values.
    """
    return tuple(change for change in _differences("", Value(a, None), Value(b, None)) if change.field != "name")


def _differences(path: str, a: Value, b: Value) -> Iterator[Change]:
    if a.value == b.value:
        return
    if isinstance(a.value, Framework) and isinstance(b.value, Framework) and a.value.name != b.value.name:
        yield Change(path, a.value.name, b.value.name)
        return
    parts = (Spec, dict)
    if isinstance(a.value, parts) or isinstance(b.value, parts):
        a_fields, b_fields = dict(_compared_fields(a, b)), dict(_compared_fields(b, a))
        for key in dict.fromkeys([*a_fields, *b_fields]):
            inner = f"{path}.{key}" if path else key
            yield from _differences(inner, a_fields.get(key, Value(None, None)), b_fields.get(key, Value(None, None)))
    elif _is_table(a.value) or _is_table(b.value):
        before, after = a.value or (), b.value or ()
        equal = sum(one == other for one, other in zip(before, after, strict=False))
        same = f", {equal} of them the same" if equal else ""
        yield Change(path, _entries(len(before)), _entries(len(after)) + same)
    else:
        yield Change(path, *_different_texts(a, b))


def _compared_fields(part: Value, other: Value) -> Iterator[tuple[str, Value]]:
    """The fields of a part, without those with default values that the other part does not have."""
    other_fields = dict(fields_of(other))
    known = type(part.value).model_fields if isinstance(part.value, Spec) else {}
    defaults = {_name(name, info): info.default for name, info in known.items()}
    for name, value in fields_of(part):
        is_relevant = name in other_fields or name == "kind" or name not in defaults or defaults[name] != value.value
        if name not in _TEXTS and is_relevant:
            yield name, value


def fields_of(part: Value) -> Iterator[tuple[str, Value]]:
    """The fields of a part with their names in YAML; for a mapping its entries, which all have its unit."""
    if isinstance(part.value, Spec):
        for name, info in type(part.value).model_fields.items():
            yield _name(name, info), Value(getattr(part.value, name), _unit((info.annotation, *info.metadata)))
    elif isinstance(part.value, dict):
        for key, value in part.value.items():
            yield str(key), Value(value, part.unit)


def _name(name: str, info: FieldInfo) -> str:
    return info.alias or name


def _unit(annotation: tuple[Any, ...]) -> Unit | None:
    """The unit that an annotation contains, if any."""
    for part in annotation:
        if isinstance(part, Unit):
            return part
        if unit := _unit(get_args(part)):
            return unit
    return None


def _entries(count: int) -> str:
    return _NONE if count == 0 else f"{count} entr{'y' if count == 1 else 'ies'}"


def _different_texts(a: Value, b: Value) -> tuple[str, str]:
    """Both values as text, with as many digits as needed to distinguish them."""
    short = str(a), str(b)
    if short[0] != short[1]:
        return short
    a_text, b_text = (value.unit.exactly(value.value) if value.unit else repr(value.value) for value in (a, b))
    return a_text, b_text


def _is_table(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(one, Spec) for one in value)
