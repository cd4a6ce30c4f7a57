"""Files of clusters: reads the description that is measured, writes what was measured, and updates numbers of a file in place.

All writers of cluster files use this module. A file is written under another name first and then renamed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_file
from scaleproof.simulator.common.part_reference import resolve_file
from scaleproof.simulator.scenario.dump import written
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.probe import points as tables
from scaleproof.validator.probe.points import Point

MEASURED: Final = "Measured by `scaleproof calibrate`."
_EDITABLE: Final = "Every number may be edited; `scaleproof predict` uses what stands here."
_COMMENTS: Final = {
    "node": "one machine: what its ranks share, and the link between them",
    "network": "links between nodes: payload rate of large messages, latency of small ones",
    "device": "the device of a rank",
    "collectives": "each takes latency + size / bandwidth, with the size of the whole buffer",
    "uncertainty": "90 % intervals; shares are of all times of that kind; a prior applies to what is not listed",
    "provenance": "where the numbers come from",
}
_TABLE: Final = "; the measured times are in the table next to this file"
# Four digits are written, so numbers that are read again differ by less than this.
_ROUNDED: Final = 1e-3
# Unit of a number that the file leaves to its base or to a default, by its key or a key above it; otherwise microseconds.
_UNITS: Final = {"peak": (1e9, "GFLOP/s"), "memory_bandwidth": (1e9, "GB/s"), "bandwidth": (1e9, "GB/s")}
# Numbers without a unit, by their key or the one above.
_RATIOS: Final = frozenset({"host_slowdown", "generation_slowdown", "adjust"})
_Path = tuple[str | int, ...]


class Base(NamedTuple):
    """A cluster file into which measured numbers are inserted: its data, and the cluster that it describes."""

    name: str
    data: dict[str, Any]
    cluster: Cluster


def read_base(reference: str, with_device: bool = False) -> Base:
    """The cluster with the name of a shipped one, or of a file. Raises NotFoundError or ScenarioError.

    with_device: write out its device, even if that has the name of a shipped one.
    """
    path = catalog.find_part("cluster", reference)
    cluster = load_cluster(path)
    located = yaml_file.read(path)
    if with_device or str(located.data.get("device")) not in catalog.names("devices"):
        # paths in it are relative to its own folder
        resolve_file(located, "cluster", path.parent)
    return Base(cluster.name or path.stem, located.data, cluster)


def cluster_of(data: Mapping[str, Any], name: str) -> Cluster:
    """The cluster that the data of a file describe. name: of the file, for messages. Raises ScaleproofError if invalid."""
    located = yaml_file.parse(_text(data), name)
    resolve_file(located, "cluster", Path(name).parent)
    return Cluster.model_validate(located.data)


def description(reference: str) -> dict[str, Any]:
    """Data of a cluster before measuring, with its device; see `read_base`."""
    base = read_base(reference, with_device=True)
    return {"name": base.name} | base.data


def write(cluster: Mapping[str, Any], path: Path, points: Iterable[Point] = (), source: str = MEASURED) -> None:
    """Writes a cluster as readable YAML, and its points to a table next to it. Raises InputError if a file cannot be written.

    source: first line, which says where the numbers come from.
    """
    rows = list(points)
    has_table = bool(rows) or points_path(path).exists()
    parts = [f"# {source} {_EDITABLE}\n"]
    for name, value in cluster.items():
        table = _TABLE if name == "provenance" and has_table else ""
        parts.append(f"\n# {_COMMENTS[name]}{table}\n" if name in _COMMENTS else "")
        parts.append(_text({name: value}))
    try:
        if rows:
            tables.write(rows, points_path(path))
        write_atomically(path, "".join(parts).encode())
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}; give a path that can be written") from None


def points_path(path: Path) -> Path:
    """Path of the table of points of a cluster file."""
    return path.with_suffix(".points.parquet")


def with_earlier(reference: str, rows: Sequence[Point]) -> list[Point]:
    """Points in the table of the cluster that `reference` names, without those measured again, followed by `rows`."""
    table = points_path(catalog.find_part("cluster", reference))
    earlier = tables.read(table) if rows and table.exists() else []
    again = {(row.probe, row.what, row.group, row.size, row.ranks) for row in rows}
    return [one for one in earlier if (one.probe, one.what, one.group, one.size, one.ranks) not in again] + list(rows)


def update(path: Path, before: Cluster, after: Cluster, holder: str) -> None:
    """Changes the cluster file at `path`, which describes `before`, so that it describes `after`; see `rewritten`.

    holder: the command that writes, for the error message of other processes.
    """
    with locked_file(path, holder, PATIENCE_S):
        write_atomically(path, rewritten(path, before, after).encode())


def _text(data: Mapping[str, Any]) -> str:
    return written(data, default_flow_style=False)


def rewritten(path: Path, before: Cluster, after: Cluster) -> str:
    """Text of the cluster file at `path`, which describes `before`, changed so that it describes `after`.

    Raises InputError if the file is written in a form that cannot be updated.
    """
    text = path.read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    changed = set()
    for place, value, ratio in _differences(_plain(before), _plain(after)):
        _set(data, place, value, ratio, path)
        changed.add(str(place[0]))
    for section in ("uncertainty", "provenance"):
        plain = _plain(after)[section]
        if plain != _plain(before)[section]:
            data[section] = {name: _brief(value) for name, value in plain.items()}
            changed.add(section)
    for section in sorted(changed):
        text = _replaced(text, section, data[section])
    _check(text, path, after)
    return text


def _brief(value: Any) -> Any:
    """An interval without its empty fields; other values unchanged."""
    return {name: inner for name, inner in value.items() if inner} if isinstance(value, dict) else value


def _plain(cluster: Cluster) -> dict[str, Any]:
    return cluster.model_dump(by_alias=True, mode="json")


def _differences(before: Any, after: Any, place: _Path = ()) -> Iterator[tuple[_Path, float, float]]:
    """Place of each number that differs, its new value, and the ratio of new to old value."""
    if isinstance(before, Mapping):
        for key in before:
            if (*place, key) not in (("uncertainty",), ("provenance",)):
                yield from _differences(before[key], after[key], (*place, key))
    elif isinstance(before, list):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from _differences(*pair, (*place, number))
    elif isinstance(before, float) and before != after:
        yield place, after, after / before


def _set(data: Any, place: _Path, value: float, ratio: float, path: Path) -> None:
    """Writes a number into the data, in the unit that it has there."""
    where = data
    for depth, key in enumerate(place[:-1]):
        if isinstance(where, dict) and isinstance(where.get(key), str):
            # replace a device name by a mapping that overrides the named device
            where[key] = {"base": where[key]}
        if isinstance(where, dict) and key not in where and isinstance(key, str) and not isinstance(place[depth + 1], int):
            where[key] = {}
        try:
            where = where[key]
        except (KeyError, IndexError, TypeError):
            raise InputError(f"{path}: {_dotted(place)} is not in this file; write the whole device into it") from None
    old = where.get(place[-1]) if isinstance(where, dict) else where[place[-1]]
    if isinstance(old, str) and (number := _number(old)) is not None:
        where[place[-1]] = f"{number * ratio:.4g} {old.split(maxsplit=1)[1]}"
        return
    if not _RATIOS.isdisjoint(place[-2:]):
        where[place[-1]] = float(f"{value:.4g}")
        return
    size, unit = next((_UNITS[key] for key in place[:0:-1] if isinstance(key, str) and key in _UNITS), (1e-6, "us"))
    where[place[-1]] = f"{value / size:.4g} {unit}"


def _number(text: str) -> float | None:
    """The number in a text such as '5.5 GB/s'; None if number and unit are not separate."""
    try:
        return float(text.split(maxsplit=1)[0]) if len(text.split(maxsplit=1)) == 2 else None
    except ValueError:
        return None


def _dotted(place: _Path) -> str:
    return ".".join(map(str, place))


def _replaced(text: str, section: str, data: Any) -> str:
    """The text with one of its sections rewritten, or added at its end."""
    root = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    if root.flow_style:
        whole = yaml.safe_load(text) | {section: data}
        return _text(whole)
    block = _text({section: data}).rstrip("\n")
    for key, value in root.value:
        if key.value == section:
            end = len(text[: _end(value)].rstrip())
            return text[: key.start_mark.index] + block + text[end:]
    return f"{text.rstrip()}\n{block}\n"


def _end(node: yaml.Node) -> int:
    """End of a value's text; the end mark of a block also spans comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _check(text: str, path: Path, after: Cluster) -> None:
    """Raises InputError if the text does not describe the cluster."""
    try:
        located = yaml_file.parse(text, str(path))
        resolve_file(located, "cluster", path.parent)
        parsed = Cluster.model_validate(located.data)
    except (ScaleproofError, ValueError) as error:
        raise InputError(f"{path}: cannot be updated in its present form: {str(error).splitlines()[0]}") from None
    for place, value, ratio in _differences(_plain(after), _plain(parsed)):
        if not math.isclose(ratio, 1, rel_tol=_ROUNDED):
            message = f"{_dotted(place)} would be {value:.4g}; give it explicitly in the file"
            raise InputError(f"{path}: cannot be updated in its present form: {message}")
