"""A study: a scenario, and the axes along which its points vary."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from scaleproof.simulator.analysis.study.axes import StudyAxis
from scaleproof.simulator.analysis.study.grid import Grid, Numbers
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import FieldError, NotFoundError, ScenarioError
from scaleproof.simulator.common.yaml_file import Located
from scaleproof.simulator.scenario.aliases import canonical_text
from scaleproof.simulator.scenario.capture_file import around_capture
from scaleproof.simulator.scenario.fields import GPUS
from scaleproof.simulator.scenario.load import build, is_capture, reference_text
from scaleproof.simulator.scenario.read import validated
from scaleproof.simulator.scenario.schema import Scenario

_KEYS: Final = ("name", "description", "scenario", "axes", "zip")
_GPUS: Final = f"{GPUS}="
MOST_POINTS: Final = 10_000_000


@dataclass(frozen=True)
class Study(Grid):
    """A scenario and its axes. base: the scenario's fields that all points have in common, with named parts resolved. path: its
    file."""

    base: Located
    path: Path
    axes: tuple[StudyAxis, ...]
    groups: tuple[tuple[int, ...], ...]

    def scenario(self, places: Sequence[int] | Numbers) -> Scenario:
        """The scenario at these places on the axes. Raises ScenarioError."""
        overrides = [texts[place] for texts, place in zip(self._overrides, places, strict=True)]
        return build(copy.deepcopy(self.base), self.path, overrides)

    @property
    def cluster(self) -> Cluster | None:
        """The cluster of all points; None if they have different ones."""
        if any(axis.field.partition(".")[0] == "cluster" for axis in self.axes):
            return None
        places = {path[1:]: place for path, place in self.base.places.items() if path[:1] == ("cluster",)}
        return validated(Cluster, Located(self.base.data["cluster"], places))

    @property
    def has_target(self) -> bool:
        """Whether points may model convergence to a target loss."""
        axes = (axis.field for axis in self.axes)
        return bool(self.base.data.get("convergence")) or any(field.partition(".")[0] == "convergence" for field in axes)

    @functools.cached_property
    def _overrides(self) -> list[list[str]]:
        return [axis.overrides() for axis in self.axes]

    def plain(self) -> dict[str, Any]:
        """Everything that the results depend on, as plain data."""
        return {
            "scenario": self.base.data,
            "axes": {axis.field: axis.plain() for axis in self.axes},
            "order": [axis.field for axis in self.axes],
            "zip": [[self.axes[axis].field for axis in group] for group in self.groups if len(group) > 1],
        }


def read(
    reference: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    more_axes: Mapping[str, Any] = MappingProxyType({}),
) -> Study:
    """Reads a study from a file, by the name of a shipped study, or from a mapping with the content of a file.

    overrides: change its scenario. more_axes: values by field, in addition to the study's axes, or in place of axes with the
    same fields; with some, the reference may also be that of a scenario. Raises NotFoundError, or ScenarioError with
    `file:line:column: field: problem; remedy`.
    """
    path, located = _located(reference, bool(more_axes))
    data = located.data
    if not isinstance(data, dict):
        raise ScenarioError([f"{located.place(())}: a study is a mapping with scenario and axes"])
    if "axes" not in data and {"model", "strategy"} & set(data):
        message = f"this is a scenario, not a study; use 'scaleproof predict {path}', or write scenario and axes into a study"
        raise ScenarioError([f"{located.place(())}: {message}"])
    for key in data:
        if key not in _KEYS:
            raise ScenarioError([f"{located.place((key,))}: {key}: unknown key; a study has {', '.join(_KEYS)}"])
    base, base_path = _base(located, path)
    counts = [override for override in overrides if override.startswith(_GPUS)]
    try:
        axes = _axes(data, {**({GPUS: [_count(counts[-1])]} if counts else {}), **more_axes})
        _apply(base, base_path, [override for override in overrides if override not in counts], axes)
        study = Study(base, base_path, axes, _groups(axes, data.get("zip", [])))
        if len(study) > MOST_POINTS:
            raise FieldError(("axes",), f"{len(study):,} points; a study has at most {MOST_POINTS:,}")
    except FieldError as error:
        raise ScenarioError([f"{located.place(error.field)}: {error}"]) from None
    return study


def _count(override: str) -> Any:
    """The value of 'gpus=64', which its axis checks."""
    text = override.removeprefix(_GPUS)
    return int(text) if text.isdecimal() else text


def _apply(base: Located, path: Path, overrides: Sequence[str], axes: Sequence[StudyAxis]) -> None:
    """Applies overrides to a study's scenario and checks it; it need not be valid on its own number of GPUs if that is an axis.

    Raises InputError, FieldError for two axes that both determine the number of workers.
    """
    gpus = next((axis.values[0] for axis in axes if axis.field == GPUS), None)
    if gpus is not None and any(axis.field == "strategy.workers" for axis in axes):
        message = "the number of GPUs, another axis, determines the workers; leave one of both out"
        raise FieldError(("axes", "strategy.workers"), message)
    try:
        build(base, path, overrides)
    except ScenarioError:
        if gpus is None:
            raise
        build(base, path, [*overrides, f"{_GPUS}{gpus}"])


def _located(reference: str | Path | Mapping[str, Any], allows_scenario: bool) -> tuple[Path, Located]:
    """The path and content of a study, or of a study of a scenario without axes. Raises NotFoundError or ScenarioError."""
    if isinstance(reference, Mapping):
        given = copy.deepcopy(dict(reference))
        is_scenario = allows_scenario and not {"scenario", "axes"} & given.keys()
        return Path("study"), Located({"scenario": given} if is_scenario else given, {(): "study"})
    name = reference_text(reference, "study")
    if allows_scenario and is_capture(name):
        return Path("study"), Located({"scenario": name}, {(): name})
    try:
        path = catalog.find_study(name)
    except NotFoundError:
        if not allows_scenario:
            raise
        return Path("study"), Located({"scenario": name}, {(): name})
    located = yaml_file.read(path)
    if allows_scenario and isinstance(located.data, dict) and not {"scenario", "axes"} & located.data.keys():
        return path, Located({"scenario": path.name}, {(): str(path)})
    return path, located


def _base(located: Located, path: Path) -> tuple[Located, Path]:
    """The study's scenario and its file."""
    given = located.data.get("scenario")
    if isinstance(given, dict):
        places = {field[1:]: place for field, place in located.places.items() if field[:1] == ("scenario",)}
        return Located(given, places), path
    if not isinstance(given, str):
        raise ScenarioError([f"{located.place(())}: scenario: missing; give a name, a path, or a scenario's fields"])
    in_folder = path.parent / given
    try:
        file = in_folder if in_folder.is_file() else catalog.find_scenario(given)
    except NotFoundError as error:
        raise ScenarioError([f"{located.place(('scenario',))}: scenario: {error}"]) from None
    # axes and overrides may name the cluster
    return (around_capture(str(file), ["cluster="]) if is_capture(given) else yaml_file.read(file)), file


