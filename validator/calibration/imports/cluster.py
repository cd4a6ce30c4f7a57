"""From what was found to a cluster file: measured collectives and links in place of nominal ones, with their intervals."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from scaleproof.simulator.cluster.collectives.algorithms import Op, bus_factor
from scaleproof.simulator.cluster.quantities import format_share
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_file
from scaleproof.simulator.common.units import format_Bps, format_bytes, format_time_s
from scaleproof.simulator.run.run import write_aside
from scaleproof.simulator.scenario.device_reference import resolve_device
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.cluster_file.section import rate_text, seconds_text
from scaleproof.validator.calibration.fit.curve_fitting.lines import FASTEST_S
from scaleproof.validator.calibration.imports.found import ImportResult, Machines
from scaleproof.validator.calibration.imports.gpus import nominal_Bps
from scaleproof.validator.calibration.imports.names import shipped_device
from scaleproof.validator.calibration.imports.reading import ImportNotes

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster
    from scaleproof.validator.calibration.fit.curve_fitting.curves import Fitted
    from scaleproof.validator.calibration.fit.curve_fitting.shapes import Segment
    from scaleproof.validator.probe.points import Point

# Round assumptions of the clusters that ship, where nothing tells.
INSIDE_LATENCY: Final = "5 us"
_NETWORK_LATENCY: Final = "8 us"
# Each rank's link carries their bus bandwidth, around a ring; and between nodes, each node's cards together do.
_RINGS: Final[tuple[Op, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_FEW: Final = 3
_NEARLY: Final = 1.15


class Base(NamedTuple):
    """A cluster file that the found numbers go into: as it is written, and as it is understood."""

    name: str
    data: dict[str, Any]
    cluster: Cluster


@dataclass
class FittedCollective:
    """A collective of one group, fitted. seconds: all times by size. pieces: one for each protocol that shows. error: median of
    |fitted / measured − 1|."""

    op: Op
    ranks: int
    nodes: int
    sizes: list[float]
    seconds: list[tuple[float, ...]]
    pieces: tuple[Segment, ...]
    fitted: Fitted | None
    error: float = field(init=False)

    def __post_init__(self) -> None:
        self.error = statistics.median(abs(ratio - 1) for ratio in self.ratios())

    @property
    def latency_s(self) -> float:
        """Of small ones."""
        return self.pieces[0].latency_s

    @property
    def bandwidth_Bps(self) -> float:
        """Of large ones."""
        return 1 / self.pieces[-1].seconds_per_byte

    def at(self, size_bytes: float) -> float:
        """Seconds by the fit."""
        from scaleproof.validator.calibration.fit.curve_fitting.pieces import holding

        piece = holding(self.pieces, size_bytes)
        return piece.latency_s + size_bytes * piece.seconds_per_byte

    def ratios(self) -> list[float]:
        """Each measured time over the fitted one."""
        return [one / self.at(size) for size, times in zip(self.sizes, self.seconds, strict=True) for one in times]

    def entries(self) -> Iterator[dict[str, Any]]:
        """As cluster files have it."""
        group = {"op": self.op, "ranks": self.ranks, "nodes": self.nodes}
        for piece in self.pieces:
            begins = {"from": f"{piece.from_bytes:.0f} B"} if piece.from_bytes else {}
            rate_Bps = 1 / max(piece.seconds_per_byte, FASTEST_S)
            yield {**group, **begins, "latency": seconds_text(piece.latency_s), "bandwidth": rate_text(rate_Bps)}


def read_base(reference: str) -> Base:
    """The cluster of a name that ships, or of a file. Raises NotFoundError, ScenarioError."""
    path = catalog.find_part("cluster", reference, Path())
    cluster = load_cluster(path)
    located = yaml_file.read(path)
    if str(located.data.get("device")) not in catalog.names("devices"):
        # paths in it start at its own folder
        resolve_device(located, (), path.parent)
    return Base(cluster.name or path.stem, located.data, cluster)


def measured_collectives(points: Sequence[Point], notes: ImportNotes) -> list[FittedCollective]:
    """Each collective of each group, fitted by latency and bandwidth; what cannot be is noted."""
    groups: dict[tuple[Op, int, int], list[Point]] = {}
    for point in points:
        if point.probe == "collective" and point.size > 0:
            groups.setdefault((point.what, len(point.ranks), int(point.numbers["nodes"])), []).append(point)  # type: ignore[arg-type]
    found = [_measured(op, ranks, nodes, mine, notes) for (op, ranks, nodes), mine in groups.items()]
    return [one for one in found if one is not None]


def _measured(op: Op, ranks: int, nodes: int, points: list[Point], notes: ImportNotes) -> FittedCollective | None:
    from scaleproof.validator.calibration.fit import curve_fitting
    from scaleproof.validator.calibration.fit.curve_fitting.choice import ALPHA_BETA, PIECEWISE
    from scaleproof.validator.calibration.fit.curve_fitting.curves import fit_curve
    from scaleproof.validator.calibration.fit.curve_fitting.pieces import pieces
    from scaleproof.validator.calibration.fit.curve_fitting.shapes import Segment

    points = sorted(points, key=lambda point: point.size)
    sizes, seconds = [point.size for point in points], [point.seconds for point in points]
    group = f"{op} over {ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}"
    fitted = None
    if len(sizes) < _FEW:
        found: tuple[Segment, ...] = (
            Segment(0.0, *curve_fitting.line(sizes, [statistics.median(times) for times in seconds])),
        )
        notes.add(f"{group}: {len(sizes)} sizes, too few for an interval; give {_FEW} or more", "groups of few sizes")
    else:
        chosen = telling([(size, statistics.median(times)) for size, times in zip(sizes, seconds, strict=True)])
        own = [sizes[i] for i in chosen]
        fitted = fit_curve(own, [seconds[i] for i in chosen], (ALPHA_BETA, PIECEWISE), what=group)
        found = pieces(fitted, own)
        for outlier in fitted.outliers:
            notes.add(
                f"{group}, {format_bytes(sizes[chosen[outlier.index]])}: {outlier.why}; not fitted to", "sizes not fitted to"
            )
    # where latency is nearly all of the largest, what a byte takes is noise
    if found[-1].seconds_per_byte * sizes[-1] < 0.05 * found[-1].latency_s:
        notes.add(f"{group}: up to {format_bytes(sizes[-1])} latency alone counts, so that no bandwidth shows; left out")
        return None
    return FittedCollective(op, ranks, nodes, sizes, seconds, found, fitted)


def telling(medians: Sequence[tuple[float, float]]) -> list[int]:
    """Which of (size, seconds), by size, a line is fitted to: of those that take no more than the latency, and of those that
    take no more than their bytes, the first and the last. A sweep from 8 bytes to gigabytes has mostly such, and what training
    sends lies between."""
    least_s, least_per_byte_s = min(each_s for _, each_s in medians), min(each_s / size for size, each_s in medians)
    short = [i for i, (_, each_s) in enumerate(medians) if each_s <= _NEARLY * least_s]
    long = [i for i, (size, each_s) in enumerate(medians) if each_s / size <= _NEARLY * least_per_byte_s]
    left = sorted({*range(len(medians))} - {*short[1:-1], *long[1:-1]})
    return left if len(left) >= _FEW else list(range(len(medians)))


def describe(
    found: ImportResult,
    base: Base | None,
    measured: Sequence[FittedCollective] = (),
    node: dict[str, Any] | None = None,
    layers: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The cluster as its YAML file has it; node: what is known of nodes, which goes before the base's; layers: measured ones.

    Raises InputError where neither a base nor a GPU's name tells of the device, or of the speed of a link.
    """
    data = _skeleton(found) if base is None else copy.deepcopy(base.data)
    if base is not None:
        _compare(found, base)
    if node is not None:
        data["node"] = _joined_node(dict(data.get("node") or {}), node, data.get("uncertainty") or {})
    if layers:
        data["device"] = _with_layers(data["device"], layers)
    sources = _links(data, found, base, measured)
    data["provenance"] = dict(data.get("provenance") or {}) | _provenance(found, base) | sources
    if measured:
        collectives = data["collectives"] = dict(data.get("collectives") or {})
        ours = {(one.op, one.ranks, one.nodes) for one in measured}
        kept = [one for one in collectives.get("measured") or [] if _key(one) not in ours]
        collectives["measured"] = [*kept, *(entry for one in measured for entry in one.entries())]
        low, high = _share_interval([ratio for one in measured for ratio in one.ratios()])
        count = sum(len(times) for one in measured for times in one.seconds)
        interval = {"low": format_share(low), "high": format_share(high), "measurements": count}
        data["uncertainty"] = dict(data.get("uncertainty") or {}) | {"collectives": interval}
    return data


