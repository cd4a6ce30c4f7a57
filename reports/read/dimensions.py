"""The dimensions of a study, and the names of their values: those that the study gives, else short ones ("H100", "TP4")."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.reports.read.study_folder import StudyFolder
from scaleproof.reports.text import spaced
from scaleproof.simulator.analysis.study.axes import StudyAxis
from scaleproof.simulator.analysis.study.grid import Numbers
from scaleproof.simulator.analysis.study.study import Study
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_number
from scaleproof.simulator.scenario.fields import GPUS

if TYPE_CHECKING:
    import pandas as pd

_QUANTITY: Final = re.compile(r"([-+]?[\d_.]+(?:[eE][-+]?\d+)?)\s*(\D*)")
_BETWEEN: Final = re.compile(r"[-_ ,/]+")
# numeric fields that are settings, each with the names of its values or a prefix of its number
_ZERO: Final = ("DP", "ZeRO-1", "ZeRO-2", "ZeRO-3 (FSDP)")
_DEGREES: Final = {"tensor": "TP", "stages": "PP", "context": "CP", "expert": "EP", "chunks": "VPP"}
# text fields whose values explain themselves
_PLAIN: Final = ("strategy", "cluster", "model", "framework", "device", "precision", "schedule", "name")
# fields by which one alternative is trained on several numbers of GPUs
_SIZES: Final = ("workers", "nodes", "microbatches")
_MOST_CLUSTERS: Final = 16


@dataclass(frozen=True)
class Dimension:
    """An axis, or several zipped axes. codes: index of each point's value; words, numbers: texts and SI numbers of the
    values, numbers empty if the values are settings rather than quantities."""

    name: str
    codes: Numbers
    words: tuple[str, ...]
    numbers: tuple[float, ...]

    @property
    def of_points(self) -> list[str]:
        """Words of the value of each point."""
        return [self.words[code] for code in self.codes]


def dimensions(found: StudyFolder) -> list[Dimension]:
    """The dimensions by the study, or by the table's columns if the study cannot be read."""
    study, points = found.study, found.points
    if study is None:
        return [_column(points[name], short(name)) for name in found.axes]
    places = study.places(points["point"].to_numpy())
    return [_group(study, [study.axes[i] for i in group], places[:, group[0]]) for group in study.groups]


def _group(study: Study, axes: Sequence[StudyAxis], codes: Numbers) -> Dimension:
    """The dimension of zipped axes, named by as few of them as distinguish its values."""
    if named := [axis for axis in axes if axis.named]:
        words = [", ".join(dict.fromkeys(map(str, row))) for row in zip(*(axis.table_values for axis in named), strict=True)]
        words = _without_sizes(axes, words)
        return _merged(Dimension(" and ".join(short(axis.field) for axis in named), codes, tuple(words), ()))
    settings = [axis for axis in axes if not _numbers(axis)]
    shown = _distinguishing(study, settings or axes)
    names = list(zip(*(_names(study, axis) for axis in shown), strict=True))
    numbers = () if settings else _numbers(shown[0])
    return Dimension(" and ".join(short(axis.field) for axis in shown), codes, tuple(map(", ".join, names)), numbers)


def _distinguishing(study: Study, axes: Sequence[StudyAxis]) -> Sequence[StudyAxis]:
    """The first axis that has different names for all values, else all axes."""
    return next(([axis] for axis in axes if len(set(_names(study, axis))) == len(axis.values)), axes)


def _without_sizes(axes: Sequence[StudyAxis], words: list[str]) -> list[str]:
    """'tp4' for both 'tp4-dp16' and 'tp4-dp64', where these differ in the number of workers only."""
    kinds: dict[str, list[int]] = {}
    for i in range(len(words)):
        kind = {axis.field: _without(axis.values[i]) for axis in axes if axis.field.rpartition(".")[2] not in _SIZES}
        kinds.setdefault(str(kind), []).append(i)
    if any(len({_size(axes, i) for i in same}) < len(same) for same in kinds.values()):
        return words
    stems = {i: _stem([words[j] for j in same]) for same in kinds.values() for i in same}
    # a stem that is missing, or not of one alternative only, is no name
    if len({stems[same[0]] for same in kinds.values()}) < len(kinds) or not all(stems.values()):
        return words
    return [stems[i] for i in range(len(words))]


def _without(value: Any) -> Any:
    return {key: one for key, one in value.items() if key not in _SIZES} if isinstance(value, Mapping) else value


