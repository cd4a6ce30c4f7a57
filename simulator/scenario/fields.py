"""Fields: which there are, by the path that `--set` takes, what a scenario says in each, and in which two scenarios differ."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from scaleproof.simulator.common import units
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import KINDS, Strategy

# Words about a part that say nothing of how it works.
_WORDS: Final = ("description", "source", "provenance")
_NONE: Final = "–"
# that people write, and those of a double precision number
_FEW_DIGITS: Final = 6
_MOST_DIGITS: Final = 17
# numbers outside are written in another unit, if there is one
_HANDY: Final = (1.0, 1000.0)
# whole numbers below are written with all their digits
_MOST_WHOLE: Final = 1e15


class FieldUnit(NamedTuple):
    """What a field's number counts, in SI. symbol: as YAML has it. per: how many of the symbol's units one SI unit is. names:
    what people write it in, the usual first."""

    symbol: str
    parse: Callable[[object], float]
    format: Callable[[float], str]
    per: float = 1.0
    names: tuple[str, ...] = ()

    def exactly(self, value: float) -> str:
        """'25 Gbit/s' of 3.125e9: short text that reads as this number to its last bit, in a unit that suits its size."""
        if value == 0:
            return f"0 {self.symbol}"
        return next((text for text in self._texts(value) if self.parse(text) == value), f"{value * self.per!r} {self.symbol}")

    def _texts(self, value: float) -> Iterator[str]:
        """What may be written, the shortest first; in all units where those that suit take many digits."""
        numbers = {name: value / self.parse(f"1 {name}") for name in self.names}
        handy = {name: number for name, number in numbers.items() if _HANDY[0] <= number < _HANDY[1]}
        every = dict(sorted(numbers.items(), key=lambda item: (item[1] < _HANDY[0], item[1])))
        for some, most_digits in ((handy, _FEW_DIGITS), (every, _MOST_DIGITS)):
            for digits, (name, number) in itertools.product(range(1, most_digits + 1), some.items()):
                for near in (number, *_beside(number, digits)):
                    yield f"{_decimal(near, digits)} {name}"


def _beside(number: float, digits: int) -> tuple[float, ...]:
    """The next numbers, which dividing may have missed, where digits tell them apart."""
    return (math.nextafter(number, 0), math.nextafter(number, math.inf)) if digits == _MOST_DIGITS else ()


def _decimal(number: float, digits: int) -> str:
    """Rounded to so many digits, without an exponent where people write none."""
    rounded = float(f"{number:.{digits - 1}e}")
    return f"{rounded:.0f}" if rounded.is_integer() and rounded < _MOST_WHOLE else repr(rounded)


def _counted(symbol: str) -> Callable[[float], str]:
    return lambda rate: f"{units.format_count(rate)}{symbol}"


_BYTES_PER_S: Final = ("GB/s", "TB/s", "MB/s", "kB/s", "B/s")
_UNITS: Final[Mapping[Callable[[object], float], FieldUnit]] = {
    unit.parse: unit
    for unit in (
        FieldUnit("s", units.parse_time_s, units.format_time_s, names=("s", "ms", "us", "ns", "h", "min", "d")),
        FieldUnit("B", units.parse_bytes, units.format_bytes, names=("MiB", "GiB", "KiB", "MB", "GB", "kB", "TiB", "TB", "B")),
        FieldUnit("B/s", units.parse_Bps, units.format_Bps, names=("Gbit/s", "Mbit/s", "kbit/s", *_BYTES_PER_S)),
        FieldUnit(
            "FLOP/s", units.parse_flops, _counted("FLOP/s"), names=("TFLOP/s", "GFLOP/s", "PFLOP/s", "MFLOP/s", "FLOP/s")
        ),
        FieldUnit("W", units.parse_W, "{:g} W".format, names=("W", "kW", "MW")),
        FieldUnit("USD/h", units.parse_USD_per_s, lambda price: f"{price * 3600:g} USD/h", per=3600.0, names=("USD/h",)),
    )
}
# memory is sold in bytes, links in bits
_MEMORY: Final = FieldUnit("B/s", units.parse_Bps, _counted("B/s"), names=_BYTES_PER_S)


class Value(NamedTuple):
    """What a field says: a number in SI, a word, or a part. unit: of a number that has one."""

    value: Any
    unit: FieldUnit | None

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
            return ", ".join(str(Value(one, self.unit)) for one in self.value) or _NONE
        return str(self.value)


@dataclass(frozen=True)
class Change:
    """A field in which two scenarios differ, and what each says there, for people."""

    field: str
    a: str
    b: str


def value_at(scenario: Scenario, path: str) -> Value:
    """What the scenario says in a field such as `cluster.network.bandwidth`. Raises InputError where there is none."""
    found: Value = Value(scenario, None)
    for at, key in enumerate(path.split(".")):
        known = dict(fields_of(found))
        if key not in known:
            where = ".".join(path.split(".")[:at]) or "scenario"
            if found.value is None:
                raise InputError(f"{path}: the scenario says nothing of {where}; set it first")
            raise InputError(f"{path}: {_unknown(where, key, known)}")
        found = known[key]
    return found


class Field(NamedTuple):
    """A field that scenarios may have. column: what tables call it: its path, with the unit."""

    info: FieldInfo
    column: str


def field_at(path: str) -> Field:
    """The field at a path, of any kind of part that may be there. Raises InputError for one that no scenario has."""
    specs: list[type[Spec]] = [Scenario]
    info: FieldInfo | None = None
    names: list[str] = []
    keys = path.split(".")
    for at, key in enumerate(keys):
        known = {_name(name, info): (name, info) for spec in specs for name, info in spec.model_fields.items()}
        if key in known:
            name, info = known[key]
            names.append(name.rstrip("_"))
            specs = list(_specs(info.annotation))
        elif not specs and info is not None and get_origin(info.annotation) is dict:
            names.append(key)
            _, value = get_args(info.annotation)
            info, specs = FieldInfo.from_annotation(value), list(_specs(value))
        else:
            raise InputError(_unknown(".".join(keys[:at]) or "a scenario", key, known))
    assert info is not None
    return Field(info, ".".join(names))


def _specs(annotation: Any) -> Iterator[type[Spec]]:
    """All parts that a field may hold; nothing of a mapping's values."""
    if annotation is Strategy:
        yield from (found for name in KINDS.names() if (found := KINDS.find(name)) is not None)
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
    """The fields in which two scenarios differ, but for names and words about them. Of parts of different kinds those are left
    out that only one has, where it says nothing unusual."""
    return tuple(change for change in _differences("", Value(a, None), Value(b, None)) if change.field != "name")


