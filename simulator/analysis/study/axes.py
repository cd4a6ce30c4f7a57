"""Axes of a study: fields and their values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.yaml_file import on_one_line
from scaleproof.simulator.scenario.aliases import canonical_text
from scaleproof.simulator.scenario.fields import GPUS, field_at

_RANGE: Final = ("from", "to", "points", "factor", "log")
# significant digits of the values of a range
_DIGITS: Final = 6
_MOST_VALUES: Final = 1_000_000
_NUMBER: Final = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\D.*?)?\s*")
# rounding tolerance for the last value of a range
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class StudyAxis:
    """A field, such as `cluster.network.bandwidth`, and its values.

    column: its name in tables, which ends in its unit. values: as a scenario gives them. table_values: as tables give them: in
    SI, or names of parts; None where a value has neither. named: whether the study names the values.
    """

    field: str
    column: str
    values: tuple[Any, ...]
    table_values: tuple[Any, ...]
    named: bool = False

    @classmethod
    def of(cls, field: str, given: Any) -> StudyAxis:
        """The axis of a field, or of an abbreviation of it. given: a list, {name: value} or a range {from, to, points or
        factor, log}. Raises FieldError."""
        try:
            info, column = field_at(field)
        except InputError as error:
            raise FieldError(("axes", field), str(error)) from None
        annotation: Any = info.annotation
        adapter: TypeAdapter[Any] = TypeAdapter(Annotated[annotation, *info.metadata] if info.metadata else annotation)
        try:
            names, values = _listed(given, adapter)
        except InputError as error:
            raise FieldError(("axes", field), str(error)) from None
        table_values = tuple(names) if names else _table_values(values, adapter)
        return cls(canonical_text(field), column, values, table_values, bool(names))

    @classmethod
    def named_values(cls, field: str, values: Mapping[str, Any]) -> StudyAxis:
        """An axis of values by name, which are not those of a scenario file."""
        return cls(field, field, tuple(values.values()), tuple(values), named=True)

    def overrides(self) -> list[str]:
        """The override, as for `--set`, of each value."""
        return [f"{self.field}={on_one_line(value)}" for value in self.values]

    def plain(self) -> dict[str, Any] | list[Any]:
        """The values as a study gives them, with their names if they have some."""
        return dict(zip(self.table_values, self.values, strict=True)) if self.named else list(self.values)

    def words(self, place: int) -> str:
        """A value with its field, such as 'strategy.workers 32'."""
        field = "GPUs" if self.field == GPUS else self.field
        return f"{field} {self.text(place)}"

    def text(self, place: int) -> str:
        """A value as the study gives it, such as '25 Gbit/s', or its name."""
        return str(self.table_values[place]) if self.named else on_one_line(self.values[place])


def _table_values(values: Sequence[Any], adapter: TypeAdapter[Any]) -> tuple[Any, ...]:
    """Values as tables give them: numbers in SI, or text; None for a value that is not valid in a numeric field."""
    shown = [_table_value(value, adapter) for value in values]
    pairs = zip(values, shown, strict=True)
    is_text = any(isinstance(value, str | dict) and isinstance(read, str | None) for value, read in pairs)
    if any(isinstance(read, float) for read in shown) or not is_text:
        return tuple(shown)
    return tuple(value if isinstance(value, str) else on_one_line(value) for value in values)


def _table_value(value: Any, adapter: TypeAdapter[Any]) -> Any:
    """A value as the field has it, if that is a number or text; a number that is not valid as it is given; else None."""
    read = _parsed(value, adapter)
    if isinstance(read, str | int | float):
        return read
    return value if read is None and isinstance(value, int | float) else None


def _parsed(value: Any, adapter: TypeAdapter[Any]) -> Any:
    """A value as the field has it; None where it is not valid."""
    try:
        return adapter.validate_python(value)
    except (ValidationError, InputError):
        return None


def _listed(given: Any, adapter: TypeAdapter[Any]) -> tuple[Sequence[str], tuple[Any, ...]]:
    """The names, empty if the study gives no names, and the values of an axis. Raises InputError."""
    if isinstance(given, Mapping) and "from" in given:
        given = list(_ranged(given, adapter))
    elif isinstance(given, Mapping):
        if len(given) == 0:
            raise InputError("has no values; give a list, or a range such as {from: 1, to: 64, factor: 2}")
        return [str(name) for name in given], tuple(given.values())
    if not isinstance(given, list):
        raise InputError(f"expected a list, {{name: value}} or a range {{from, to, points}}, got {str(given)[:40]!r}")
    if not given:
        raise InputError("has no values; give at least one")
    return [], tuple(given)


def _ranged(given: Mapping[str, Any], adapter: TypeAdapter[Any]) -> Iterator[Any]:
    """The values of a range, in the unit of its first value; between whole numbers they are whole. Raises InputError."""
    for key in given:
        if key not in _RANGE:
            raise InputError(f"a range has no {key!r}; it has {', '.join(_RANGE)}")
    if "to" not in given or ("points" in given) == ("factor" in given):
        raise InputError("a range has from, to, and either points or factor; give these")
    (first, unit), (last, last_unit) = _number(given["from"]), _number(given["to"])
    if unit != last_unit:
        last = first * _ratio(given["to"], given["from"], adapter)
    whole = all(isinstance(given[end], int) for end in ("from", "to")) and _parsed(given["from"] + 0.5, adapter) is None
    before = None
    for value in _numbers(first, last, given):
        settled: Any = round(value) if whole else float(f"{value:.{_DIGITS}g}")
        if settled != before:
            before = settled
            yield f"{settled:.{_DIGITS}g} {unit}" if unit else settled


def _numbers(first: float, last: float, given: Mapping[str, Any]) -> list[float]:
    """The numbers of a range, evenly spaced, or by a constant factor. Raises InputError."""
    by_factor, log = given.get("factor"), given.get("log", "factor" in given)
    if not isinstance(log, bool):
        raise InputError(f"log is true or false, got {log!r}")
    if log and not (first > 0 and last > 0):
        raise InputError("a log range goes from above zero to above zero; give such numbers, or log: false")
    if by_factor is not None:
        if isinstance(by_factor, bool) or not isinstance(by_factor, int | float) or not 1 < by_factor < math.inf:
            raise InputError(f"factor is a number above 1, got {by_factor!r}")
        if not log:
            raise InputError("factor makes a log range; leave log out, or give points")
        count = _checked(math.floor(abs(math.log(last / first)) / math.log(by_factor) + _ROUNDING) + 1)
        ratio = by_factor if last >= first else 1 / by_factor
        return [first * ratio**i for i in range(count)]
    count = given["points"]
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"points is a whole number of at least 1, got {count!r}")
    values: list[float] = (np.geomspace if log else np.linspace)(first, last, _checked(count)).tolist()
    return values


def _checked(count: int) -> int:
    if count > _MOST_VALUES:
        raise InputError(f"{count:,} values; an axis has at most {_MOST_VALUES:,}")
    return count


def _number(value: Any) -> tuple[float, str]:
    """A number and its unit. Raises InputError."""
    match = _NUMBER.fullmatch(str(value))
    if match is None or isinstance(value, bool) or not math.isfinite(number := float(match[1].replace("_", ""))):
        raise InputError(f"{value!r} is not a number; give a range from one number to another")
    return number, match[2] or ""


def _ratio(last: Any, first: Any, adapter: TypeAdapter[Any]) -> float:
    """The ratio of two quantities with different units. Raises InputError."""
    ends = _parsed(last, adapter), _parsed(first, adapter)
    if not all(isinstance(end, int | float) for end in ends) or not ends[1]:
        raise InputError(f"{first!r} and {last!r} cannot be compared; give both in the same unit")
    return float(ends[0] / ends[1])
