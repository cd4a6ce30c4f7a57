"""Overrides of a scenario's fields, as `--set` takes them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.part_reference import forget_void
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.scenario import aliases
from scaleproof.simulator.scenario.fields import field_named
from scaleproof.simulator.scenario.read import merge_fitted_cluster, resolve_part
from scaleproof.simulator.scenario.schema import Scenario

# parts that may be given by name, by path or as another one with changes
_NAMED: Final = (*((part,) for part in catalog.PARTS), ("cluster", "device"))
# By field, the field next to it that an override of it replaces.
_ALTERNATIVES: Final = {
    ("batch", "total"): "per_worker",
    ("batch", "per_worker"): "total",
    ("strategy", "microbatches"): "micro_batch_size",
    ("strategy", "micro_batch_size"): "microbatches",
}


def apply_override(located: Located, override: str, others: Collection[str]) -> str:
    """Applies one `--set key.path=value`, and returns the field. The value is YAML; paths in it are relative to the working
    folder. others: fields that overrides before it have set."""
    key, equals, text = override.partition("=")
    where = f"--set {override}"
    if not equals or not key:
        raise ScenarioError([f"{where}: expected field=value, such as strategy.workers=8"])
    try:
        # empty text is null
        value = yaml_file.parse(text, where).data if text.strip() else None
    except ScenarioError:
        raise ScenarioError([f"{where}: {text!r} is not a valid YAML value"]) from None
    path = aliases.canonical(tuple(key.split(".")))
    if path[0] not in Scenario.model_fields:
        raise ScenarioError([f"{where}: {_unknown_field(path)}"])
    # a base has already been replaced by its content, so that another base replaces the part
    path = path[:-1] if path[-1] == "base" and path[:-1] in _NAMED else path
    aliases.expand(located)
    if path[0] == "framework" and len(path) > 1 and "framework" not in located.data:
        message = "the scenario names no framework to change; set framework=NAME first, such as framework=megatron-core-0.12"
        raise ScenarioError([f"{where}: {message}"])
    if path in (("strategy",), ("strategy", "kind")):
        path = _make_room(located, path, value, others)
    parent, keys = located.data, list[Any]()
    for depth, name in enumerate(path, start=1):
        if not isinstance(parent, dict):
            keys.append(_entry(parent, path[:depth], where))
        else:
            keys.append(name)
            if depth < len(path) and name not in parent:
                parent[name] = {}
                located.places[tuple(keys)] = where
        if depth < len(path):
            parent = parent[keys[-1]]
    parent[keys[-1]] = value
    for old in located.below(tuple(keys)):
        del located.places[old]
    located.places[tuple(keys)] = where
    if path in _ALTERNATIVES:
        parent.pop(_ALTERNATIVES[path], None)
    if path[0] in catalog.PARTS:
        if len(path) > 1:
            forget_void(located.data[path[0]], path)
        resolve_part(located, path[0], Path())
    if path in (("framework",), ("cluster",)):
        merge_fitted_cluster(located)
    return ".".join(path)


def _entry(parent: Any, path: tuple[str, ...], where: str) -> int:
    """The number of the entry of a list that the last name of a path is. Raises ScenarioError for all but lists and their
    entries."""
    field, name = ".".join(path[:-1]), path[-1]
    if not isinstance(parent, list):
        raise ScenarioError([f"{where}: {field} has no fields"])
    if not name.isdecimal() or int(name) >= len(parent):
        numbers = f"0 to {len(parent) - 1}" if parent else "and it has none"
        raise ScenarioError([f"{where}: {field} is a list, whose entries are numbered, {numbers}; {name!r} is none of them"])
    return int(name)


def _make_room(located: Located, path: tuple[str, ...], value: Any, others: Collection[str]) -> tuple[str, ...]:
    """Removes what an override of the strategy or of its kind replaces, and returns the field that it sets.

    A strategy by its kind alone keeps the fields that other overrides set, in whatever order they are given. FSDP and DDP
    replace the stage of ZeRO, unless another override sets it.
    """
    strategy, training = located.data.get("strategy"), located.data.get("training")
    if aliases.implies_sharding(value) and isinstance(training, dict) and not {"training", "training.zero"} & set(others):
        training.pop("zero", None)
    if path != ("strategy",) or not isinstance(value, str):
        return path
    own = {field.split(".")[1] for field in others if field.startswith("strategy.")}
    fields = strategy if isinstance(strategy, dict) else {}
    located.data["strategy"] = {name: field for name, field in fields.items() if name in own}
    located.places["strategy",] = f"--set strategy={value}"
    return ("strategy", "kind")


def _unknown_field(path: tuple[str, ...]) -> str:
    """'a scenario has no field ...', with the fields that may be meant."""
    name = ".".join(path)
    if field := field_named(name):
        return f"a scenario has no field {name!r}; did you mean {field!r}?"
    close = catalog.nearest(path[0], sorted(Scenario.model_fields))
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(Scenario.model_fields)}"
    return f"a scenario has no field {path[0]!r}; {hint}"
