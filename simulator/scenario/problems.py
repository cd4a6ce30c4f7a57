"""Validation errors of scenario files as one line each: place, field, problem and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.parallelism import Hybrid, Strategy
from scaleproof.simulator.scenario.aliases import DEGREES
from scaleproof.simulator.scenario.fields import GPUS
from scaleproof.simulator.scenario.schema import KINDS

_MESSAGES: dict[str, str] = {
    "missing": "missing; add it",
    "greater_than": "must be greater than {gt}, got {input}",
    "greater_than_equal": "must be at least {ge}, got {input}",
    "less_than_equal": "must be at most {le}, got {input}",
    "less_than": "must be less than {lt}, got {input}",
    "union_tag_not_found": "missing 'kind'; give one of {kinds}",
    "union_tag_invalid": "unknown kind {tag!r}; give one of {kinds}",
    "literal_error": "{input!r} is not known; give {expected}",
    "int_type": "expected a whole number, got {input!r}",
    "int_parsing": "expected a whole number, got {input!r}",
    "int_from_float": "expected a whole number, got {input!r}",
    "finite_number": "expected a finite number, got {input!r}",
    "float_type": "expected a number, got {input!r}",
    "float_parsing": "expected a number such as 0.5, got {input!r}",
    "bool_type": "expected true or false, got {input!r}",
    "bool_parsing": "expected true or false, got {input!r}",
    "dict_type": "expected a mapping, got {input!r}",
    "tuple_type": "expected a list, got {input!r}",
    "too_short": "needs at least {min_length} entries, got {actual_length}",
    "too_long": "allows at most {max_length} entries, got {actual_length}",
    "model_type": "expected a mapping of fields, got {input!r}",
    "model_attributes_type": "expected a mapping of fields, got {input!r}",
}


def problem(root: type[Spec], located: Located, detail: Any) -> str:
    """One pydantic error of a file with a `root` as `place: field: what; what to do`. detail: entry of pydantic's
    `errors()`."""
    path = tuple(_without_tags(located.data, detail["loc"]))
    is_kind = detail["type"] == "union_tag_invalid"
    place, field = located.place((*path, "kind") if is_kind else path), ".".join(map(str, path)) or "scenario"
    if detail["type"] == "extra_forbidden":
        return f"{place}: {field}: unknown key; {_suggestion(root, located, path)}"
    if detail["type"] == "value_error":
        return f"{place}: {field}: {detail['ctx']['error']}"
    template = _MESSAGES.get(detail["type"])
    if template is None:
        return f"{place}: {field}: {detail['msg']}"
    context = {key: value for key, value in detail.get("ctx", {}).items() if key != "input"}
    kinds = ", ".join(_kinds_at(root, located.data, path))
    context |= {"input": _short(detail["input"]), "kinds": kinds}
    among = ""
    if detail["type"].startswith("model_"):
        among = f"; its kind is one of {kinds}" if kinds else _example(root, located.data, path)
    return f"{place}: {field}: {template.format(**context)}{among}"


def _example(root: type[Spec], data: Any, path: Sequence[str | int]) -> str:
    """'; write {bandwidth: ..., latency: ...}', with the fields that a part needs, or "" if it needs none."""
    spec = _spec_among(*_annotation_at(root, data, path))
    needed = [field.alias or name for name, field in spec.model_fields.items() if field.is_required()] if spec else []
    return f"; write {{{', '.join(f'{name}: ...' for name in needed)}}}" if needed else ""


def _kinds_at(root: type[Spec], data: Any, path: Sequence[str | int]) -> list[str]:
    """Allowed values of `kind` in the part at `path`."""
    annotation, _ = _annotation_at(root, data, path)
    if annotation is Strategy:
        return KINDS.names()
    return [spec.model_fields["kind"].default for spec in _specs_in(annotation) if "kind" in spec.model_fields]


def _short(value: object) -> object:
    return value if not isinstance(value, str | list | dict) or len(str(value)) < 60 else str(value)[:57] + "..."


def _without_tags(data: Any, loc: Sequence[str | int]) -> list[str | int]:
    """Drops the union tags that pydantic puts into a location ('strategy', 'pipeline', 'stages')."""
    path: list[str | int] = []
    for i, key in enumerate(loc):
        # numbers and texts have no fields
        is_tag = isinstance(data, int | float | str) or (
            isinstance(data, dict) and data.get("kind") == key and i > 0 and (key not in data)
        )
        if is_tag:
            continue
        path.append(key)
        if isinstance(data, dict):
            data = data.get(str(key))
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            data = None
    return path


def _suggestion(root: type[Spec], located: Located, path: tuple[str | int, ...]) -> str:
    """A hint for an unknown key: the closest known key, or all of them."""
    import difflib

    if path == (GPUS,):
        return "a scenario has strategy.workers; give the number of GPUs to a command, as --gpus N or --set gpus=N"
    spec = _spec_among(*_annotation_at(root, located.data, path[:-1]))
    fields = sorted(field.alias or name for name, field in spec.model_fields.items()) if spec else []
    if path[0] == "strategy" and path[1:] in {(info.alias or name,) for name, info in Hybrid.model_fields.items()}:
        kind = located.data["strategy"].get("kind")
        if path[1] == "tables" and kind == "parameter_server":
            return "servers have tables by strategy.sparse; leave tables out, and set strategy.sparse={}"
        degrees = (*DEGREES, "workers")
        others = [degree for degree in degrees if degree in fields and path[1] in degrees]
        has = f"; {kind} has {' and '.join(others)}" if others else ""
        return f"set strategy.kind=hybrid, which has it{has}"
    close = difflib.get_close_matches(str(path[-1]), fields, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    inner = [name for name in fields if str(path[-1]) in _fields_of(_annotation_at(root, located.data, (*path[:-1], name))[0])]
    return f"did you mean '{inner[0]}.{path[-1]}'?" if inner else f"known here: {', '.join(fields)}"


def _fields_of(annotation: Any) -> set[str]:
    """Names in YAML of the fields of all Spec classes in an annotation."""
    return {field.alias or name for spec in _specs_in(annotation) for name, field in spec.model_fields.items()}


def _annotation_at(root: type[Spec], data: Any, path: Sequence[str | int]) -> tuple[Any, Any]:
    """The type annotation of the part at `path`, and the data there."""
    annotation: Any = root
    for key in path:
        spec = _spec_among(annotation, data)
        if isinstance(key, str):
            by_key = {field.alias or name: field for name, field in spec.model_fields.items()} if spec else {}
            annotation = by_key[key].annotation if key in by_key else None
            data = data.get(key) if isinstance(data, dict) else None
        else:
            data = data[key] if isinstance(data, list) and key < len(data) else None
    return annotation, data


def _spec_among(annotation: Any, data: Any) -> Any:
    """The Spec class in an annotation; if there are several, the one of the data's `kind`."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if annotation is Strategy:
        return KINDS.find(kind)
    specs = _specs_in(annotation)
    named = [spec for spec in specs if "kind" in spec.model_fields and spec.model_fields["kind"].default == kind]
    return (named or specs or [None])[0]


def _specs_in(annotation: Any) -> list[Any]:
    """All Spec classes in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [spec for argument in get_args(annotation) for spec in _specs_in(argument)]
