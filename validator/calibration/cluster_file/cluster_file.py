"""A cluster file from points: the description that was given, with what was measured in place of what is nominal."""

from __future__ import annotations

import math
import socket
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from pydantic import ValidationError

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.units import parse_Bps
from scaleproof.validator.calibration.cluster_file.asides import asides
from scaleproof.validator.calibration.cluster_file.facts import CalibrationFacts
from scaleproof.validator.calibration.cluster_file.section import Section, timed
from scaleproof.validator.calibration.fit import collectives, device, links
from scaleproof.validator.calibration.fit.curve_fitting import groups
from scaleproof.validator.calibration.fit.message_lines import crowds
from scaleproof.validator.probe.points import FAILED, NARROW, TIME, Point
from scaleproof.validator.record.cpu_usage import usable

# As many processes as anybody starts on one machine.
_MOST_PROCESSES: Final = 64
# Two that differ do not tell which of them is odd.
_ENOUGH: Final = 3
_MEASURED: Final = "; measured"
# What ranks on cores of their host train with, here and in `scaleproof measure`.
_ON_CORES: Final = "gloo-cpu"


def _given(base: Mapping[str, Any]) -> Cluster:
    """What was measured, as it was described before. Raises InputError where that is no cluster."""
    try:
        return Cluster.model_validate(base)
    except (ValidationError, FieldError) as error:
        raise InputError("points of a cluster whose description does not hold; measure again") from error


def described(points: Sequence[Point], facts: CalibrationFacts) -> tuple[dict[str, Any], list[str]]:
    """The cluster as its YAML file has it, and what is odd or was left out, a line each.

    Raises InputError where points do not tell what no description says.
    """
    nominal = _given(facts.base) if facts.base else None
    base = _measured(facts.base) if facts.base else _machine()
    between = _section(links.between, points, facts.nodes, nominal) if nominal else Section()
    # GPUs may have links of their own beside it, and switches that sum
    is_bound = bool(between.fields) and _on_cores(nominal, facts)
    link_Bps = parse_Bps(between.fields["bandwidth"]) if is_bound else math.inf
    sections = {
        "device": _section(device.device_section, points, facts.precision),
        "inside": _section(links.inside, points),
        "between": between,
        "collectives": _section(collectives.measured, points, link_Bps),
    }
    on_cores = _on_cores(nominal, facts)
    cluster = _filled(base, sections, device.useful_cores(points) if on_cores else None, facts.on)
    if on_cores:
        cluster.setdefault("framework", _ON_CORES)
    intervals = {name: found for section in sections.values() for name, found in section.intervals.items()}
    if intervals:
        found = {name: one | _nominal(name, nominal) for name, one in intervals.items()}
        cluster["uncertainty"] = cluster.get("uncertainty", {}) | found
    told = [line for section in sections.values() for line in section.told] + _slow_ranks(points)
    told += [*crowds([point for point in points if point.probe in ("message", "collective")]), *_failed(points)]
    odd = {"odd": "; ".join(told)} if told else {}
    cluster["provenance"] = dict(facts.provenance) | _stops(points) | asides(points) | odd
    return {name: cluster[name] for name in sorted(cluster, key=_order)}, told


def _measured(base: Mapping[str, Any]) -> dict[str, Any]:
    """The description that was given, as one that was measured."""
    copy = deepcopy(dict(base))
    said = str(copy.get("description") or "").removesuffix(_MEASURED)
    return copy | {"description": said + _MEASURED if said else "measured"}


def _machine() -> dict[str, Any]:
    """This machine, before anything of it is measured."""
    return {
        "name": socket.gethostname(),
        "description": f"{len(usable())} cores of this machine, measured; processes talk over the loopback interface with gloo",
        "nodes": 1,
        "node": {"devices": _MOST_PROCESSES},
    }


