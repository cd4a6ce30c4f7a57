"""Cluster file from imported measurements: measured collectives and links in place of nominal ones, with intervals."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.cluster.collectives.groups import Op, bus_factor
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_Bps, format_bytes, format_percent, format_time_s
from scaleproof.validator.calibration.cluster_file.files import Base
from scaleproof.validator.calibration.cluster_file.section import rate_text, seconds_text
from scaleproof.validator.calibration.gpu_links import ASSUMED_LATENCY, nominal_Bps
from scaleproof.validator.calibration.imports.reading import ImportNotes, ImportResult, Machines
from scaleproof.validator.estimation.lines import FASTEST_S
from scaleproof.validator.kernels.devices import shipped, shipped_device

if TYPE_CHECKING:
    from scaleproof.validator.calibration.fit.curves import FittedCurve
    from scaleproof.validator.calibration.fit.shapes import Segment
    from scaleproof.validator.probe.points import Point

# Assumed latency, as in the shipped clusters, if no latency is measured.
_NETWORK_LATENCY: Final = "8 us"
# Collectives whose bus bandwidth is that of each rank's link, around a ring; between nodes, that of a node's cards together.
_RINGS: Final[tuple[Op, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
_FEW: Final = 3
_NEARLY: Final = 1.15
# Sizes that all take this many times the latency say little about it.
_FAR: Final = 10.0


@dataclass
class FittedCollective:
    """Curve of a collective of one group. seconds: all times by size. pieces: the curve. fitted: line with intervals, for
    messages between two ranks. error: median of |measured / curve − 1|."""

    op: Op
    ranks: int
    nodes: int
    sizes: list[float]
    seconds: list[tuple[float, ...]]
    pieces: tuple[Segment, ...]
    fitted: FittedCurve | None
    error: float = field(init=False)

    def __post_init__(self) -> None:
        self.error = statistics.median(abs(ratio - 1) for ratio in self.ratios())

    @property
    def is_few(self) -> bool:
        """Whether there are too few sizes for a curve."""
        return len(self.sizes) < _FEW

    @property
    def latency_s(self) -> float:
        """Latency in seconds of small messages."""
        return self.pieces[0].latency_s

    @property
    def bandwidth_Bps(self) -> float:
        """Bandwidth in bytes/s of large messages."""
        return 1 / self.pieces[-1].seconds_per_byte

    @property
    def line(self) -> tuple[float, float]:
        """Latency in seconds and seconds per byte of the whole: of the fitted line, or of the ends of the curve."""
        if self.fitted is None:
            return self.latency_s, self.pieces[-1].seconds_per_byte
        return self.fitted.latency_s, self.fitted.seconds_per_byte

    def at(self, size_bytes: float) -> float:
        """Fitted seconds at a size."""
        from scaleproof.validator.calibration.fit.curves import piece_at

        piece = piece_at(self.pieces, size_bytes)
        return piece.latency_s + size_bytes * piece.seconds_per_byte

    def ratios(self) -> list[float]:
        """Ratios of measured to fitted times."""
        return [time_s / self.at(size) for size, times in zip(self.sizes, self.seconds, strict=True) for time_s in times]

    def entries(self) -> Iterator[dict[str, Any]]:
        """Entries of a cluster file."""
        group = {"op": self.op, "ranks": self.ranks, "nodes": self.nodes}
        for piece in self.pieces:
            begins = {"from": f"{piece.from_bytes:.0f} B"} if piece.from_bytes else {}
            rate_Bps = 1 / max(piece.seconds_per_byte, FASTEST_S)
            yield {**group, **begins, "latency": seconds_text(piece.latency_s), "bandwidth": rate_text(rate_Bps)}


def measured_collectives(points: Sequence[Point], notes: ImportNotes) -> list[FittedCollective]:
    """Fits of each collective of each group; those that cannot be fitted are noted."""
    groups: dict[tuple[Op, int, int], list[Point]] = {}
    for point in points:
        if point.probe == "collective" and point.size > 0:
            key: tuple[Any, int, int] = (point.what, len(point.ranks), int(point.numbers["nodes"]))
            groups.setdefault(key, []).append(point)
    fits = [_measured(op, ranks, nodes, mine, notes) for (op, ranks, nodes), mine in groups.items()]
    return [fit for fit in fits if fit is not None]


def _measured(op: Op, ranks: int, nodes: int, points: list[Point], notes: ImportNotes) -> FittedCollective | None:
    from scaleproof.validator.calibration.fit.measured_curve import SizeTime, measured_curve, not_rising
    from scaleproof.validator.calibration.fit.shapes import Segment
    from scaleproof.validator.estimation.lines import straight_line

    points = sorted(points, key=lambda point: point.size)
    sizes, seconds = [point.size for point in points], [point.seconds for point in points]
    medians = [SizeTime(point.size, point.median_s) for point in points]
    group = f"{op} over {ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}"
    if len(sizes) < _FEW:
        line = straight_line(sizes, [median.seconds for median in medians])
        segments: tuple[Segment, ...] = (Segment(0.0, *line),)
        notes.add(f"{group}: {len(sizes)} sizes, too few for an interval; give {_FEW} or more", "groups of few sizes")
    else:
        segments = measured_curve(medians)
        for i in not_rising(medians):
            why = "differs from a curve that rises with the size; the curve does not follow it"
            notes.add(f"{group}, {format_bytes(sizes[i])}: {format_time_s(medians[i].seconds)} {why}", "sizes off the curve")
    # if latency is nearly all of the largest size's time, its bandwidth is noise
    if segments[-1].seconds_per_byte * sizes[-1] < 0.05 * segments[-1].latency_s:
        notes.add(f"{group}: up to {format_bytes(sizes[-1])} times are all latency, so the bandwidth is unknown; left out")
        return None
    fitted = _line_of_messages(group, medians, seconds) if op == "sendrecv" and len(sizes) >= _FEW else None
    return FittedCollective(op, ranks, nodes, sizes, seconds, segments, fitted)


def _line_of_messages(group: str, medians: Sequence[tuple[float, float]], seconds: Sequence[tuple[float, ...]]) -> FittedCurve:
    """Latency and bandwidth of messages between two ranks, with intervals: those of a link."""
    from scaleproof.validator.calibration.fit.choice import ALPHA_BETA, PIECEWISE
    from scaleproof.validator.calibration.fit.curves import fit_curve

    chosen = informative(medians)
    return fit_curve([medians[i][0] for i in chosen], [seconds[i] for i in chosen], (ALPHA_BETA, PIECEWISE), what=group)


def informative(medians: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (size, seconds), sorted by size, to which a line is fitted. Of the sizes that take little more than the
    latency, and of those that take little more than their transfer, only the first and the last are used: a sweep from 8 bytes
    to gigabytes consists mostly of such sizes, while the messages of training lie between them."""
    least_s, least_per_byte_s = min(median_s for _, median_s in medians), min(median_s / size for size, median_s in medians)
    short = [i for i, (_, median_s) in enumerate(medians) if median_s <= _NEARLY * least_s]
    long = [i for i, (size, median_s) in enumerate(medians) if median_s / size <= _NEARLY * least_per_byte_s]
    left = sorted({*range(len(medians))} - {*short[1:-1], *long[1:-1]})
    return left if len(left) >= _FEW else list(range(len(medians)))


