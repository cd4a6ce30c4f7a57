"""How well collectives are timed on systems, and from sources, that their constants were not fitted to; what each mechanism of
the timing contributes; the fit that ships; and what options of a cluster change that no row has: switches of the network that
reduce, registered and symmetric buffers; and which mechanism would explain all-reduces over racks of GB200.

Errors are absolute relative errors of the time, the bias is the median logarithm of predicted over measured. Rows are those of
scenarios/published/collectives.csv. Needs SciPy.

Run: python benchmarks/collectives.py [systems] [sources] [mechanisms] [options] [racks] [--write]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from scaleproof.proof.collectives import data_file
from scaleproof.proof.collectives.fit import Fit, fit, fits_without
from scaleproof.proof.collectives.observations import Observation, ObservationBatch, observations
from scaleproof.simulator.analysis.collective.time import group_on, parse_op
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.nccl.constants import FittedValue, Tables, priors, replaced, shipped
from scaleproof.simulator.common import catalog
from scaleproof.simulator.published.tables import find_table, read_table
from scaleproof.simulator.scenario.load import cluster_with
from scaleproof.validator.collectives.rows import case_of

_PARTS: Final = ("systems", "sources", "mechanisms", "options", "racks")
_MIB: Final = 2**20
# A constant that is so small that it has no effect.
_NOTHING: Final = 1e-15
# Constants with which a mechanism has no effect.
_MECHANISMS: Final[Mapping[str, Mapping[str, float]]] = {
    "time of chunks": {"chunk": _NOTHING},
    "chunks of LL and LL128": {"line_chunk": _NOTHING},
    "ring steps on local data": {"local_step": _NOTHING},
    "posting to each peer": {"peer": _NOTHING, "post": _NOTHING},
    "reached rates of LL and LL128": {"ll_rate": 1.0, "ll128_rate": 1.0},
    "latencies of protocols": {"ll128_step": 1.0, "simple_step": 1.0, "ll128_network_step": 1.0, "simple_network_step": 1.0},
}
# Settings of a cluster that the rows do not have, and the constants with which each costs nothing.
_OPTIONS: Final[Mapping[str, tuple[Sequence[str], Mapping[str, float]]]] = {
    "plain": ((), {}),
    "reducing switches": (("network.in_network_reduction=true",), {"sharp_step": _NOTHING, "sharp_rate": 1.0}),
    "… without NVLS": (
        ("network.in_network_reduction=true", "collectives.nccl.nvls=false"), {"sharp_step": _NOTHING, "sharp_rate": 1.0}
    ),
    "registered buffers": (("collectives.nccl.buffers=registered",), {"registered_step": _NOTHING, "registered_rate": 1.21}),
    "symmetric buffers": (
        ("collectives.nccl.buffers=symmetric",), {"barrier": _NOTHING, "symmetric_rate": 1.0, "symmetric_ll_bytes": 2.0}
    ),
}  # fmt: skip
# System of the rows of racks, number of racks, and ranks of each.
_RACKS: Final = ("CoreWeave GB200 20 racks", 20, 72)
# NCCL: a step of a channel's buffer; a tree's channel on Blackwell; the tuner's steps of Simple on NVLink and between nodes.
_PIECE_BYTES: Final = 2**22 / 8
_TREE_CHANNEL_Bps: Final = 24e9
_HOP_S, _NETWORK_HOP_S = 4e-6, 14e-6
_CLUSTER: Final = "dgx-h100"
_SIZES: Final = {"8 KiB": 2**13, "1 MiB": 2**20, "64 MiB": 2**26, "4 GiB": 2**32}


def main() -> None:
    """Prints the parts that are given as arguments, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--write", action="store_true", help="write the fit to scenarios/collectives")
    options = parser.parse_args()
    _, rows = read_table(find_table(Path("collectives.csv")))
    alone: dict[str, Callable[[], None]] = {"options": changes, "racks": lambda: racks(rows)}
    if options.parts and set(options.parts) <= set(alone) and not options.write:
        for part in options.parts:
            alone[part]()
        return
    known = observations(rows)
    whole = fit(known, priors())
    if options.write:
        data_file.write(catalog.ROOT / "collectives", whole.tables)
    print(f"{whole.rows} rows, of {len(whole.systems)} systems")
    print(_line("priors", *_errors(known, priors())))
    print(_line("fitted to all", *_errors(known, whole.tables)))
    parts = options.parts or _PARTS
    for part, by in (("systems", "system"), ("sources", "source")):
        if part in parts:
            left_out(known, whole, "system" if by == "system" else "source")
    if "mechanisms" in parts:
        mechanisms(known, whole)
    for part in alone:
        if part in parts:
            alone[part]()


def left_out(known: Sequence[Observation], whole: Fit, by: Literal["system", "source"]) -> None:
    """Prints errors on each system or source by the fit to the others."""
    print(f"\neach {by} by the fit to the others")
    fits = fits_without(known, priors(), by, whole)
    for name, one in fits.items():
        print(_line(name, *_errors([row for row in known if getattr(row, by) == name], one.tables)))
    print(_line("together", *_together(known, fits, by)))


