"""The command collective: predict the time of a collective operation by message size."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.text.tables import table

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.collective.time import CollectiveTime


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    collective = commands.add_parser(
        "collective",
        help="predict the time of a collective operation, by size",
        description="Predict the time of a collective operation.",
    )
    collective.add_argument(
        "op",
        metavar="OP",
        help="operation: allreduce, allgather, reducescatter, broadcast, reduce, alltoall, sendrecv, gather, scatter",
    )
    collective.add_argument("--size", metavar="SIZE", help="message size, such as 64MiB (all sizes from 8 B to 8 GiB)")
    collective.add_argument("--ranks", required=True, metavar="N", help="number of ranks, or their indices, such as 0,8,16-19")
    collective.add_argument("--cluster", required=True, metavar="NAME", help="a YAML file, or a name from 'scaleproof list'")
    collective.add_argument("--algorithm", metavar="NAME", help="algorithm, such as ring (the communication library's choice)")
    collective.add_argument("--sweep", action="store_true", help="predict all sizes from 8 B up to --size")
    collective.add_argument("--factor", type=int, choices=[2, 4], default=2, help="ratio of consecutive sizes of a sweep (2)")
    collective.add_argument("--messages", action="store_true", help="simulate every message and contention on shared links")
    collective.set_defaults(command=_collective)


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
    how = "message by message" if options.messages else "by formula"
    print(f"# {op} on {group.size} ranks of {cluster.name or Path(options.cluster).stem}, {how}")
    print(describe(times))
    return 0


def describe(times: Sequence[CollectiveTime]) -> str:
    """A table in nccl-tests' columns: size in bytes, count of 4-byte elements, time, algorithm bandwidth and bus bandwidth."""
    rows = [("size", "count", "time", "algbw", "busbw", "algorithm"), ("(B)", "(elements)", "(us)", "(GB/s)", "(GB/s)", "")]
    for one in times:
        rates = (f"{rate_Bps / 1e9:.2f}" for rate_Bps in (one.algorithm_Bps, one.bus_Bps))
        rows.append((str(one.size_bytes), str(one.elements), f"{one.seconds * 1e6:.2f}", *rates, one.algorithm))
    return "\n".join(table(rows, ">>>>><", (14, 14, 12, 9, 9)))
