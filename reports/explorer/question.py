"""Requests of the page. A query is a scenario and `--set` options as on the command line, but must not open files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args
from urllib.parse import parse_qsl, urlencode

import yaml

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.fields import GPUS

# what is requested: a first estimate, the full prediction, curves around it, the comparison with the pinned scenario, a plan
Look = Literal["first", "full", "curves", "comparison", "plan"]

DEFAULT: Final = "llama-2-7b-fsdp-a100"
_MOST_GPUS: Final = 1_000_000
_MOST_SETS: Final = 64
_LONGEST_SET: Final = 2000
# levels of lists and mappings within one value; reading them is recursive
_DEEPEST: Final = 20
# what of a scenario is read from a file of that name
_NAMED: Final[dict[tuple[str, ...], str]] = {
    ("cluster", "device"): "devices", **{(part,): folder for part, folder in catalog.PARTS.items()},
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A scenario and its settings. gpus: the number of GPUs on which it is to run; its own if None. pinned: the scenario A that
    it is compared with."""

    reference: str
    sets: tuple[str, ...] = ()
    look: Look = "full"
    gpus: int | None = None
    pinned: Question | None = None

    @property
    def sets_without_gpus(self) -> tuple[str, ...]:
        """The settings without numbers of GPUs, which stand for other settings."""
        return tuple(one for one in self.sets if one.partition("=")[0] != GPUS)

    @property
    def has_gpus(self) -> bool:
        """Whether a number of GPUs is requested."""
        return self.gpus is not None or len(self.sets_without_gpus) < len(self.sets)

    def query(self) -> str:
        """The query of the page's address: '?scenario=…&set=…'."""
        parts = [("scenario", self.reference), *(("set", one) for one in self.sets)]
        if self.gpus is not None:
            parts.append(("gpus", str(self.gpus)))
        if self.pinned is not None:
            parts.append(("a", self.pinned.query()))
        return "?" + urlencode(parts)


@dataclass(frozen=True)
class Shelf:
    """The scenarios that may be requested: the shipped ones, and that of the command line. own_sets: `--set` options of the
    command line, which may read files."""

    own: str | None = None
    own_sets: tuple[str, ...] = ()

    @property
    def begin(self) -> Question:
        """The request of the initial page."""
        return Question(self.own or DEFAULT, self.own_sets)

    def scenarios(self) -> list[str]:
        """Names of scenarios, that of the command line first."""
        shipped = [name for folder in catalog.SCENARIO_FOLDERS for name in catalog.names(folder)]
        return [self.own, *shipped] if self.own and self.own not in shipped else shipped

    def question(self, parameters: Sequence[tuple[str, str]]) -> Question:
        """Parses a query. Raises InputError if it is not allowed."""
        known = ("scenario", "set", "gpus", "a", "look")
        unknown = sorted({name for name, _ in parameters if name not in known})
        if unknown:
            raise InputError(f"the address has an unknown parameter {unknown[0][:40]!r}; leave it out")
        reference = _single(parameters, "scenario") or self.begin.reference
        if reference not in self.scenarios():
            raise InputError(f"this page has no scenario {reference[:80]!r}; choose one from the list")
        sets = tuple(value for name, value in parameters if name == "set")
        if len(sets) > _MOST_SETS:
            raise InputError(f"{len(sets)} settings; the page takes {_MOST_SETS} at most")
        for one in sets:
            if one not in self.own_sets:
                _check(one)
        look = _single(parameters, "look") or "full"
        if look not in get_args(Look):
            raise InputError(f"look={look[:40]}: give one of {', '.join(get_args(Look))}")
        return Question(reference, sets, cast(Look, look), _gpus(_single(parameters, "gpus")), self._pinned(parameters))

    def _pinned(self, parameters: Sequence[tuple[str, str]]) -> Question | None:
        """The pinned scenario, whose query is a part of the query."""
        text = _single(parameters, "a")
        if not text:
            return None
        inner = parse_qsl(text.removeprefix("?"), keep_blank_values=True)
        if any(name not in ("scenario", "set", "gpus") for name, _ in inner):
            raise InputError("the pinned scenario has parts other than scenario, set and gpus; leave them out")
        return self.question(inner)


def _single(parameters: Sequence[tuple[str, str]], name: str) -> str:
    """The value of a part that may occur once; empty without it. Raises InputError."""
    found = [value for one, value in parameters if one == name]
    if len(found) > 1:
        raise InputError(f"the address has {len(found)} parts {name}; give one")
    return found[0] if found else ""


def _gpus(text: str) -> int | None:
    """A number of GPUs. Raises InputError."""
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 7 and 0 < int(text) <= _MOST_GPUS):
        raise InputError(f"gpus={text[:20]}: give a whole number from 1 to {_MOST_GPUS:,}")
    return int(text)


def _check(override: str) -> None:
    """Raises InputError for a setting that would read a file or that is too large."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(f"{override[:80]}: expected field=value, such as strategy.workers=8")
    if len(override) > _LONGEST_SET:
        raise InputError(f"{key[:80]}: a setting has {_LONGEST_SET} characters at most")
    path = tuple(key.split("."))
    for inner, value in _leaves(_value(key, text)):
        _check_leaf(path + inner, value)


def _value(key: str, text: str) -> Any:
    """A value parsed as YAML, as in scenarios. Raises InputError."""
    depth = 0
    try:
        for token in yaml.scan(text):
            if isinstance(token, yaml.AnchorToken | yaml.AliasToken | yaml.TagToken):
                raise InputError(f"{key[:80]}: the page takes plain values; write them out")
            opens = isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken | yaml.BlockMappingStartToken)
            closes = isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken | yaml.BlockEndToken)
            depth += opens - closes
            if depth > _DEEPEST:
                raise InputError(f"{key[:80]}: nested too deeply")
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InputError(f"{key[:80]}: {text[:80]!r} is not a value") from None


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def _check_leaf(path: tuple[str, ...], value: Any) -> None:
    """Raises InputError if loading the value would open a file or run code."""
    part = path[:-1] if path[-1] == "base" else path
    field = ".".join(path)
    if part in _NAMED and value is not None and value not in catalog.names(_NAMED[part]):
        raise InputError(f"{field[:80]}: the page knows no {part[-1]} {str(value)[:80]!r}; give the name of one that ships")
    if path[0] == "model" and (path[-1] == "source" or (path[-1] == "kind" and value == "traced")):
        raise InputError(f"{field}: the page runs no code of its visitors; give the name of a model that ships")
    if path[:2] == ("training", "data"):
        raise InputError(f"{field}: the page reads no files; leave it out, predictions do not depend on it")
