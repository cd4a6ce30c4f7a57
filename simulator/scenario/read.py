"""Reads YAML as clusters, devices and models: resolves parts given by name, validates."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import FieldError, ScenarioError
from scaleproof.simulator.common.part_reference import read_part, resolve, resolve_file
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.frameworks.files import resolve_framework
from scaleproof.simulator.model import AnyModel
from scaleproof.simulator.model.traced import PACKAGES
from scaleproof.simulator.scenario.problems import problem

_S = TypeVar("_S", bound=Spec)
# Changes of a cluster in a framework file that `scaleproof fit` wrote. Runs teach constants of the framework and of the network
# together, so that one file has both: the mapping names the cluster that the runs were measured on and has the fields that they
# changed. Scenarios on another cluster use the framework's constants alone.
_FITTED: Final = "cluster"


class _ModelFile(Spec):
    model: AnyModel


def load_cluster(reference: str | Path) -> Cluster:
    """Loads a cluster by the name of a shipped one, or by a path. Raises NotFoundError or ScenarioError."""
    return validated(Cluster, read_file(reference, "cluster"))


def load_device(reference: str | Path) -> Device:
    """Loads a device by the name of a shipped one, or by a path. Raises NotFoundError or ScenarioError."""
    return validated(Device, read_file(reference, "device"))


def read_file(reference: str | Path, part: str) -> Located:
    """The content of a part's own file, with the parts that it names. Raises NotFoundError or ScenarioError."""
    path = reference if isinstance(reference, Path) else catalog.find_part(part, reference)
    located = yaml_file.read(path)
    resolve_file(located, part, path.parent)
    return located


def load_model(reference: str | Path, **changes: Any) -> AnyModel:
    """Loads a model with some fields changed. reference: the name of a shipped model, a path, `hf:...` or `python:...`.

    Raises NotFoundError or ScenarioError.
    """
    located = Located({"model": str(reference)}, {(): str(reference)})
    resolve_part(located, "model", Path())
    located = located.field("model")
    for field, value in changes.items() if isinstance(located.data, dict) else ():
        located.data[field] = value
        located.places[(field,)] = f"{reference} with {field}={value}"
    return validated(_ModelFile, located.as_field("model")).model


def validated(kind: type[_S], located: Located, problems: Sequence[str] = (), wrong: Collection[str | int] = ()) -> _S:
    """The content of a file as an object of a class. Raises ScenarioError.

    problems: those that are known already, reported first. wrong: top-level fields in which they are.
    """
    try:
        result = kind.model_validate(located.data)
    except FieldError as error:
        found = [f"{located.place(error.field)}: {error}"] if error.field[0] not in wrong else []
        raise ScenarioError([*problems, *found]) from None
    except ValidationError as error:
        found = [problem(kind, located, one) for one in _details(error) if one["loc"][:1] == () or one["loc"][0] not in wrong]
        raise ScenarioError([*problems, *found]) from None
    if problems:
        raise ScenarioError(problems)
    return result


def _details(error: ValidationError) -> list[Any]:
    """Pydantic's errors, without those that follow from others: lists that are too short because of invalid items, and missing
    fields whose names are misspelled."""
    details = error.errors()
    wrong = [detail["loc"] for detail in details]
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]

    def follows(detail: Any) -> bool:
        loc = detail["loc"]
        if detail["type"] == "missing":
            others = [str(other[-1]) for other in unknown if other[:-1] == loc[:-1]]
            return bool(difflib.get_close_matches(str(loc[-1]), others, n=1))
        return detail["type"] == "too_short" and any(len(other) > len(loc) and other[: len(loc)] == loc for other in wrong)

    return [detail for detail in details if not follows(detail)]


def resolve_parts(located: Located, folder: Path) -> tuple[list[str], set[str]]:
    """Replaces all parts of a scenario given by name or path by the content of their files.

    Returns the problems, and the fields in which they are.
    """
    problems: list[str] = []
    wrong: set[str] = set()
    for part in catalog.PARTS:
        try:
            resolve_part(located, part, folder)
        except ScenarioError as error:
            problems += error.problems
            wrong.add(part)
    return problems, wrong


def resolve_part(located: Located, part: str, folder: Path) -> None:
    """Replaces a part of a scenario that is given by its name, path or base. Raises ScenarioError."""
    if part == "framework":
        resolve_framework(located, folder)
    else:
        resolve(located, (part,), folder, _read)


def _read(part: str, reference: str, folder: Path) -> tuple[Located, Path]:
    """Reads a part. A model may also be `hf:path/config.json`, `python:module:function`, `timm:NAME` or `torchvision:NAME`.
    Raises NotFoundError or ScenarioError."""
    if part == "model" and reference.startswith("hf:"):
        from scaleproof.simulator.model import huggingface

        return Located(huggingface.read(folder / reference.removeprefix("hf:"))), folder
    if part == "model" and reference.startswith("python:"):
        return Located({"kind": "traced", "source": reference, "name": reference.rpartition(":")[2]}), folder
    if part == "model" and reference.startswith(PACKAGES):
        return Located({"kind": "recorded", "source": reference, "name": reference.partition(":")[2]}), folder
    return read_part(part, reference, folder)


def merge_fitted_cluster(located: Located) -> None:
    """Applies the cluster changes of a scenario's framework to its cluster, if they are of a cluster of that name.

    Raises ScenarioError for changes that are no mapping with a name.
    """
    framework, cluster = located.data.get("framework"), located.data.get(_FITTED)
    if not isinstance(framework, dict) or _FITTED not in framework:
        return
    changes = framework[_FITTED]
    if not isinstance(changes, dict) or not isinstance(changes.get("name"), str):
        message = "expected a mapping with the name of a cluster, as `fit` writes it"
        raise located.refused(("framework", _FITTED), message)
    if isinstance(cluster, dict) and cluster.get("name") == changes["name"]:
        located.data[_FITTED] = yaml_file.merged(cluster, changes)


def remove_fitted_cluster(located: Located) -> None:
    """Removes the changes from the framework, which has no field for them."""
    framework = located.data.get("framework")
    if isinstance(framework, dict) and _FITTED in framework:
        located.data["framework"] = {key: value for key, value in framework.items() if key != _FITTED}