def _axes(data: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[StudyAxis, ...]:
    """The study's axes and more ones. Raises FieldError."""
    given = data.get("axes", {})
    if not isinstance(given, dict) or not {**given, **more}:
        raise FieldError(("axes",), "missing; give fields and their values, such as strategy.workers: [1, 2, 4]")
    replaced = set(map(canonical_text, more))
    kept = {field: values for field, values in given.items() if canonical_text(field) not in replaced or field in more}
    names: dict[str, str] = {}
    for field in (all_values := {**kept, **more}):
        if (other := names.setdefault(canonical_text(field), field)) != field:
            raise FieldError(("axes", field), f"means the same as {other}; leave one of both out")
    return tuple(itertools.starmap(StudyAxis.of, all_values.items()))


def _groups(axes: Sequence[StudyAxis], zipped: Any) -> tuple[tuple[int, ...], ...]:
    """Groups of zipped axes, in the order of their first axes. Raises FieldError."""
    number = {axis.field: i for i, axis in enumerate(axes)}
    group_of: dict[int, tuple[int, ...]] = {}
    lists = isinstance(zipped, list) and all(isinstance(fields, list) for fields in zipped)
    if not lists:
        raise FieldError(("zip",), "expected lists of axes, such as [[strategy.workers, cluster.nodes]]")
    for i, fields in enumerate(zipped):
        if unknown := [str(field) for field in fields if not isinstance(field, str) or canonical_text(field) not in number]:
            raise FieldError(("zip", i), f"{unknown[0]} is not an axis; choose from {', '.join(number)}")
        group = tuple(sorted({number[canonical_text(field)] for field in fields}))
        if len(group) < 2 or any(axis in group_of for axis in group):
            raise FieldError(
                ("zip", i), "each list needs two or more axes, and an axis can be in one list only; change the list"
            )
        counts = {axes[axis].field: len(axes[axis].values) for axis in group}
        if len(set(counts.values())) > 1:
            numbers = ", ".join(f"{field} has {count}" for field, count in counts.items())
            raise FieldError(("zip", i), f"zipped axes need the same number of values; {numbers}")
        group_of |= dict.fromkeys(group, group)
    return tuple(dict.fromkeys(group_of.get(i, (i,)) for i in range(len(axes))))
