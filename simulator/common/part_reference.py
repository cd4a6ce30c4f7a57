"""Resolves parts of a scenario that are given by name, by path, or as another part with changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import NotFoundError, ScenarioError
from scaleproof.simulator.common.yaml_file import FieldPath, Located

# Reads the part of a kind by its name or path; returns its content, and the folder where relative paths in it start. The folder
# given is where the reference itself starts, if it is a relative path.
ReadPart = Callable[[str, str, Path], tuple[Located, Path]]

# Parts that have a name, by default that of their file.
_NAMED: Final = ("model", "cluster", "framework")
# Parts of a part that may themselves be given by name, by path, or with changes.
_INNER: Final[dict[str, tuple[str, ...]]] = {"cluster": ("device",)}
# By a field that is changed, here with the end of its path, the field next to it that the change makes void.
_VOID: Final[dict[FieldPath, FieldPath]] = {
    ("network", "nics"): ("network", "bandwidth"),
    ("network", "bandwidth"): ("network", "nics"),
    ("node", "price"): ("node", "purchase"),
    ("node", "purchase"): ("node", "price"),
    ("device", "memory"): ("device", "usable_memory"),
}
# A part may be based on another, which may be based on a third; longer chains are treated as cycles.
_LONGEST_CHAIN: Final = 8


def read_part(part: str, reference: str, folder: Path) -> tuple[Located, Path]:
    """Reads the file of a part. Raises NotFoundError or ScenarioError."""
    file = catalog.find_part(part, reference, folder)
    found = yaml_file.read(file)
    if not isinstance(found.data, dict):
        raise ScenarioError([f"{file}:1:1: a {part} file must be a mapping of fields"])
    if part in _NAMED:
        found.data.setdefault("name", file.stem)
    return found, file.parent


def resolve(located: Located, path: FieldPath, folder: Path, read: ReadPart = read_part, left: int = _LONGEST_CHAIN) -> None:
    """Replaces `PART: NAME` and `PART: {base: NAME, ...}` at `path`, whose last key is the part, by the content of its file.

    Fields next to `base` change what the base says, in mappings key by key. folder: where relative paths start. Raises
    ScenarioError.
    """
    parent = located.mapping(path[:-1])
    value: Any = parent.get(path[-1])
    part, is_name = str(path[-1]), isinstance(value, str)
    own = {"base": value} if is_name else value
    if not isinstance(own, dict):
        return
    renewed = [inner for inner in _INNER.get(part, ()) if _is_reference(own.get(inner))]
    listed = own.get("nodes")
    for inner in _INNER.get(part, ()):
        resolve(located, (*path, inner), folder, read)
        for number in range(len(listed) if isinstance(listed, list) else 0):
            resolve(located, (*path, "nodes", number, inner), folder, read)
    if "base" not in own:
        return
    changes = {key: one for key, one in own.items() if key != "base"}
    changed = [(*path, *at) for at in _paths(changes)]
    # also of fields whose own places are not known, so that they do not get those of the base
    places = located.below(path) | {at: located.place(at) for at in changed}
    field = path if is_name else (*path, "base")
    content, own_folder = _content(located, field, part, own["base"], folder, read, left)
    # a chain of bases, each in the folder of its file
    whole = content.as_field(part)
    resolve(whole, (part,), own_folder, read, left - 1)
    whole = whole.field(part)
    base = {key: one for key, one in whole.data.items() if key not in renewed}
    located.graft(path, Located(base, whole.places))
    for at in changed:
        forget_void(base, at[len(path) - 1 :])
    parent[path[-1]] = yaml_file.merged(base, changes)
    located.places.update(places)


def resolve_file(located: Located, part: str, folder: Path) -> None:
    """Does the same for a part's own file: for its base, and for the parts in it."""
    whole = located.as_field(part)
    resolve(whole, (part,), folder)
    whole = whole.field(part)
    located.data, located.places = whole.data, whole.places


def forget_void(data: dict[str, Any], path: FieldPath) -> None:
    """Removes the field that a change of the field at `path` makes void. data: the part that the path begins with."""
    if path[-2:] not in _VOID:
        return
    yaml_file.mapping_at(data, path[1:-1]).pop(_VOID[path[-2:]][-1], None)
    if path[-2:] == ("network", "nics"):
        yaml_file.mapping_at(data, ("node",)).pop("cards", None)


def _is_reference(value: object) -> bool:
    """Whether a part is given by name, by path, or with changes."""
    return isinstance(value, str) or (isinstance(value, dict) and "base" in value)


def _content(
    located: Located, field: FieldPath, part: str, reference: object, folder: Path, read: ReadPart, left: int
) -> tuple[Located, Path]:
    if not isinstance(reference, str):
        raise located.refused(field, f"expected the name or path of a {part}, got {str(reference)[:60]!r}")
    if left == 0:
        raise located.refused(field, "its bases form a cycle; leave base out of one of these files")
    try:
        return read(part, reference, folder)
    except NotFoundError as error:
        raise located.refused(field, str(error)) from None


def _paths(changes: dict[str, Any], path: FieldPath = ()) -> Iterator[FieldPath]:
    """The path of each field of nested mappings."""
    for key, value in changes.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _paths(value, (*path, key))