def mechanisms(known: Sequence[Observation], whole: Fit) -> None:
    """Prints errors with systems left out in turn, without each mechanism of the timing."""
    print("\nwithout a mechanism, systems left out in turn")
    print(_line("with all", *_together(known, fits_without(known, priors(), "system", whole), "system")))
    for name, constants in _MECHANISMS.items():
        fits = fits_without(known, _without(priors(), constants), "system", fixed=frozenset(constants))
        print(_line(name, *_together(known, fits, "system")))
    same = [replace(one, transport="infiniband", key=(*one.key, "infiniband")) for one in known]
    print(_line("latency of each transport", *_together(same, fits_without(same, priors(), "system", whole), "system")))


def racks(rows: Sequence[Mapping[str, str]]) -> None:
    """Prints times of all-reduces over racks of GB200: measured, by our model, and by a tree whose pieces pass a rack's chain.

    NCCL's trees are chains inside an NVLink domain, here of 72 ranks, whose pieces have up to 512 KiB (a step of its buffer).
    Before all links work, one piece passes every hop of the chain and of the tree, up and down. NCCL's tuner gives each channel
    of a tree on more than two nodes of Blackwell 24 GB/s (tuning.cc, 2.27). Its search finds 15 channels of 48 GB/s in a GPU's
    722 GB/s of NVLink; 18 would be one for each of its NVLinks. Nothing is fitted, but the rows were in view.
    """
    cluster, racks, per_rack = _RACKS
    known = [row for row in rows if row["instance_or_system"] == cluster]
    hop_s = _PIECE_BYTES / _TREE_CHANNEL_Bps
    fill_s = 2 * ((per_rack - 1) * (hop_s + _HOP_S) + math.ceil(math.log2(racks)) * (hop_s + _NETWORK_HOP_S))
    print(f"\nall-reduces over {racks} racks of {per_rack} GB200, us; a tree's first piece takes {fill_s * 1e6:.0f}")
    for row in known:
        case = case_of(row)
        measured_s = case.measured_s
        times = {"model's choice": case.seconds(case.cluster)}
        for name in ("ring", "tree", "nvls_tree"):
            times[name] = collective_cost(
                case.op, case.size_bytes, group_on(case.cluster, case.ranks), case.cluster, name
            ).seconds
        for channels in (15, 18):
            times[f"tree, {channels} channels"] = fill_s + case.size_bytes / (channels * _TREE_CHANNEL_Bps / 2)
        cells = (f"{name} {seconds * 1e6:.0f} ({seconds / measured_s - 1:+.0%})" for name, seconds in times.items())
        print(f"{case.size_bytes >> 20} MiB: measured {measured_s * 1e6:.0f}; {'; '.join(cells)}")


def changes() -> None:
    """Prints predicted times of collectives with each option of a cluster, and with an option that costs nothing itself."""
    print(f"\npredicted us on {_CLUSTER}, not measured, by size ({', '.join(_SIZES)}); in brackets if the option costs nothing")
    for op, ranks in (("all_reduce", 8), ("all_gather", 8), ("all_reduce", 64), ("all_reduce", 512), ("reduce_scatter", 512)):
        for name, (settings, free) in _OPTIONS.items():
            overrides = [f"cluster.nodes={-(-ranks // 8)}", *(f"cluster.{setting}" for setting in settings)]
            cluster = cluster_with(catalog.find_part("cluster", _CLUSTER), overrides)
            cells = []
            for size_bytes in _SIZES.values():
                cost = collective_cost(parse_op(op), size_bytes, group_on(cluster, ranks), cluster)
                with replaced(_without(shipped(), free)):
                    least_s = collective_cost(parse_op(op), size_bytes, group_on(cluster, ranks), cluster).seconds
                cells.append(f"{cost.algorithm} {cost.seconds * 1e6:.0f} ({least_s * 1e6:.0f})")
            print(f"{op} of {ranks}: {name:20} {'; '.join(cells)}")


def _without(tables: Tables, constants: Mapping[str, float]) -> Tables:
    """The tables with constants at which a mechanism has no effect."""
    return {
        file: {
            entry: {name: FittedValue(*[constants[name]] * 3) if name in constants else value for name, value in fields.items()}
            for entry, fields in entries.items()
        }
        for file, entries in tables.items()
    }


def _together(
    known: Sequence[Observation], fits: Mapping[str, Fit], by: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    parts = [_errors([row for row in known if getattr(row, by) == name], one.tables) for name, one in fits.items()]
    errors, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return errors, sizes


def _errors(rows: Sequence[Observation], tables: Tables) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logarithms of predicted over measured times, and sizes in bytes; shapes (rows,)."""
    batch = ObservationBatch.of(rows)
    return np.log(batch.seconds(tables) / batch.measured_s), batch.size_bytes


def _line(name: str, errors: NDArray[np.float64], sizes: NDArray[np.float64]) -> str:
    parts = []
    for title, mask in (("all", sizes >= 0), (">= 1 MiB", sizes >= _MIB), ("< 1 MiB", sizes < _MIB)):
        if mask.any():
            shares = np.abs(np.expm1(errors[mask]))
            parts.append(
                f"{title}: {int(mask.sum())} rows, median {np.median(shares):.1%}, mean {shares.mean():.1%}, "
                f"bias {np.median(errors[mask]):+.1%}"
            )
    return f"{name:32} {'; '.join(parts)}"


if __name__ == "__main__":
    main()
