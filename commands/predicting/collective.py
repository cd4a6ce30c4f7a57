"""The command collective: predict the time of a collective operation by message size, next to measured times."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import NAME, Command
from scaleproof.commands.text.tables import table

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.collective.curves import CollectiveCurve, Collectives
    from scaleproof.simulator.analysis.collective.time import CollectiveTime
    from scaleproof.simulator.cluster import Cluster
    from scaleproof.simulator.cluster.collectives.groups import Op

_TABLE: Final = "collectives.csv"


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    collective = Command(commands, "collective", _collective)
    ops = "operation: allreduce, allgather, reducescatter, broadcast, reduce, alltoall, sendrecv, gather, scatter"
    collective.add("OP", f"{ops} (with --measured: all)", nargs="?")
    collective.add("--size SIZE", "message size, such as 64MiB (all sizes from 8 B to 8 GiB)")
    collective.add("--ranks N", "number of ranks, or their indices, such as 0,8,16-19")
    collective.add("--cluster NAME", NAME)
    collective.add_overrides("a field of the cluster, such as cluster.network.in_network_reduction=true")
    collective.add("--algorithm NAME", "algorithm, such as ring (the communication library's choice)")
    collective.add("--sweep", "predict all sizes from 8 B up to --size")
    collective.add("--factor", "ratio of consecutive sizes of a sweep (2)", type=int, choices=[2, 4], default=2)
    collective.add("--messages", "simulate every message and contention on shared links")
    where = (
        "compare with measured times: a cluster file that 'import nccl-tests' or 'calibrate' wrote, its table of points, or "
    )
    collective.add("--measured FILE", where + "a CSV with the columns of scenarios/published/collectives.csv", type=Path)
    collective.add("--published", "compare with the published times of every system")
    collective.add(
        "--out DIR", "write a page with figures of the predictions, their 90 %% intervals and measured times", type=Path
    )


def _collective(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common.errors import InputError

    if options.published or options.measured:
        return _compared(options)
    if not (options.op and options.ranks and options.cluster):
        raise InputError("give an operation, --ranks and --cluster, or measured times with --measured FILE or --published")
    return _predicted(options)


def _cluster(reference: str, overrides: Sequence[str]) -> Cluster:
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.scenario.load import cluster_with

    return cluster_with(catalog.find_part("cluster", reference), overrides)


def _predicted(options: argparse.Namespace) -> int:
    from scaleproof.simulator.analysis.collective.curves import CollectiveCurve, Collectives, predicted_curve
    from scaleproof.simulator.analysis.collective.time import collective_times, group_on, parse_op, parse_ranks, sweep_sizes
    from scaleproof.simulator.common.units import parse_bytes

    cluster = _cluster(options.cluster, options.overrides)
    size_bytes = int(parse_bytes(options.size)) if options.size else 2**33
    sizes = sweep_sizes(size_bytes, options.factor) if options.sweep or not options.size else [size_bytes]
    op, ranks = parse_op(options.op), parse_ranks(options.ranks)
    group = group_on(cluster, ranks)
    times = list(collective_times(op, sizes, group, cluster, options.algorithm, options.messages))
    measured = [one.algorithm == "measured" for one in times]
    how = "as measured" if all(measured) else "as measured where the algorithm says so, else by formula"
    how = "message by message" if options.messages else how if any(measured) else "by formula"
    name = cluster.name or Path(options.cluster).stem
    print(f"# {op} on {group.size} ranks of {name}, {how}")
    print(times_table(times))
    if options.out:
        points = predicted_curve(op, group, cluster, sizes, options.algorithm)
        curve = CollectiveCurve(name, op, group.size, group.nodes, options.algorithm or "", points)
        _write(Collectives(curves=(curve,)), options.out)
    return 0


def _compared(options: argparse.Namespace) -> int:
    """Prints predictions next to measured times, and writes their page."""
    from scaleproof.commands.text.sections import by_section
    from scaleproof.reports.descriptions.collectives import describe
    from scaleproof.simulator.analysis.collective.curves import Collectives
    from scaleproof.simulator.common.errors import InputError

    curves = _curves(options)
    if not curves:
        raise InputError(f"{options.measured or _TABLE}: no time of this operation, group and cluster; leave out OP or --ranks")
    found = Collectives(curves=tuple(curves))
    print(by_section(describe(found)))
    if options.out:
        _write(found, options.out)
    return 0


def _curves(options: argparse.Namespace) -> Sequence[CollectiveCurve]:
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.published.tables import find_table
    from scaleproof.validator.collectives.curves import curves_of, measured_times, published_curves

    if options.published or (options.measured.suffix == ".csv" and not options.cluster):
        if options.overrides:
            raise InputError("--set changes the cluster of --cluster or of a cluster file; leave it out here")
        return published_curves(options.measured or find_table(Path(_TABLE)), partial(_is_chosen, options))
    reference = options.cluster or str(options.measured)
    cluster = _cluster(reference, options.overrides)
    times = [one for one in measured_times(options.measured) if _is_chosen(options, one.op, one.ranks)]
    return curves_of(cluster, cluster.name or Path(reference).stem, times)


def _is_chosen(options: argparse.Namespace, op: Op, count: int) -> bool:
    """Whether OP and --ranks, where given, select an operation over a number of ranks."""
    from scaleproof.simulator.analysis.collective.time import parse_op, parse_ranks

    ranks = parse_ranks(options.ranks) if options.ranks else count
    return (not options.op or parse_op(options.op) == op) and count == (ranks if isinstance(ranks, int) else len(ranks))


def _write(found: Collectives, folder: Path) -> None:
    """Writes the curves as JSON and their page."""
    from scaleproof.reports.pages.collective_page import COLLECTIVES_FILE
    from scaleproof.reports.pages.page import build
    from scaleproof.simulator.common.atomic_file import write_atomically
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_folder

    with locked_folder(folder, "collective", PATIENCE_S):
        write_atomically(folder / COLLECTIVES_FILE, found.to_json().encode())
        print(f"wrote {build(folder).path}")


def times_table(times: Sequence[CollectiveTime]) -> str:
    """A table in nccl-tests' columns: size in bytes, count of 4-byte elements, time, algorithm bandwidth and bus bandwidth."""
    rows = [("size", "count", "time", "algbw", "busbw", "algorithm"), ("(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)", "")]
    for one in times:
        rates = f"{one.algorithm_Bps / 1e9:.2f}", f"{one.bus_Bps / 1e9:.2f}"
        rows.append((str(one.size_bytes), str(one.elements), f"{one.seconds * 1e6:.2f}", *rates, one.algorithm))
    return "\n".join(table(rows, ">>>>><", (14, 13, 11, 8, 8)))
