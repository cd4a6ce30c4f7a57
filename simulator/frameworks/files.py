"""Framework files: found by name or path, with the files that they are based on merged in."""

from __future__ import annotations

import functools
from pathlib import Path

from pydantic import ValidationError

from scaleproof.simulator.cluster.device.kernels.attention import BEST_ATTENTION, USUAL_ATTENTION
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.part_reference import resolve
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.frameworks.framework import Framework


def resolve_framework(located: Located, folder: Path) -> None:
    """Replaces a framework that is given by its name, path or base; `framework: null` leaves it to the default. Raises
    ScenarioError."""
    if not isinstance(located.data, dict) or "framework" not in located.data:
        return
    value = located.data["framework"]
    if value is None:
        del located.data["framework"]
        return
    if isinstance(value, str) and catalog.is_unknown("framework", value):
        # the prior over software stands for what no shipped framework is
        del located.data["framework"]
        located.data["software"] = value
        return
    if isinstance(value, dict) and not {"base", "name"} & set(value):
        raise located.refused(("framework",), "has neither base nor name; give base, such as {base: pytorch-ddp}, or name")
    resolve(located, ("framework",), folder)


@functools.cache
def shipped(name: str) -> Framework:
    """The framework of that name in scenarios/frameworks/. Raises NotFoundError, and ScenarioError for a file that is wrong."""
    path = catalog.find_part("framework", name)
    found = Located({"framework": str(path)}, {(): str(path)})
    resolve_framework(found, Path())
    try:
        return Framework.model_validate(found.data["framework"])
    except ValidationError as error:
        first = error.errors()[0]
        raise ScenarioError([f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"]) from None


@functools.cache
def names() -> tuple[str, ...]:
    """Names of the frameworks that ship, sorted."""
    return tuple(catalog.names("frameworks"))


def with_features(features: frozenset[str]) -> list[str]:
    """Names of the shipped frameworks that support all `features`, sorted."""
    return [name for name in names() if features <= set(shipped(name).supports)]


@functools.cache
def attention_versions() -> tuple[str, ...]:
    """Implementations of flash attention that shipped frameworks run, sorted."""
    named = {version for name in names() for version in shipped(name).attention.values()}
    return tuple(sorted((named | {USUAL_ATTENTION}) - {BEST_ATTENTION, "none"}))


def renamed(framework: Framework) -> Framework:
    """The framework, under a name that says so where it is a shipped one with changes."""
    if framework.name not in names() or equal_to_shipped(framework):
        return framework
    return framework.model_copy(update={"name": f"{framework.name}, changed"})


def equal_to_shipped(framework: Framework) -> bool:
    """Whether a framework is exactly the one that ships under its name."""
    return framework.name in names() and shipped(framework.name) == framework
