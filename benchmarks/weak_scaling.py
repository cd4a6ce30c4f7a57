"""Weak-scaling efficiency of published training runs, measured and predicted, by series.

A series has the same model, precision, tensor, pipeline and context degrees, recomputation, sharding and samples per GPU, on
different numbers of GPUs. Efficiency is the step time on the fewest GPUs over that on the most; the last column is their
difference in percentage points.

Run: python benchmarks/weak_scaling.py [SET ...]
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from scaleproof.proof.published.transformer_training import predict
from scaleproof.simulator.published.tables import folder, read_table

Row = Mapping[str, str]
_SETS: Final = ("dgxc", "internevo")
_SAME: Final = (
    "source_set", "model", "layers", "cluster", "precision", "tp", "pp", "cp", "ep", "virtual_stages", "microbatch_seqs",
    "recompute", "zero_stage", "seq_len", "software",
)  # fmt: skip


class Point(NamedTuple):
    """Step times of a row on a number of GPUs."""

    gpus: int
    measured_s: float
    predicted_s: float


class Efficiency(NamedTuple):
    """Weak-scaling efficiencies of a series from the fewest GPUs to the most."""

    measured: float
    predicted: float

    @property
    def points(self) -> float:
        """Predicted less measured efficiency, in percentage points."""
        return 100 * (self.predicted - self.measured)


def series_of(row: Row) -> tuple[str, ...]:
    """What rows of a series have in common; ZeRO groups and the source's table are named in the note."""
    per_gpu = f"{int(row['global_batch_seqs']) / int(row['gpus']):g} samples per GPU"
    sharding, table = (re.search(pattern, row["note"]) for pattern in (r"sharded[^;,]*", r"table \w+"))
    return *(row[column] for column in _SAME), per_gpu, *(found[0] if found else "" for found in (sharding, table))


def efficiency(points: Sequence[Point]) -> Efficiency:
    """Efficiencies from the fewest GPUs to the most."""
    first, last = min(points), max(points)
    return Efficiency(first.measured_s / last.measured_s, first.predicted_s / last.predicted_s)


def found_series(sets: Iterable[str]) -> dict[tuple[str, ...], list[Point]]:
    """Points of the series of these sets that have rows on at least two numbers of GPUs."""
    _, rows = read_table(folder() / "transformer_training.csv")
    series: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    for row in rows:
        if row["source_set"] in sets and row["step_time_s"]:
            time = next(one for one in predict(row) if one.of == "speed")
            if not time.skipped:
                series[series_of(row)].append(Point(int(row["gpus"]), time.measured, time.predicted))
    return {key: points for key, points in series.items() if len({point.gpus for point in points}) > 1}


def main() -> None:
    """Prints one line per series."""
    print(f"{'series':80} {'GPUs':>12} {'measured':>9} {'predicted':>9} {'points':>7}")
    for key, points in found_series(sys.argv[1:] or _SETS).items():
        name, model, _, _, precision, tensor, pipeline, *_ = key
        about = f"{name} {model} {precision}, tensor {tensor}, pipeline {pipeline}, {', '.join(filter(None, key[-3:]))}"
        of = efficiency(points)
        gpus = f"{min(points).gpus}-{max(points).gpus:,}"
        print(f"{about:80} {gpus:>12} {of.measured:9.1%} {of.predicted:9.1%} {of.points:+7.1f}")


if __name__ == "__main__":
    main()