def write(data: dict[str, Any], found: ImportResult, path: Path) -> None:
    """Writes a cluster as YAML that people can read, and the points beside it as a table."""
    from scaleproof.validator.probe import points

    header = f"# Imported from {found.tool}. Every number may be edited; `scaleproof predict` uses what stands here.\n"
    with locked_file(path, "import", PATIENCE_S):
        write_aside(path, (header + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)).encode())
        if found.points:
            points.write(found.points, path.with_suffix(".points.parquet"))


def _with_layers(device: str | dict[str, Any], layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The device with measured layers in place of those it has of the same kind."""
    known: dict[str, Any] = {"base": device} if isinstance(device, str) else dict(device)
    ours = {(one["signature"], one["precision"]) for one in layers}
    kept = [one for one in known.get("measured_layers") or [] if (one["signature"], one["precision"]) not in ours]
    return known | {"measured_layers": [*kept, *layers]}


def _joined_node(before: dict[str, Any], node: dict[str, Any], uncertainty: dict[str, Any]) -> dict[str, Any]:
    """The base's node with what is known now; a nominal link leaves its latency, and all of it that was measured."""
    link, known = node.get("link"), dict(before.get("link") or {})
    if link is None or "node.link.bandwidth" in uncertainty:
        return before | {key: value for key, value in node.items() if key != "link"}
    known.pop("topology", None)
    latency = {"latency": known["latency"]} if "latency" in known else {}
    return before | node | {"link": known | link | latency}


def _key(entry: dict[str, Any]) -> tuple[str, int, int]:
    return entry.get("op", "all_reduce"), entry["ranks"], entry.get("nodes", 1)


def _share_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where 90 % of measured times are beside the fitted, and the fit itself with them."""
    ordered = sorted(ratios)
    last = len(ordered) - 1
    low, high = ordered[math.floor(0.05 * last)], ordered[math.ceil(0.95 * last)]
    return min(low, 0.99), max(high, 1.01)


def _skeleton(found: ImportResult) -> dict[str, Any]:
    machines = found.machines
    device = shipped_device(machines.gpu) if machines.gpu else ""
    if not device:
        what = f"{machines.gpu!r} is no device that ships" if machines.gpu else "nothing in it tells the GPU"
        raise InputError(f"{found.files[0]}: {what}; give --cluster with a cluster file whose device it is, or --gpu")
    nodes, devices = max(1, machines.nodes), max(1, machines.devices)
    return {
        "name": f"{nodes} x {devices} {machines.gpu}",
        "description": f"{nodes} nodes of {devices} {machines.gpu}, as {found.tool} tells of them",
        "nodes": nodes,
        "node": {"devices": devices},
        "device": device,
    }


def _provenance(found: ImportResult, base: Base | None) -> dict[str, str]:
    lines = found.notes.lines()
    facts = {"imported": f"{found.tool}: {', '.join(found.files)}", "date": datetime.now(UTC).isoformat(timespec="seconds")}
    if base is not None:
        facts["base"] = base.name
    return facts | ({"left out or assumed": "; ".join(lines)} if lines else {})


def _compare(found: ImportResult, base: Base) -> None:
    """Notes where what was measured on is not what the base describes."""
    machines, cluster = found.machines, base.cluster
    device = shipped_device(machines.gpu) if machines.gpu else ""
    if device and _device_name(device) != cluster.device.name:
        found.notes.add(f"measured on {machines.gpu}, and {base.name} has {cluster.device.name}; give a base with that GPU")
    for what, own, given in (("nodes", machines.nodes, cluster.nodes), ("devices", machines.devices, cluster.node.devices)):
        if own > given:
            found.notes.add(f"measured on {own} {what}, and {base.name} has {given}; larger groups than it has are not used")


def _device_name(device: str) -> str:
    """What the device of a file that ships is called."""
    from scaleproof.simulator.scenario.read import load_device

    return load_device(catalog.ROOT / "devices" / f"{device}.yaml").name


def _links(
    data: dict[str, Any], found: ImportResult, base: Base | None, measured: Sequence[FittedCollective]
) -> dict[str, str]:
    """Puts in the links that messages between two ranks tell of; without a base, also such as are needed and can be guessed.

    Returns what each comes from.
    """
    sources = {}
    machines = found.machines
    for field_name, several in (("node.link", False), ("network", True)):
        parent = data if several else data["node"]
        key = field_name.rpartition(".")[2]
        mine = [one for one in measured if (one.nodes > 1) == several]
        sent = next((one for one in mine if one.op == "sendrecv"), None)
        needed = base is None and not parent.get(key) and (machines.nodes if several else machines.devices) > 1
        if sent is not None:
            cards = base.cluster.node.cards_used if several and base else 1
            nominal = dict(parent.get(key) or {})
            link = {"bandwidth": rate_text(sent.bandwidth_Bps * cards), "latency": seconds_text(sent.latency_s)}
            parent[key] = nominal | link
            sources[field_name] = "messages between two ranks (sendrecv)" + (f", times {cards} cards" if cards > 1 else "")
            _intervals(data, field_name, sent, cards, nominal)
        elif needed:
            parent[key], sources[field_name] = _guessed(machines, mine, several)
    return sources


def _guessed(machines: Machines, measured: Sequence[FittedCollective], several: bool) -> tuple[dict[str, Any], str]:
    """A link that no message tells of, and what it comes from."""
    latency = _NETWORK_LATENCY if several else INSIDE_LATENCY
    nominal = None if several else nominal_Bps(machines.gpu)
    if nominal is not None:
        return {"bandwidth": rate_text(nominal), "latency": latency}, "the GPU's data sheet; its latency is assumed"
    rates = [bus_factor(one.op, one.ranks) * one.bandwidth_Bps for one in measured if one.op in _RINGS]
    if rates:
        return {"bandwidth": rate_text(max(rates)), "latency": latency}, "the largest bus bandwidth; its latency is assumed"
    where = "between nodes" if several else "inside a node"
    raise InputError(f"nothing tells how fast links {where} are; give --cluster with a cluster file that says it")


def _intervals(data: dict[str, Any], name: str, sent: FittedCollective, cards: int, nominal: dict[str, Any]) -> None:
    """90 % intervals of a link's numbers, beside what stood there before."""
    if sent.fitted is None:
        return
    count = sum(len(times) for times in sent.seconds)
    low_s, high_s = sent.fitted.latency_interval_s
    slow_s, slower_s = sent.fitted.seconds_per_byte_interval
    intervals = {"bandwidth": (rate_text(cards / slower_s), rate_text(cards / slow_s))}
    if low_s > 0:
        intervals["latency"] = (seconds_text(low_s), seconds_text(high_s))
    uncertainty = data["uncertainty"] = dict(data.get("uncertainty") or {})
    for key, (low, high) in intervals.items():
        known = uncertainty.get(f"{name}.{key}", {}).get("nominal") or nominal.get(key)
        before = {"nominal": str(known)} if known else {}
        uncertainty[f"{name}.{key}"] = {"low": low, "high": high, **before, "measurements": count}


def row(one: FittedCollective) -> tuple[str, ...]:
    """A measured collective for a table: what, group, sizes, latency, bandwidth, the fit's error."""
    sizes = f"{format_bytes(one.sizes[0])} – {format_bytes(one.sizes[-1])} ({len(one.sizes)})"
    numbers = (format_time_s(one.latency_s), format_Bps(one.bandwidth_Bps), f"{one.error:.1%}")
    return (one.op, f"{one.ranks} on {one.nodes}", sizes, *numbers)