def _section(fit: Callable[..., Section], *arguments: Any) -> Section:
    """What a fit comes to; nothing but why, where it cannot be made."""
    try:
        return fit(*arguments)
    except InputError as error:
        return Section(told=[f"left out: {error}"])


def _on_cores(nominal: Cluster | None, facts: CalibrationFacts) -> bool:
    """Whether ranks compute on cores of their host, and not on a GPU each."""
    return nominal is None or nominal.node.cores is not None or facts.on == "netlab"


def _filled(base: dict[str, Any], sections: Mapping[str, Section], useful: float | None, on: str) -> dict[str, Any]:
    """The description with what each section measured. useful: cores' worth of work that ranks get done at once."""
    cluster = base
    cluster.pop("source", None)
    if sections["device"].fields:
        cluster["device"] = sections["device"].fields
    elif "device" not in cluster:
        raise InputError("no probe has told what a rank computes on; run matmul, memory and layer too, or give --cluster")
    if useful is not None:
        cluster["node"]["cores"] = round(useful, 3)
        if on == "netlab":
            cluster["shared_cores"] = round(useful, 3)
    if sections["inside"].fields:
        cluster["node"]["link"] = _merged(cluster["node"].get("link", {}), sections["inside"].fields)
    if sections["between"].fields:
        cluster["network"] = _merged(cluster["network"], sections["between"].fields)
    if sections["collectives"].fields:
        cluster["collectives"] = cluster.get("collectives", {}) | sections["collectives"].fields
    return cluster


def _merged(old: Any, new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` with what is new, in mappings key by key."""
    merged = dict(old)
    for name, value in new.items():
        merged[name] = _merged(merged[name], value) if isinstance(value, dict) and isinstance(merged.get(name), dict) else value
    return merged


def _nominal(name: str, cluster: Cluster | None) -> dict[str, str]:
    """What the vendor says of a quantity, as the description has it: a measured one keeps what it was told before."""
    if cluster is None or "." not in name:
        return {}
    if name in cluster.uncertainty:
        return {"nominal": cluster.uncertainty[name].nominal}
    quantity = QUANTITIES[name]
    value = quantity.value(cluster)
    return {"nominal": quantity.format(value)} if value is not None else {}


def _slow_ranks(points: Sequence[Point]) -> list[str]:
    """A line for each rank that computes slower than the others, where enough of them computed at once to tell."""
    by_thing: defaultdict[tuple[str, float], dict[int, float]] = defaultdict(dict)
    for point in timed(points, "layer"):
        if point.numbers["ranks"] >= _ENOUGH:
            by_thing[point.what, point.size][point.ranks[0]] = point.median_s
    relative: defaultdict[int, list[float]] = defaultdict(list)
    for seconds in by_thing.values():
        for rank, own_s in seconds.items():
            relative[rank].append(own_s / statistics.median(seconds.values()))
    own: dict[tuple[int, ...], float] = {(rank,): statistics.median(ratios) for rank, ratios in relative.items()}
    return [str(one) for one in groups.compare(own, "rank", "computes at")]


def _failed(points: Sequence[Point]) -> list[str]:
    return [f"{point.what} {point.stopped}" for point in points if point.stopped.startswith(FAILED)]


def _stops(points: Sequence[Point]) -> dict[str, str]:
    """Of each probe how many points were repeated until their interval was narrow, and how many as long as there was time."""
    found: dict[str, Counter[str]] = {}
    for point in points:
        if point.seconds:
            found.setdefault(point.probe, Counter())[point.stopped] += 1
    told = ", ".join(f"{probe} {counts[NARROW]} narrow and {counts[TIME]} by time" for probe, counts in found.items())
    return {"stopped": told} if told else {}


def _order(name: str) -> int:
    """Sections in the order in which people ask."""
    known = ["name", "description", "source", "nodes", "shared_cores", "node", "network", "device", "collectives", "framework"]
    last = ["uncertainty", "provenance"]
    return known.index(name) if name in known else 100 + last.index(name) if name in last else len(known)
