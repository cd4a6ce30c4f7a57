"""Framework files: found by name or path, with the files that they are based on merged in."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from scaleproof.simulator.cluster.device.kernels.attention_rates import BEST, USUAL
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import NotFoundError, ScenarioError
from scaleproof.simulator.common.yaml_file import FieldPath, Located
from scaleproof.simulator.frameworks.framework import Framework

# A framework may be based on another, which may be based on a third; longer chains are treated as cycles.
_LONGEST_CHAIN: Final = 8


def resolve_framework(located: Located, folder: Path) -> None:
    """Replaces `framework: NAME` and `framework: {base: NAME, ...}` of a scenario by what the files say.

    Fields next to `base` change what the base says, in mappings key by key. `framework: null` leaves it to the default. Raises
    ScenarioError.
    """
    if isinstance(located.data, dict) and "framework" in located.data:
        if located.data["framework"] is None:
            del located.data["framework"]
            return
        _resolve(located, ("framework",), folder, _LONGEST_CHAIN)


@functools.cache
def shipped(name: str) -> Framework:
    """The framework of that name in scenarios/frameworks/. Raises NotFoundError, and ScenarioError for a file that is wrong."""
    path = catalog.find_part("framework", name, Path())
    found = Located({"framework": str(path)}, {(): str(path)})
    resolve_framework(found, Path())
    try:
        return Framework.model_validate(found.data["framework"])
    except ValidationError as error:
        first = error.errors()[0]
        raise ScenarioError([f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"]) from None


def _resolve(located: Located, path: FieldPath, folder: Path, left: int) -> None:
    value = located.data["framework"]
    if isinstance(value, str):
        value = {"base": value}
        is_name = True
    else:
        is_name = False
    if isinstance(value, dict) and not {"base", "name"} & set(value):
        raise ScenarioError(
            [f"{located.place(path)}: framework: has neither base nor name; give base, such as {{base: pytorch-ddp}}, or name"]
        )
    if not isinstance(value, dict) or "base" not in value:
        return
    changes = {key: one for key, one in value.items() if key != "base"}
    places = {own: place for own, place in located.places.items() if own[: len(path)] == path}
    where = f"{located.place(path if is_name else (*path, 'base'))}: {'.'.join(map(str, path))}"
    if not isinstance(value["base"], str):
        raise ScenarioError([f"{where}: expected the name or path of a framework, got {str(value['base'])[:60]!r}"])
    if left == 0:
        raise ScenarioError([f"{where}: its bases form a cycle; leave base out of one of these files"])
    try:
        file = catalog.find_part("framework", value["base"], folder)
    except NotFoundError as error:
        raise ScenarioError([f"{where}: {error}"]) from None
    read = yaml_file.read(file)
    if not isinstance(read.data, dict):
        raise ScenarioError([f"{file}:1:1: a framework file must be a mapping of fields"])
    read.data.setdefault("name", file.stem)
    base = Located({"framework": read.data}, {("framework", *own): place for own, place in read.places.items()})
    _resolve(base, path, file.parent, left - 1)
    located.graft(path, Located(base.data["framework"], {own[1:]: place for own, place in base.places.items()}))
    located.data["framework"] = yaml_file.merged(located.data["framework"], changes)
    located.places.update(places)


@functools.cache
def names() -> tuple[str, ...]:
    """Names of the frameworks that ship, sorted."""
    return tuple(catalog.names("frameworks"))


def supporting(features: frozenset[str]) -> list[str]:
    """Names of the shipped frameworks that support all `features`, sorted."""
    return [name for name in names() if features <= set(shipped(name).supports)]


@functools.cache
def attention_versions() -> tuple[str, ...]:
    """Implementations of flash attention that shipped frameworks run, sorted."""
    named = {version for name in names() for version in shipped(name).attention.values()}
    return tuple(sorted((named | {USUAL}) - {BEST, "none"}))


def renamed(framework: Framework) -> Framework:
    """The framework, under a name that says so where it is a shipped one with changes."""
    if framework.name not in names() or equal_to_shipped(framework):
        return framework
    return framework.model_copy(update={"name": f"{framework.name}, changed"})


def equal_to_shipped(framework: Framework) -> bool:
    """Whether a framework is exactly the one that ships under its name."""
    return framework.name in names() and shipped(framework.name) == framework
