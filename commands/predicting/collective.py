"""The command collective: predict the time of a collective operation by message size."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import NAME, Command
from scaleproof.commands.text.tables import table

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.collective.time import CollectiveTime


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    collective = Command(commands, "collective", _collective, "predict the time of a collective operation, by size")
    collective.add(
        "OP", "operation: allreduce, allgather, reducescatter, broadcast, reduce, alltoall, sendrecv, gather, scatter"
    )
    collective.add("--size SIZE", "message size, such as 64MiB (all sizes from 8 B to 8 GiB)")
    collective.add("--ranks N", "number of ranks, or their indices, such as 0,8,16-19", required=True)
    collective.add("--cluster NAME", NAME, required=True)
    collective.add("--algorithm NAME", "algorithm, such as ring (the communication library's choice)")
    collective.add("--sweep", "predict all sizes from 8 B up to --size")
    collective.add("--factor", "ratio of consecutive sizes of a sweep (2)", type=int, choices=[2, 4], default=2)
    collective.add("--messages", "simulate every message and contention on shared links")


def _collective(options: argparse.Namespace) -> int:
    from scaleproof.simulator.analysis.collective.time import collective_times, group_on, parse_op, parse_ranks, sweep_sizes
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.common.units import parse_bytes
    from scaleproof.simulator.scenario.read import load_cluster

    cluster = load_cluster(catalog.find_part("cluster", options.cluster, Path()))
    size_bytes = int(parse_bytes(options.size)) if options.size else 2**33
    sizes = sweep_sizes(size_bytes, options.factor) if options.sweep or not options.size else [size_bytes]
    op, ranks = parse_op(options.op), parse_ranks(options.ranks)
    group = group_on(cluster, ranks)
    times = list(collective_times(op, sizes, group, cluster, options.algorithm, options.messages))
    measured = [one.algorithm == "measured" for one in times]
    how = "as measured" if all(measured) else "as measured where the algorithm says so, else by formula"
    how = "message by message" if options.messages else how if any(measured) else "by formula"
    print(f"# {op} on {group.size} ranks of {cluster.name or Path(options.cluster).stem}, {how}")
    print(describe(times))
    return 0


def describe(times: Sequence[CollectiveTime]) -> str:
    """A table in nccl-tests' columns: size in bytes, count of 4-byte elements, time, algorithm bandwidth and bus bandwidth."""
    rows = [("size", "count", "time", "algbw", "busbw", "algorithm"), ("(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)", "")]
    for one in times:
        rates = f"{one.algorithm_Bps / 1e9:.2f}", f"{one.bus_Bps / 1e9:.2f}"
        rows.append((str(one.size_bytes), str(one.elements), f"{one.seconds * 1e6:.2f}", *rates, one.algorithm))
    return "\n".join(table(rows, ">>>>><", (14, 13, 11, 8, 8)))
