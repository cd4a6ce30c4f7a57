"""Cluster from measured points: the given description, with measured values in place of nominal ones."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pydantic import ValidationError

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import processors_taken
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.common.units import parse_Bps
from scaleproof.simulator.common.yaml_file import merged
from scaleproof.simulator.run.run import DISTURBED
from scaleproof.validator.calibration.cluster_file.constants import errors, surprises, with_constants
from scaleproof.validator.calibration.cluster_file.files import cluster_of
from scaleproof.validator.calibration.cluster_file.remarks import failed, remarks, slow_ranks, stops
from scaleproof.validator.calibration.cluster_file.section import Section
from scaleproof.validator.calibration.fit import collectives, device, gpu, host, links
from scaleproof.validator.calibration.fit.collective_posterior import times_of, updated
from scaleproof.validator.calibration.fit.message_lines import bimodal_notes
from scaleproof.validator.probe.points import NARROW, Point
from scaleproof.validator.record import provenance as environment
from scaleproof.validator.record.cpu_usage import usable

# Largest number of processes that anybody starts on one machine.
_MOST_PROCESSES: Final = 64
_MEASURED: Final = "; measured"
# Framework of ranks on cores of their host, here and in `scaleproof measure`.
_ON_CORES: Final = "gloo-cpu"
# Probe of the row of a table of points that holds the facts.
_FACTS: Final = "site"


@dataclass(frozen=True)
class CalibrationFacts:
    """Facts about a calibration other than its points, stored as a row of their table so that fits can be repeated.

    on: local, netlab or cluster. nodes: of each rank. precision: of the computations. base: data of the YAML file that
    describes the measured cluster; None for a machine without one. provenance: where, when and with what it was measured.
    on_gpus: whether each rank was probed as a GPU, which needs a base.
    """

    on: str = "local"
    nodes: tuple[int, ...] = ()
    precision: str = "fp32"
    base: Mapping[str, Any] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    on_gpus: bool = False

    def point(self) -> Point:
        """The facts as a row of the table."""
        texts: dict[str, Any] = {
            "on": self.on,
            "precision": self.precision,
            "base": self.base,
            "provenance": dict(self.provenance),
        }
        if self.on_gpus:
            texts["on_gpus"] = True
        ranks = tuple(range(len(self.nodes)))
        numbers = {str(rank): float(node) for rank, node in enumerate(self.nodes)}
        return Point(_FACTS, json.dumps(texts), "", ranks, "", 0.0, "", (), NARROW, 0.0, numbers)

    @classmethod
    def of(cls, points: Sequence[Point], where: str) -> Self:
        """The facts in a table. where: name of the table, for messages. Raises InputError for a table without facts."""
        row = next((point for point in points if point.probe == _FACTS), None)
        try:
            texts = json.loads(row.what) if row else None
        except ValueError:
            texts = None
        if row is None or not isinstance(texts, dict):
            raise InputError(f"{where}: no row says where its points were measured; give a table that calibrate wrote")
        nodes = tuple(int(row.numbers[str(rank)]) for rank in row.ranks)
        return cls(texts["on"], nodes, texts["precision"], texts["base"], texts["provenance"], "on_gpus" in texts)


def _given(base: Mapping[str, Any]) -> Cluster:
    """The cluster as it was described before measuring. Raises InputError if the description is invalid."""
    try:
        return Cluster.model_validate(base)
    except (ValidationError, FieldError) as error:
        raise InputError("the description of the measured cluster in the table of points is invalid; measure again") from error


def cluster_from_points(points: Sequence[Point], facts: CalibrationFacts) -> tuple[dict[str, Any], list[str]]:
    """Data of the cluster's YAML file, and notes on outliers and on what was left out, a line each.

    Raises InputError if neither points nor description give the device.
    """
    nominal = _given(facts.base) if facts.base else None
    base = _measured(facts.base) if facts.base else _machine()
    between = _section(links.between, points, facts.nodes, nominal) if nominal else Section()
    # nodes with GPUs may have further links, and switches that reduce
    is_bound = bool(between.fields) and _on_cores(nominal, facts)
    link_Bps = parse_Bps(between.fields["bandwidth"]) if is_bound else math.inf
    device_fit = (
        gpu.device_section(points, nominal.device)
        if nominal and facts.on_gpus
        else _section(device.device_section, points, facts.precision)
    )
    sections = {
        "device": device_fit,
        "inside": _section(links.inside, points),
        "host": _section(host.section, points),
        "between": between,
        "collectives": _section(collectives.measured, points, link_Bps),
    }
    on_cores = _on_cores(nominal, facts)
    cluster = _filled(base, sections, device.useful_cores(points) if on_cores else None, facts.on, failed(points))
    if on_cores:
        cluster.setdefault("framework", _ON_CORES)
    intervals = {name: interval for section in sections.values() for name, interval in section.intervals.items()}
    if intervals:
        with_nominal = {name: interval | _nominal(name, nominal) for name, interval in intervals.items()}
        cluster["uncertainty"] = cluster.get("uncertainty", {}) | with_nominal
    notes = [line for section in sections.values() for line in section.notes] + slow_ranks(points)
    notes += [*bimodal_notes([point for point in points if point.probe in ("message", "collective")]), *failed(points)]
    odd = {"odd": "; ".join(notes)} if notes else {}
    taken = processors_taken(nominal) if nominal and facts.on_gpus else 0.0
    cluster["provenance"] = dict(facts.provenance) | stops(points) | remarks(points, taken) | odd
    if facts.on_gpus and sections["collectives"].fields:
        posterior = updated(cluster_of(cluster, "the measured cluster"), times_of(points))
        cluster = with_constants(cluster, posterior)
        notes += [errors(posterior), *surprises(posterior)] if posterior else []
    disturbed = filter(None, [facts.provenance.get(DISTURBED)])
    return {name: cluster[name] for name in sorted(cluster, key=_order)}, [*disturbed, *notes]


def _measured(base: Mapping[str, Any]) -> dict[str, Any]:
    """The given description, marked as measured."""
    copy = deepcopy(dict(base))
    text = str(copy.get("description") or "").removesuffix(_MEASURED)
    return copy | {"description": text + _MEASURED if text else "measured"}


def _machine() -> dict[str, Any]:
    """Description of this machine before measuring."""
    return {
        "name": socket.gethostname(),
        "description": f"{len(usable())} cores of this machine, measured; processes communicate over loopback with gloo",
        "nodes": 1,
        "node": {"devices": _MOST_PROCESSES},
    }


def _section(fit: Callable[..., Section], *arguments: Any) -> Section:
    """The section that a fit returns, or only a note with the reason if it cannot be made."""
    try:
        return fit(*arguments)
    except InputError as error:
        return Section(notes=[f"left out: {error}"])


def _on_cores(nominal: Cluster | None, facts: CalibrationFacts) -> bool:
    """Whether ranks compute on cores of their host rather than on a GPU each."""
    return nominal is None or nominal.node.cores is not None or facts.on == "netlab"


def _filled(
    base: dict[str, Any], sections: Mapping[str, Section], useful: float | None, on: str, failures: Sequence[str]
) -> dict[str, Any]:
    """The description with the fields of each section. useful: throughput of concurrent ranks in multiples of one rank's.
    failures: probes that failed, with the reasons."""
    cluster = base
    cluster.pop("source", None)
    if sections["device"].fields:
        cluster["device"] = sections["device"].fields
    elif "device" not in cluster:
        reasons = [*sections["device"].notes, *failures]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        raise InputError(
            f"the points do not give the device of a rank{why}; run matmul, memory and layer too, or give --cluster"
        )
    if useful is not None:
        cluster["node"]["cores"] = round(useful, 3)
        if on == "netlab":
            cluster["shared_cores"] = round(useful, 3)
    if sections["inside"].fields:
        cluster["node"]["link"] = merged(cluster["node"].get("link", {}), sections["inside"].fields)
    if sections["host"].fields:
        cluster["node"]["host"] = cluster["node"].get("host", {}) | sections["host"].fields
    if sections["between"].fields:
        cluster["network"] = merged(cluster["network"], sections["between"].fields)
    if sections["collectives"].fields:
        cluster["collectives"] = cluster.get("collectives", {}) | sections["collectives"].fields
    return cluster


def _nominal(name: str, cluster: Cluster | None) -> dict[str, str]:
    """Nominal value of a quantity in the description, unless it already has one, which is kept."""
    if cluster is None or "." not in name:
        return {}
    if name in cluster.uncertainty:
        return {"nominal": cluster.uncertainty[name].nominal}
    quantity = QUANTITIES[name]
    value = quantity.value(cluster)
    return {"nominal": quantity.format(value)} if value is not None else {}


def _order(name: str) -> int:
    """Sort key of a section of the file."""
    known = ["name", "description", "source", "nodes", "shared_cores", "node", "network", "device", "collectives", "framework"]
    last = ["uncertainty", "provenance"]
    return known.index(name) if name in known else 100 + last.index(name) if name in last else len(known)


def provenance() -> dict[str, str]:
    """Where, when and with what a cluster is measured."""
    return environment.of_process() | {"scaleproof": _version()}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("scaleproof")
    except PackageNotFoundError:
        return "not installed"
