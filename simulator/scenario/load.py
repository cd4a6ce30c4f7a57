"""Loads a scenario from a file, by the name of a shipped one, or from a row of a table of published measurements, and applies
`--set` overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.device_reference import forget_usable_memory, resolve_device
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.frameworks.library import resolve_framework
from scaleproof.simulator.scenario import aliases
from scaleproof.simulator.scenario.published.tables import PUBLISHED
from scaleproof.simulator.scenario.read import resolve_part, resolve_parts, validated
from scaleproof.simulator.scenario.schema import Scenario


def load(reference: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Loads a scenario with `key.path=value` overrides. reference: a path, the name of a shipped scenario, or
    `published:ROW-ID`.

    Raises NotFoundError, or ScenarioError with every problem as `file:line:column: field: what; what to do`.
    """
    if str(reference).startswith(PUBLISHED):
        from scaleproof.simulator.scenario.published.yaml_text import text_of

        return build(yaml_file.parse(text_of(str(reference)), str(reference)), Path(str(reference)), overrides)
    path = catalog.find_scenario(str(reference))
    located = yaml_file.read(path)
    return build(located, path, overrides)


def build(located: Located, path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Builds a scenario from YAML that was read from `path`: resolves parts given by name, applies overrides, validates.

    Raises ScenarioError.
    """
    if not isinstance(located.data, dict):
        raise ScenarioError([f"{located.place(())}: a scenario must be a mapping with model, cluster, strategy and batch"])
    resolve_parts(located, path.parent)
    for override in overrides:
        _apply(located, override)
    _expand_shorthand(located)
    located.data.setdefault("name", path.stem)
    return validated(Scenario, located)


def _apply(located: Located, override: str) -> None:
    """Applies one `--set key.path=value`. The value is YAML; paths in it are relative to the working folder."""
    key, equals, text = override.partition("=")
    where = f"--set {override}"
    if not equals or not key:
        raise ScenarioError([f"{where}: expected field=value, such as strategy.workers=8"])
    try:
        # nothing at all is none
        value = yaml_file.parse(text, where).data if text.strip() else None
    except ScenarioError:
        raise ScenarioError([f"{where}: {text!r} is not a valid YAML value"]) from None
    path = aliases.canonical(tuple(key.split(".")))
    # the base has already been replaced by its content, so that another base replaces the device
    path = path[:-1] if path == ("cluster", "device", "base") else path
    _expand_shorthand(located)
    if path[0] == "framework" and len(path) > 1 and "framework" not in located.data:
        message = "the scenario names no framework to change; set framework=NAME first, such as framework=megatron-core-0.12"
        raise ScenarioError([f"{where}: {message}"])
    parent = located.data
    for name in path[:-1]:
        parent = parent.setdefault(name, {}) if isinstance(parent, dict) else None
    if not isinstance(parent, dict):
        raise ScenarioError([f"{where}: {'.'.join(path[:-1])} has no fields"])
    parent[path[-1]] = value
    for old in [p for p in located.places if p[: len(path)] == path]:
        del located.places[old]
    located.places[path] = where
    if path == ("cluster", "device", "memory"):
        forget_usable_memory(parent)
    if path == ("batch", "total"):
        parent.pop("per_worker", None)
    if path == ("batch", "per_worker"):
        parent.pop("total", None)
    if len(path) == 1 and path[0] in catalog.PARTS:
        resolve_part(located, str(path[0]), Path())
    resolve_device(located, ("cluster",), Path())
    resolve_framework(located, Path())


def _expand_shorthand(located: Located) -> None:
    """`batch: 256` means `{total: 256}`, `strategy: data_parallel` means `{kind: data_parallel}`."""
    for key, inner, kind in (("batch", "total", int), ("strategy", "kind", str)):
        value = located.data.get(key)
        if isinstance(value, kind) and not isinstance(value, bool):
            located.data[key] = {inner: value}
    aliases.expand(located)
