"""Axes of a crossover map: the field that varies along each, and its values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Final

from scaleproof.simulator.analysis.study.axes import StudyAxis
from scaleproof.simulator.common.errors import InputError, UnitError
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.scenario.fields import GPUS, Field, Value, field_at, value_at
from scaleproof.simulator.scenario.schema import Scenario

# without a range, the axis extends this factor below and above the scenario's value
_AROUND: Final = 10.0
_MOST_VALUES: Final = 200
_ROW_VALUES: Final = 5
# short names of common fields
_SHORT: Final = {"workers": "strategy.workers", "servers": "strategy.servers"}


class MapAxis(Record):
    """A field and its values in SI, in increasing order; whole numbers where the field has only these."""

    derived: ClassVar = ("unit",)

    field: str
    values: tuple[int | float, ...]

    @cached_property
    def _known(self) -> Field:
        return field_at(self.field)

    @property
    def is_whole(self) -> bool:
        """Whether values are whole numbers."""
        return isinstance(self.values[0], int)

    @property
    def is_of_strategy(self) -> bool:
        """Whether the axis sets a field of the strategy."""
        return self.field.startswith("strategy.")

    @property
    def inner(self) -> str:
        """The last component of the field's path."""
        return self.field.rpartition(".")[2]

    @property
    def name(self) -> str:
        """The field's name in texts and figures."""
        return "GPUs" if self.field == GPUS else self.field

    @property
    def unit(self) -> str:
        """Symbol of the unit in SI, or an empty text."""
        return self._known.unit.symbol if self._known.unit else ""

    @property
    def column(self) -> str:
        """The name of the field's table column, which ends in its unit."""
        return self._known.column

    @property
    def of_study(self) -> StudyAxis:
        """The axis of a study; values are in SI."""
        return StudyAxis(self.field, self.column, self.values, self.values)

    def text(self, value: float) -> str:
        """A value with its unit, for display."""
        return str(Value(value, self._known.unit)) if self.unit or self.is_whole else f"{value:.3g}"

    def rounded(self, value: float) -> str:
        """A value between those of the axis with its unit, for display; a whole number where the axis has only these."""
        return self.text(round(value) if self.is_whole else value)

    def exactly(self, value: float) -> str:
        """A value without rounding, as an override takes it."""
        return self._known.unit.exactly(value) if self._known.unit else repr(value)

    def between(self, left: float, right: float, tolerance: float) -> float | None:
        """The middle of two values; None for consecutive whole numbers, or values closer than the relative `tolerance`."""
        if self.is_whole:
            return (left + right) // 2 if right - left > 1 else None
        return math.sqrt(left * right) if right > left * (1 + tolerance) else None


def x_axis(scenario: Scenario, text: str, points: int) -> MapAxis:
    """The axis of a field, or `field=from..to`, with `points` values that are evenly spaced by logarithm.

    The default field is the bandwidth of the network, or of the node link where there is one node. Raises InputError.
    """
    text = text or f"cluster.{'network' if scenario.cluster.nodes > 1 else 'node.link'}.bandwidth"
    if not 2 <= points <= _MOST_VALUES:
        raise InputError(f"--points {points}: a map has 2 to {_MOST_VALUES} points along x; give such a number")
    field, given, value = _field(scenario, "--x", text)
    low, high = _range("--x", text, given, value)
    return _axis(field, _spaced(low, high, points, isinstance(value.value, int)))


def y_axis(scenario: Scenario, text: str) -> MapAxis:
    """The axis of a field, `field=from..to` or `field=one,two`. Whole numbers are powers of two; the default range of workers
    ends with the cluster's devices. Raises InputError."""
    field, given, value = _field(scenario, "--y", text)
    if given and ".." not in given:
        return _axis(field, sorted({_number("--y", text, one, value) for one in given.split(",")}))
    if not isinstance(value.value, int):
        low, high = _range("--y", text, given, value)
        return _axis(field, _spaced(low, high, _ROW_VALUES, False))
    if given or field != "strategy.workers":
        low, high = _range("--y", text, given, value)
    else:
        strategy = scenario.strategy
        ranks_per_worker = strategy.training_ranks // strategy.workers if "workers" in type(strategy).model_fields else 1
        low, high = 2, scenario.cluster.devices // ranks_per_worker
    powers = [2**power for power in range(31) if low <= 2**power <= high]
    if not powers:
        raise InputError(f"--y {text}: no power of two lies between {low:g} and {high:g}; name values, as in {field}=3,6")
    return _axis(field, powers)


def _axis(field: str, values: Sequence[float]) -> MapAxis:
    return MapAxis(field=field, values=tuple(values))


def _field(scenario: Scenario, option: str, text: str) -> tuple[str, str, Value]:
    """The field's path, the text given after "=", and the scenario's value of the field."""
    field, _, given = text.partition("=")
    field = _SHORT.get(field.strip(), field.strip())
    # the other strategies on the map have the field `workers` even where the scenario's own strategy does not
    value = Value(scenario.strategy.workers, None) if field == _SHORT["workers"] else value_at(scenario, field)
    if isinstance(value.value, Spec):
        raise InputError(f"{option} {text}: a part of the scenario, not a number; give one of its fields, as in {field}.FIELD")
    if isinstance(value.value, bool) or not isinstance(value.value, int | float):
        raise InputError(f"{option} {text}: the scenario says {value} there, which is not a number; give a numeric field")
    return field, given.strip(), value


def _range(option: str, text: str, given: str, value: Value) -> tuple[float, float]:
    """The range given as `from..to`; by default, a range around the scenario's value. Raises InputError."""
    if not given:
        if value.value <= 0:
            raise InputError(f"{option} {text}: the scenario says {value} there; give a range, as in {text}=FROM..TO")
        low, high = value.value / _AROUND, value.value * _AROUND
        return (max(1, math.ceil(low)), math.floor(high)) if isinstance(value.value, int) else (low, high)
    first, dots, last = given.partition("..")
    if not dots:
        raise InputError(f"{option} {text}: {given!r} is not a range; write it as FROM..TO")
    low, high = (_number(option, text, one, value) for one in (first, last))
    if not low < high:
        raise InputError(f"{option} {text}: {first.strip()} is not below {last.strip()}; give the smaller one first")
    return low, high


def _number(option: str, text: str, given: str, value: Value) -> float:
    """A number above zero, in SI, from text in the field's unit. Raises InputError."""
    try:
        plain = int if isinstance(value.value, int) else float
        number = value.unit.parse(given.strip()) if value.unit else plain(given)
    except UnitError as error:
        raise InputError(f"{option} {text}: {error}") from None
    except ValueError:
        kind = "whole number" if plain is int else "number"
        raise InputError(f"{option} {text}: {given.strip()!r} is not a {kind}; give one above zero") from None
    if not 0 < number < math.inf:
        raise InputError(f"{option} {text}: {given.strip()} is not above zero; give a number that is")
    return number


def _spaced(low: float, high: float, count: int, whole: bool) -> list[float]:
    """Values from low to high, evenly spaced by logarithm; rounded and without duplicates if `whole`."""
    values = [low * (high / low) ** (i / (count - 1)) for i in range(count - 1)] + [high]
    return list(dict.fromkeys(round(value) for value in values)) if whole else values
