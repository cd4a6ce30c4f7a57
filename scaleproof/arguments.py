"""Checks the types of arguments of the package's functions, so that a wrong one is refused in a sentence before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.yaml_file import plain


def check_count(name: str, value: object) -> int | None:
    """A whole number from 1 on, or None. Raises InputError for anything else."""
    number = plain(value)
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= 1):
        return number
    raise InputError(f"{name}: expected a whole number from 1 on, got {value!r}")


def check_counts(name: str, values: object) -> list[int]:
    """Whole numbers from 1 on, from a list, a range or an array. Raises InputError for anything else."""
    numbers = _listed(values)
    if not isinstance(numbers, list):
        raise InputError(f"{name}: expected a list of whole numbers such as [8, 16], got {values!r}")
    return [count for one in numbers if (count := check_count(name, one)) is not None]


def check_count_or_counts(name: str, value: object) -> int | list[int] | None:
    """A whole number from 1 on, several of them in a list, or None. Raises InputError for anything else."""
    several = _listed(value)
    if not isinstance(several, list):
        return check_count(name, value)
    if not several:
        raise InputError(f"{name}: expected a whole number such as 64, or several such as [64, 128], got an empty list")
    return check_counts(name, several)


def check_ranks(name: str, value: object) -> int | list[int]:
    """A number of ranks, or a list of ranks from 0 on. Raises InputError for anything else."""
    ranks = _listed(value)
    whole = [one for one in (ranks if isinstance(ranks, list) else [ranks]) if isinstance(one, int)]
    if len(whole) != (len(ranks) if isinstance(ranks, list) else 1):
        raise InputError(f"{name}: expected a number such as 64, or a list of ranks such as [0, 8], got {value!r}")
    return whole if isinstance(ranks, list) else whole[0]


def check_flag(name: str, value: object) -> None:
    """Raises InputError for a value that is neither True nor False."""
    if not isinstance(value, bool):
        raise InputError(f"{name}: expected True or False, got {value!r}")


def check_number(name: str, value: object, example: str) -> float:
    """A number. Raises InputError for anything else."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InputError(f"{name}: expected a number such as {example}, got {value!r}")
    return number


def check_text(name: str, value: object) -> str:
    """A text, or a path as text. Raises InputError for anything else."""
    if not isinstance(value, str | Path):
        raise InputError(f"{name}: expected a text, got {value!r}")
    return str(value)


def check_texts(name: str, values: object) -> list[str]:
    """Texts, from a list. Raises InputError for anything else, also for a single text."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{name}: expected a list of texts, got {values!r}")
    return [check_text(name, one) for one in values]


def check_path(name: str, value: object) -> Path:
    """A path. Raises InputError for what is neither a text nor a path."""
    if not isinstance(value, str | Path):
        raise InputError(f"{name}: expected a path, got {value!r}")
    return Path(value)


def check_axes(axes: object) -> dict[str, Any]:
    """Values by field, sequences and arrays as lists. Raises InputError for anything but a mapping of fields."""
    if not isinstance(axes, Mapping) or not all(isinstance(field, str) for field in axes):
        raise InputError(f"axes: expected values by field such as {{'strategy.workers': [8, 16]}}, got {axes!r}")
    return {field: _listed(values) for field, values in axes.items()}


def _listed(values: object) -> object:
    """A sequence or an array as a list of plain values; other values as they are."""
    values = plain(values)
    return list(map(plain, values)) if isinstance(values, Sequence) and not isinstance(values, str) else values
