"""Safe reading of YAML with the file, line and column of every value, for error messages."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from scaleproof.simulator.common.errors import InputError, NotFoundError, ScenarioError

# LibYAML, if the wheel has it, is ten times faster.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_BYTES: Final = 16 * 2**20
_MAX_NODES: Final = 1_000_000
# LibYAML's loader is recursive: deeply nested YAML overflows the stack and kills the process.
_MAX_DEPTH: Final = 100
# Control characters except ends of lines and tabs, and surrogates, which cannot be encoded.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

FieldPath = tuple[str | int, ...]


@dataclass
class Located:
    """Plain data with the place of each value. places: 'file:line:column' by path of keys."""

    data: Any
    places: dict[FieldPath, str] = field(default_factory=dict)

    def place(self, path: FieldPath) -> str:
        """The place of the value at `path`, or of its nearest ancestor with a known place."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return "scenario"

    def mapping(self, path: FieldPath) -> dict[Any, Any]:
        """The mapping at a path; an empty one if there is none."""
        return mapping_at(self.data, path)

    def refused(self, path: FieldPath, message: str) -> ScenarioError:
        """The error for a field, with its place."""
        return ScenarioError([f"{self.place(path)}: {'.'.join(map(str, path))}: {message}"])

    def below(self, path: FieldPath) -> dict[FieldPath, str]:
        """The places of the value at a path and of all that it contains, by their whole paths."""
        return {at: place for at, place in self.places.items() if at[: len(path)] == path}

    def field(self, key: str) -> Located:
        """The value of a field of a mapping, with its places."""
        return Located(self.data[key], {at[1:]: place for at, place in self.below((key,)).items()})

    def as_field(self, key: str) -> Located:
        """A mapping with one field, whose value this is."""
        return Located({key: self.data}, {(key, *at): place for at, place in self.places.items()})

    def graft(self, path: FieldPath, part: Located) -> None:
        """Sets the value at `path` to `part`, whose places in its own file are kept."""
        self.mapping(path[:-1])[path[-1]] = part.data
        self.places.update({path + inner: place for inner, place in part.places.items()})


def mapping_at(data: Any, path: FieldPath) -> dict[Any, Any]:
    """The mapping at a path of nested mappings; an empty one if there is none."""
    for key in path:
        if isinstance(data, list) and isinstance(key, int):
            data = data[key] if key < len(data) else None
        else:
            data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def shipped(path: Path) -> Any:
    """The data of a file that ships, without places and checks."""
    loader = _Loader(path.read_text(encoding="utf-8"))
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def merged(base: Any, changes: dict[str, Any]) -> Any:
    """`base` with `changes` applied; nested mappings are merged key by key."""
    if not isinstance(base, dict):
        return base
    result = dict(base)
    for key, value in changes.items():
        result[key] = merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return result


def read(path: Path) -> Located:
    """Reads one YAML document. Raises NotFoundError, or ScenarioError with `file:line:column: problem`."""
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8") if size <= _MAX_BYTES else ""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise NotFoundError(f"{path}: {reason}; give the path of a YAML file") from None
    if size > _MAX_BYTES:
        raise ScenarioError([f"{path}: {size} bytes; a YAML file here has at most {_MAX_BYTES}"])
    return parse(text, str(path))


def parse(text: str, name: str) -> Located:
    """Parses YAML text; `name` is the file's name in error messages. Raises ScenarioError."""
    try:
        _check_depth(text, name)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ScenarioError([f"{name}:1:1: the file is empty; write a mapping"])
            return _Constructor(name, loader).located(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ScenarioError([f"{place}: not valid YAML: {problem}"]) from None
    except RecursionError:
        raise ScenarioError([f"{name}: nested too deeply"]) from None


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy, and columns of pandas, as numbers and lists of Python; other values as they are."""
    return value.tolist() if hasattr(value, "tolist") else value


def on_one_line(value: Any) -> str:
    """A value as YAML on one line. Raises InputError for an object that is no data."""
    try:
        dumped: str = yaml.safe_dump(plain(value), default_flow_style=True, width=math.inf, allow_unicode=True)
    except yaml.representer.RepresenterError:
        raise InputError(f"expected a number, a text, a list or a mapping, got {value!r}") from None
    return dumped.removesuffix("...\n").strip()


def _check_depth(text: str, name: str) -> None:
    """Raises ScenarioError if the text is nested too deeply to be loaded."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                mark = event.start_mark
                assert mark is not None, "events of a text have marks"
                place = f"{name}:{mark.line + 1}:{mark.column + 1}"
                raise ScenarioError([f"{place}: nested too deeply, more than {_MAX_DEPTH} levels"])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Constructor:
    """Constructs data from composed nodes and records their places; rejects duplicate keys and alias bombs."""

    def __init__(self, name: str, loader: Any) -> None:
        self.name = name
        self.loader = loader
        self.nodes = 0
        self.result = Located(None)

    def located(self, root: Any) -> Located:
        self.result.data = self.value(root, ())
        return self.result

    def place(self, node: Any) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def value(self, node: Any, path: FieldPath) -> Any:
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise ScenarioError([f"{self.place(node)}: more than {_MAX_NODES} values; are aliases nested?"])
        self.result.places[path] = self.place(node)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, i)) for i, child in enumerate(node.value)]
        return self.scalar(node)

    def mapping(self, node: Any, path: FieldPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, child in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or _CONTROL.search(key):
                raise ScenarioError([f"{self.place(key_node)}: a key must be a word"])
            if key in result:
                raise ScenarioError([f"{self.place(key_node)}: {key}: given twice; keep one"])
            result[key] = self.value(child, (*path, key))
            # errors point to the key, not to the value
            self.result.places[(*path, key)] = self.place(key_node)
        return result

    def scalar(self, node: Any) -> Any:
        if _CONTROL.search(node.value):
            raise ScenarioError([f"{self.place(node)}: {node.value!r} has control characters; leave them out"])
        try:
            return self.loader.construct_object(node)
        except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
            # the value does not match its tag
            raise ScenarioError([f"{self.place(node)}: {node.value!r} cannot be read: {error}"]) from None
