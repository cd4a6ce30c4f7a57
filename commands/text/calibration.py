"""The table that calibrate prints: quantities with nominal value and interval, then compute, collectives and provenance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scaleproof.commands.text.tables import table as aligned
from scaleproof.simulator.common.units import counted, parse_Bps
from scaleproof.validator.calibration.cluster_file import remarks
from scaleproof.validator.estimation.lines import FASTEST_S

_SUM: Final = "all_reduce"
# Minimum widths of the columns, so that tables of one machine have the same layout.
_COLUMNS: Final = {"quantity": 19, "nominal": 10, "measured": 12, "90 % interval": 28, "times": 6}


def table(cluster: Mapping[str, Any]) -> str:
    """Console text of a calibrated cluster."""
    return "\n".join([*_quantities(cluster), *(f"  {line}" for line in _other_lines(cluster))])


def _quantities(cluster: Mapping[str, Any]) -> list[str]:
    intervals: Mapping[str, Mapping[str, Any]] = cluster.get("uncertainty", {})
    has_nominal = any(interval.get("nominal") for interval in intervals.values())
    columns = [name for name in _COLUMNS if has_nominal or name != "nominal"]
    rows = [columns] if intervals else []
    for name, interval in intervals.items():
        measured = str(_at(cluster, name)) if "." in name else "100 %"
        ends = f"{interval['low']} to {interval['high']}"
        nominal = [interval.get("nominal") or "–"] if has_nominal else []
        rows.append([name, *nominal, measured, ends, str(interval.get("measurements", 0))])
    return aligned(rows, widths=[_COLUMNS[name] for name in columns], indent="  ")


def _other_lines(cluster: Mapping[str, Any]) -> Iterator[str]:
    cores, peaks = cluster["node"].get("cores"), cluster["device"]["peak"]
    effective = f"{cores:.2f} effective cores when all are busy; " if cores is not None else ""
    yield f"compute: {effective}{', '.join(f'{rate} in {name}' for name, rate in peaks.items())} at most"
    collectives = cluster.get("collectives", {}).get("measured", [])
    sums = [one for one in collectives if one.get("op", _SUM) == _SUM]
    for one in sums:
        where = f"{one['ranks']} ranks" + (f" on {one['nodes']} nodes" if one.get("nodes", 1) > 1 else "")
        larger = f" from {one['from']} on" if "from" in one else ""
        # FASTEST_S stands for a slope that is lost in the latency
        rate = f"+ size / {one['bandwidth']}" if parse_Bps(one["bandwidth"]) < 0.99 / FASTEST_S else "for any size"
        yield f"{_SUM} over {where}{larger}: {one['latency']} {rate}"
    if others := len(collectives) - len(sums):
        yield f"and {counted(others, 'other collective')}; see the file"
    provenance = cluster.get("provenance", {})
    yield from (f"{name}: {provenance[name]}" for name in remarks.NAMES if name in provenance)


def _at(cluster: Mapping[str, Any], path: str) -> Any:
    """The value of a field by its dotted path."""
    value: Any = cluster
    for name in path.split("."):
        value = value[name]
    return value