def _size(axes: Sequence[StudyAxis], i: int) -> str:
    """What determines the number of GPUs in a value."""
    fields = [axis for axis in axes if axis.field.endswith((".workers", ".nodes"))]
    values = [axis.values[i] for axis in axes]
    return str([axis.values[i] for axis in fields] + [value.get("workers") for value in values if isinstance(value, Mapping)])


def _stem(names: Sequence[str]) -> str:
    """The parts that all names have: 'tp4' of 'tp4-dp16' and 'tp4-dp64'."""
    if len(names) == 1:
        return names[0]
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*(f"{name}-" for name in names), strict=False))
    shared = "".join(letters[0] for letters in same)
    # the last part may be cut
    return shared[: max((match.start() for match in _BETWEEN.finditer(shared)), default=0)]


def _merged(one: Dimension) -> Dimension:
    """A dimension whose equal words have one code."""
    words = tuple(dict.fromkeys(one.words))
    codes = np.array([words.index(word) for word in one.words], dtype=np.int64)
    return replace(one, words=words, codes=codes[one.codes])


def _numbers(axis: StudyAxis) -> tuple[float, ...]:
    """The values in SI; empty if they are settings."""
    field = axis.field.rpartition(".")[2]
    if field in ("zero", *_DEGREES) or not all(_is_number(value) for value in axis.table_values):
        return ()
    return tuple(map(float, axis.table_values))


def _names(study: Study, axis: StudyAxis) -> list[str]:
    """Names of the values of an axis."""
    field = axis.field.rpartition(".")[2]
    if axis.field == "training.zero" and all(value in range(len(_ZERO)) for value in axis.values):
        return [_ZERO[value] for value in axis.values]
    if field in _DEGREES:
        return [f"{_DEGREES[field]}{_value_words(value)}" for value in axis.values]
    if axis.field in ("cluster", "cluster.device"):
        return _cluster_names(study, axis)
    if _numbers(axis):
        return [_value_words(value) for value in axis.values]
    return [_setting_words(axis.field, value) for value in axis.values]


def _cluster_names(study: Study, axis: StudyAxis) -> list[str]:
    """Devices such as 'H100', if these differ; else names of clusters."""
    words = [_setting_words(axis.field, value) for value in axis.values]
    if len(words) > _MOST_CLUSTERS:
        return words
    places = [[i if one is axis else 0 for one in study.axes] for i in range(len(words))]
    try:
        clusters = [study.scenario(place).cluster for place in places]
    except ScaleproofError:
        return words
    devices = [one.device.name.partition("-")[0].upper() for one in clusters]
    return devices if len(set(devices)) == len(devices) else words


def _setting_words(field: str, value: Any) -> str:
    """'recompute full', 'no overlap'; a value alone where that explains itself."""
    name = spaced(field.rpartition(".")[2])
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, Mapping):
        return _mapping_words(value)
    return _value_words(value) if name in _PLAIN else f"{name} {_value_words(value)}"


def _mapping_words(value: Mapping[Any, Any]) -> str:
    """'hybrid TP4 PP2', of a strategy without a name; the name of a model or a cluster."""
    if "name" in value:
        return str(value["name"])
    degrees = [f"{prefix}{value[field]}" for field, prefix in _DEGREES.items() if value.get(field, 1) != 1]
    others = [f"{spaced(str(key))} {_value_words(one)}" for key, one in value.items() if key not in (*_DEGREES, "kind")]
    return " ".join([spaced(str(value.get("kind", ""))), *degrees, *others]).strip()


def _column(values: pd.Series[Any], name: str) -> Dimension:
    import pandas as pd

    codes, found = pd.factorize(values, use_na_sentinel=False)
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    values_list = found.tolist()
    words = tuple(format_number(value) if numeric else str(value) for value in values_list)
    return Dimension(name, codes.astype(np.int64), words, tuple(map(float, values_list)) if numeric else ())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_words(value: Any) -> str:
    """'31.6 Gbit/s' from '31.6228 Gbit/s'."""
    if isinstance(value, str) and (match := _QUANTITY.fullmatch(value.strip())):
        return f"{_number_words(float(match[1]))} {match[2]}".strip()
    return _number_words(float(value)) if _is_number(value) else str(value)


def _number_words(value: float) -> str:
    return format_number(value) if value == round(value) else f"{value:.3g}"


def short(field: str) -> str:
    """'network bandwidth' from 'cluster.network.bandwidth'."""
    if field == GPUS:
        return "GPUs"
    parts = field.split(".")
    return " ".join(parts[1:] if len(parts) > 1 else parts).replace("_", " ")