def _differences(path: str, a: Value, b: Value) -> Iterator[Change]:
    if a.value == b.value:
        return
    if isinstance(a.value, Framework) and isinstance(b.value, Framework) and a.value.name != b.value.name:
        yield Change(path, a.value.name, b.value.name)
        return
    parts = (Spec, dict)
    if isinstance(a.value, parts) or isinstance(b.value, parts):
        ours, theirs = dict(_told(a, b)), dict(_told(b, a))
        for key in dict.fromkeys([*ours, *theirs]):
            inner = f"{path}.{key}" if path else key
            yield from _differences(inner, ours.get(key, Value(None, None)), theirs.get(key, Value(None, None)))
    elif _is_table(a.value) or _is_table(b.value):
        before, after = a.value or (), b.value or ()
        alike = sum(one == other for one, other in zip(before, after, strict=False))
        same = f", {alike} of them the same" if alike else ""
        yield Change(path, _entries(len(before)), _entries(len(after)) + same)
    else:
        yield Change(path, *_unlike(a, b))


def _told(part: Value, other: Value) -> Iterator[tuple[str, Value]]:
    """The fields of a part, without those that are usual where the other part has none such."""
    theirs = dict(fields_of(other))
    known = type(part.value).model_fields if isinstance(part.value, Spec) else {}
    usual = {_name(name, info): info.default for name, info in known.items()}
    for name, value in fields_of(part):
        if name not in _WORDS and (name in theirs or name == "kind" or name not in usual or usual[name] != value.value):
            yield name, value


def fields_of(part: Value) -> Iterator[tuple[str, Value]]:
    """The fields of a part by the names that YAML has for them; the entries of a mapping, which all have its unit."""
    if isinstance(part.value, Spec):
        for name, info in type(part.value).model_fields.items():
            unit = _MEMORY if name == "memory_bandwidth_Bps" else _unit((info.annotation, *info.metadata))
            yield _name(name, info), Value(getattr(part.value, name), unit)
    elif isinstance(part.value, dict):
        for key, value in part.value.items():
            yield str(key), Value(value, part.unit)


def _name(name: str, info: FieldInfo) -> str:
    return info.alias or name


def _unit(annotation: tuple[Any, ...]) -> FieldUnit | None:
    """The unit that some part of an annotation is read in."""
    for part in annotation:
        if isinstance(part, BeforeValidator) and part.func in _UNITS:
            return _UNITS[part.func]  # type: ignore[index]
        if found := _unit(get_args(part)):
            return found
    return None


def _entries(count: int) -> str:
    return _NONE if count == 0 else f"{count} entr{'y' if count == 1 else 'ies'}"


def _unlike(a: Value, b: Value) -> tuple[str, str]:
    """Both for people, with as many digits as tell them apart."""
    short = str(a), str(b)
    if short[0] != short[1]:
        return short
    ours, theirs = (one.unit.exactly(one.value) if one.unit else repr(one.value) for one in (a, b))
    return ours, theirs


def _is_table(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(one, Spec) for one in value)