def describe(
    imported: ImportResult,
    base: Base | None,
    measured: Sequence[FittedCollective] = (),
    node: dict[str, Any] | None = None,
    layers: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Data of the cluster's YAML file. node: facts about nodes, which override the base's. layers: measured layers.

    Raises InputError if neither a base nor a GPU's name gives the device or the speed of a link.
    """
    data = _skeleton(imported) if base is None else copy.deepcopy(base.data)
    if base is not None:
        _add_nodes(data, imported, measured)
        _compare(imported, base, data.get("nodes", 1))
    if node is not None:
        data["node"] = _joined_node(dict(data.get("node") or {}), node, data.get("uncertainty") or {})
    if layers:
        data["device"] = _with_layers(data["device"], layers)
    sources = _links(data, imported, base, measured)
    before = dict(data.get("provenance") or {})
    data["provenance"] = before | _provenance(imported, base, before) | sources
    if measured:
        collectives = data["collectives"] = dict(data.get("collectives") or {})
        known = collectives.get("measured") or []
        measured = _better(measured, {_key(entry) for entry in known}, imported.notes)
        ours = {(fit.op, fit.ranks, fit.nodes) for fit in measured}
        kept = [entry for entry in known if _key(entry) not in ours]
        collectives["measured"] = [*kept, *(entry for fit in measured for entry in fit.entries())]
    if measured:
        low, high = _share_interval([ratio for fit in measured for ratio in fit.ratios()])
        count = sum(len(times) for fit in measured for times in fit.seconds)
        interval = {"low": format_percent(low), "high": format_percent(high), "measurements": count}
        data["uncertainty"] = dict(data.get("uncertainty") or {}) | {"collectives": interval}
    return data


def _add_nodes(data: dict[str, Any], imported: ImportResult, measured: Sequence[FittedCollective]) -> None:
    """Raises the number of nodes to that of the machines that were measured, if the base is a single node without a network and
    the measurements give the speed of one."""
    nodes = imported.machines.nodes
    gives_speed = any(fit.nodes > 1 and fit.op in (*_RINGS, "sendrecv") for fit in measured)
    if nodes > data.get("nodes", 1) == 1 and not data.get("network") and gives_speed:
        data["nodes"] = nodes
        for key, one, several in (("name", "1 x ", f"{nodes} x "), ("description", "1 node of ", f"{nodes} nodes of ")):
            if str(data.get(key, "")).startswith(one):
                data[key] = several + str(data[key]).removeprefix(one)
        imported.notes.add(f"the base is one node without a network; {nodes} nodes were measured, so that it has {nodes} now")


def _better(
    measured: Sequence[FittedCollective], known: set[tuple[str, int, int]], notes: ImportNotes
) -> list[FittedCollective]:
    """The fits, without those of too few sizes, or of large ones alone, for groups that the base has measured."""
    result = []
    for fit in measured:
        few, large = fit.is_few, fit.at(fit.sizes[0]) > _FAR * fit.latency_s
        if (few or large) and (fit.op, fit.ranks, fit.nodes) in known:
            group = f"{fit.op} over {fit.ranks} ranks on {fit.nodes} node{'s' if fit.nodes > 1 else ''}"
            sizes = f"{len(fit.sizes)} sizes" + ("" if few else f" of {format_bytes(fit.sizes[0])} or more, without latency,")
            notes.add(f"{group}: {sizes} do not replace the base's own measurements")
        else:
            result.append(fit)
    return result


def _with_layers(device: str | dict[str, Any], layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The device with measured layers, which replace its own for the same signature and precision."""
    known: dict[str, Any] = {"base": device} if isinstance(device, str) else dict(device)
    ours = {(layer["signature"], layer["precision"]) for layer in layers}
    kept = [layer for layer in known.get("measured_layers") or [] if (layer["signature"], layer["precision"]) not in ours]
    return known | {"measured_layers": [*kept, *layers]}


def _joined_node(before: dict[str, Any], node: dict[str, Any], uncertainty: dict[str, Any]) -> dict[str, Any]:
    """The base's node updated with new facts. A nominal link keeps the base's latency; a measured link of the base is kept as
    it is."""
    link, known = node.get("link"), dict(before.get("link") or {})
    if link is None or "node.link.bandwidth" in uncertainty:
        return before | {key: value for key, value in node.items() if key != "link"}
    known.pop("topology", None)
    latency = {"latency": known["latency"]} if "latency" in known else {}
    return before | node | {"link": known | link | latency}


def _key(entry: dict[str, Any]) -> tuple[str, int, int]:
    return entry.get("op", "all_reduce"), entry["ranks"], entry.get("nodes", 1)


def _share_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Range of 90 % of the ratios of measured to fitted times, widened to include 1 within one percent."""
    ordered = sorted(ratios)
    last = len(ordered) - 1
    low, high = ordered[math.floor(0.05 * last)], ordered[math.ceil(0.95 * last)]
    return min(low, 0.99), max(high, 1.01)


def _skeleton(imported: ImportResult) -> dict[str, Any]:
    machines = imported.machines
    device = shipped_device(machines.gpu) if machines.gpu else ""
    if not device:
        what = f"{machines.gpu!r} is not a shipped device" if machines.gpu else "the file does not name the GPU"
        raise InputError(f"{imported.files[0]}: {what}; give --cluster with a cluster file that has the device, or --gpu")
    nodes, devices = max(1, machines.nodes), max(1, machines.devices)
    return {
        "name": f"{nodes} x {devices} {machines.gpu}",
        "description": f"{nodes} node{'s' if nodes > 1 else ''} of {devices} {machines.gpu}, imported from {imported.tool}",
        "nodes": nodes,
        "node": {"devices": devices},
        "device": device,
    }


def _provenance(imported: ImportResult, base: Base | None, before: Mapping[str, Any]) -> dict[str, str]:
    """Where the numbers come from. before: where the base's do, whose earlier imports stay named."""
    lines = imported.notes.lines()
    source = f"{imported.tool}: {', '.join(imported.files)}"
    earlier = [one for one in str(before.get("imported") or "").split("; ") if one not in ("", source)]
    facts = {"imported": "; ".join([*earlier, source]), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    if base is not None:
        facts["base"] = base.name
    return facts | ({"left out or assumed": "; ".join(lines)} if lines else {})


def _compare(imported: ImportResult, base: Base, nodes: int) -> None:
    """Notes differences between the measured machines and the base. nodes: of the cluster that is written."""
    machines, cluster = imported.machines, base.cluster
    device = shipped(machines.gpu) if machines.gpu else None
    if device is not None and device.name != cluster.device.name:
        text = f"measured on {machines.gpu}, but {base.name} has {cluster.device.name}; give a base with that GPU"
        imported.notes.add(text)
    for what, own, given in (("nodes", machines.nodes, nodes), ("devices", machines.devices, cluster.node.devices)):
        if own > given:
            imported.notes.add(f"measured on {own} {what}, but {base.name} has {given}; larger groups are not used")


def _links(
    data: dict[str, Any], imported: ImportResult, base: Base | None, measured: Sequence[FittedCollective]
) -> dict[str, str]:
    """Inserts the links that messages between two ranks measure; without a base, also links that are required and can be
    guessed.

    Returns the source of each.
    """
    sources = {}
    machines = imported.machines
    for field_name, several in (("node.link", False), ("network", True)):
        parent = data if several else data["node"]
        key = field_name.rpartition(".")[2]
        mine = [fit for fit in measured if (fit.nodes > 1) == several]
        sent = next((fit for fit in mine if fit.op == "sendrecv"), None)
        missing = base is None or data.get("nodes", 1) > base.cluster.nodes
        needed = missing and not parent.get(key) and (machines.nodes if several else machines.devices) > 1
        if sent is not None:
            cards = base.cluster.node.cards_used if several and base else 1
            nominal = dict(parent.get(key) or {})
            latency_s, seconds_per_byte = sent.line
            link = {"bandwidth": rate_text(cards / seconds_per_byte), "latency": seconds_text(latency_s)}
            parent[key] = nominal | link
            sources[field_name] = "messages between two ranks (sendrecv)" + (f", times {cards} cards" if cards > 1 else "")
            _intervals(data, field_name, sent, cards, nominal)
        elif needed:
            parent[key], sources[field_name] = _guessed(machines, mine, several)
    return sources


def _guessed(machines: Machines, measured: Sequence[FittedCollective], several: bool) -> tuple[dict[str, Any], str]:
    """A link without measured messages, and its source. Raises InputError if its speed is unknown."""
    latency = _NETWORK_LATENCY if several else ASSUMED_LATENCY
    nominal = None if several else nominal_Bps(machines.gpu)
    if nominal is not None:
        return {"bandwidth": rate_text(nominal), "latency": latency}, "the GPU's data sheet; its latency is assumed"
    rates = [bus_factor(fit.op, fit.ranks) * fit.bandwidth_Bps for fit in measured if fit.op in _RINGS]
    if rates:
        return {"bandwidth": rate_text(max(rates)), "latency": latency}, "the largest bus bandwidth; its latency is assumed"
    where = "between nodes" if several else "inside a node"
    raise InputError(f"the speed of links {where} is unknown; give --cluster with a cluster file that has it")


def _intervals(data: dict[str, Any], name: str, sent: FittedCollective, cards: int, nominal: dict[str, Any]) -> None:
    """Sets 90 % intervals of a link's numbers, and their nominal values from before."""
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


def row(fit: FittedCollective) -> tuple[str, ...]:
    """Cells of a table row for a measured collective: operation, group, sizes, latency, bandwidth, error of the fit."""
    sizes = f"{format_bytes(fit.sizes[0])} – {format_bytes(fit.sizes[-1])} ({len(fit.sizes)})"
    numbers = (format_time_s(fit.latency_s), format_Bps(fit.bandwidth_Bps), format_percent(fit.error))
    return (fit.op, f"{fit.ranks} on {fit.nodes}", sizes, *numbers)
