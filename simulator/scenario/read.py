"""Reads YAML as scenarios, clusters, devices and models: resolves parts given by name, applies overrides, validates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.device_reference import forget_usable_memory, resolve_device
from scaleproof.simulator.common.errors import FieldError, NotFoundError, ScenarioError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.frameworks.library import resolve_framework
from scaleproof.simulator.model import AnyModel
from scaleproof.simulator.scenario import aliases
from scaleproof.simulator.scenario.problems import problem
from scaleproof.simulator.scenario.schema import Scenario

_S = TypeVar("_S", bound=Spec)


class _ModelFile(Spec):
    model: AnyModel


def build(located: Located, path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Builds a scenario from YAML that was read from `path`: resolves parts given by name, applies overrides, validates.

    Raises ScenarioError.
    """
    if not isinstance(located.data, dict):
        raise ScenarioError([f"{located.place(())}: a scenario must be a mapping with model, cluster, strategy and batch"])
    _resolve_parts(located, path.parent)
    for override in overrides:
        _apply(located, override)
    _expand_shorthand(located)
    located.data.setdefault("name", path.stem)
    return _validated(Scenario, located)


def load_cluster(path: Path) -> Cluster:
    """Loads a cluster file. Raises NotFoundError or ScenarioError."""
    located = yaml_file.read(path)
    resolve_device(located, (), path.parent)
    return _validated(Cluster, located)


def load_device(path: Path) -> Device:
    """Loads a device file. Raises NotFoundError or ScenarioError."""
    return _validated(Device, yaml_file.read(path))


def load_model(reference: str | Path, **changes: Any) -> AnyModel:
    """Loads a model with some fields changed. reference: the name of a shipped model, a path, `hf:...` or `python:...`.

    Raises NotFoundError or ScenarioError.
    """
    located = _read_part("model", str(reference), Path())
    for field, value in changes.items() if isinstance(located.data, dict) else ():
        located.data[field] = value
        located.places[(field,)] = f"{reference} with {field}={value}"
    return _validated(_ModelFile, Located({"model": located.data}, {("model", *k): v for k, v in located.places.items()})).model


def _validated(kind: type[_S], located: Located) -> _S:
    try:
        return kind.model_validate(located.data)
    except FieldError as error:
        raise ScenarioError([f"{located.place(error.field)}: {error}"]) from None
    except ValidationError as error:
        raise ScenarioError([problem(kind, located, detail) for detail in _details(error)]) from None


def _details(error: ValidationError) -> list[Any]:
    """Pydantic's errors, without those for lists that are too short because of invalid items."""
    details = error.errors()
    wrong = [detail["loc"] for detail in details]
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(len(loc) > len(detail["loc"]) and loc[: len(detail["loc"])] == detail["loc"] for loc in wrong)
    ]


def _resolve_parts(located: Located, folder: Path) -> None:
    for part in catalog.PARTS:
        _resolve(located, part, folder)
    resolve_device(located, ("cluster",), folder)
    resolve_framework(located, folder)


def _resolve(located: Located, part: str, folder: Path) -> None:
    """Replaces a model or cluster given by name or path by the content of its file."""
    reference = located.data.get(part)
    if not isinstance(reference, str):
        return
    try:
        content = _read_part(part, reference, folder)
    except NotFoundError as error:
        raise ScenarioError([f"{located.place((part,))}: {part}: {error}"]) from None
    located.graft((part,), content)


def _read_part(part: str, reference: str, folder: Path) -> Located:
    """Reads the file of a model or cluster. A model may also be `hf:path/config.json` or `python:module:function`.

    Raises NotFoundError or ScenarioError.
    """
    if part == "model" and reference.startswith("hf:"):
        from scaleproof.simulator.model import huggingface

        return Located(huggingface.read(folder / reference.removeprefix("hf:")))
    if part == "model" and reference.startswith("python:"):
        return Located({"kind": "traced", "source": reference, "name": reference.rpartition(":")[2]})
    path = catalog.find_part(part, reference, folder)
    content = yaml_file.read(path)
    if isinstance(content.data, dict):
        content.data.setdefault("name", path.stem)
    if part == "cluster":
        resolve_device(content, (), path.parent)
    return content


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
        _resolve(located, str(path[0]), Path())
    resolve_device(located, ("cluster",), Path())
    resolve_framework(located, Path())


def _expand_shorthand(located: Located) -> None:
    """`batch: 256` means `{total: 256}`, `strategy: data_parallel` means `{kind: data_parallel}`."""
    for key, inner, kind in (("batch", "total", int), ("strategy", "kind", str)):
        value = located.data.get(key)
        if isinstance(value, kind) and not isinstance(value, bool):
            located.data[key] = {inner: value}
    aliases.expand(located)
