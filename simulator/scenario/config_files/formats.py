"""Formats of configuration files, which are data in scenarios/config-files/: for each key the fields that it sets, and how its
values become those of the fields."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common import catalog, yaml_file

_FOLDER: Final = catalog.ROOT / "config-files"
_OPTIMIZERS: Final = "optimizers"
# By quantities from which fields follow together, the field that shows them.
PARTS: Final = {
    "micro batch": "batch.per_worker", "accumulation": "strategy.microbatches", "total batch": "batch.per_worker",
    "processes": "strategy.workers", "sharding": "framework", "kernels": "framework", "software": "framework",
    "stored": "training.master", "tf32": "training.precision", "sequence": "model.sequence", "flash": "model.flash",
    "adapter": "training.adapters.kind", "model": "model.base",
}  # fmt: skip
# Fields whose value is a list, to which keys add.
LISTS: Final = ("training.offload", "training.adapters.targets", "training.adapters.modules_to_save")
# The target of a key that names a further file.
FILE: Final = "file"
# The key of a meaning that has a reason in place of a value.
_NOT_MODELLED: Final = "not modelled"
_SAME: Final = {"no": "false", "off": "false", "yes": "true", "on": "true", "": "none", "[]": "none"}


class NotModelledError(ValueError):
    """A value that no field expresses, with the reason."""


class Format(NamedTuple):
    """A format of configuration files.

    software: the framework, before what other keys say. signs: keys by which a file of it is known, of which all of one group
    are there. keys: by key, nested ones with dots, the fields and `PARTS` that it sets, with the names of conversions or the
    meanings of words. harmless: patterns of keys without effect on the time and memory of a step. defaults: by field or part,
    its value where no file gives it, the reason, and what it needs to have a meaning.
    """

    name: str
    software: str
    signs: tuple[tuple[str, ...], ...]
    keys: Mapping[str, Mapping[str, Any]]
    harmless: tuple[str, ...]
    defaults: Mapping[str, Mapping[str, Any]]


@functools.cache
def formats() -> tuple[Format, ...]:
    """All formats, those with the most specific signs first."""
    files = {path.stem: yaml_file.shipped(path) for path in sorted(_FOLDER.glob("*.yaml"))}
    found = [_format(data, files) for data in files.values() if "signs" in data]
    # arguments of Transformers are in files of others too
    return tuple(sorted(found, key=lambda one: one.name == "Transformers"))


def _format(data: Mapping[str, Any], files: Mapping[str, Any]) -> Format:
    keys, harmless, defaults = dict[str, Any](), list[str](), dict[str, Any]()
    for part in _chain(data, files):
        keys |= part.get("keys", {})
        harmless += part.get("harmless", ())
        defaults |= part.get("defaults", {})
    return Format(data["name"], data["software"], tuple(map(tuple, data["signs"])), keys, tuple(harmless), defaults)


def _chain(data: Mapping[str, Any], files: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A file after those that it is based on."""
    return [*(part for base in data.get("base", ()) for part in _chain(files[base], files)), data]


def converted(targets: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The values of targets that a key's value sets; none for one that is off, or as by default.

    Raises NotModelledError, and ValueError for a value that is wrong.
    """
    result, is_known = dict[str, Any](), False
    for target, how in targets.items():
        if isinstance(how, str) and how in CONVERSIONS:
            own = CONVERSIONS[how](value)
            is_known = True
        else:
            meanings = _optimizers() if how == "optimizer" else how
            name = _word(value)
            pattern = next((one for one in meanings if fnmatchcase(name, _word(one))), None)
            is_known = is_known or pattern is not None or name in ("false", "none")
            own = None if pattern is None else meanings[pattern]
        if isinstance(own, Mapping):
            raise NotModelledError(own[_NOT_MODELLED])
        if own is not None:
            result[target] = own
    if not is_known:
        words = dict.fromkeys(_word(one) for how in targets.values() if isinstance(how, Mapping) for one in how if one != "*")
        if not words:
            raise NotModelledError("no optimizer here; adam is assumed" if "training.optimizer" in targets else "")
        raise ValueError(f"{value!r} is not known; give one of {', '.join(words)}")
    return result


@functools.cache
def _optimizers() -> dict[str, str]:
    words: dict[str, str] = yaml_file.shipped(_FOLDER / f"{_OPTIMIZERS}.yaml")["words"]
    return words


def _word(value: Any) -> str:
    """A value as a word in lower case, the same for all spellings of true, false and nothing."""
    name = str(value).lower()
    return _SAME.get(name, name)


def _whole(value: Any) -> int | None:
    """A whole number of at least 1; texts such as '5e8' are numbers too."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or number < 1 or number != int(number):
        raise ValueError(f"{value!r} is no whole number of at least 1")
    return int(number)


def _share(value: Any) -> float | None:
    """A number from 0 to 1; None for 0."""
    try:
        number = float(value or 0)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1:
        raise ValueError(f"{value!r} is no share from 0 to 1")
    return number or None


def _names(value: Any) -> list[str] | None:
    """A list of names, or names separated by commas; `all` and `all-linear` are all products of blocks."""
    listed = value.split(",") if isinstance(value, str) else list(value or ())
    found = [str(one).strip() for one in listed]
    return ["all-linear"] if found in (["all"], ["all-linear"]) else found or None


def _text(value: Any) -> Any:
    return value or None


CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "whole": _whole, "share": _share, "names": _names, "text": _text, "last": lambda value: str(value).rpartition(".")[2],
}  # fmt: skip
