"""Spread of step times within published MLPerf runs: how well it is predicted, what each source contributes, and its constants.

The first table compares the relative difference of the 95th percentile and the median of step_time_quantiles.csv with the
prediction, in points: of all rows, of those that the constants were fitted on and of all others, and of each benchmark and
submitter; then with the variability of networks, the jitter of compute and drift left out one by one, and with no spread.
The last tables fit the constants to the rows named in the scorer, show what the loss is at other values, and leave whole
benchmarks and submitters out of the fit.

Run: python benchmarks/steps.py [FILE.csv]
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

import numpy as np

from scaleproof.proof.published.step_time_quantiles import FITTED, fabric, spread
from scaleproof.simulator.published.tables import find_table, read_table
from scaleproof.simulator.uncertainty.step_distribution import DRIFT, JITTER, NETWORK, NODE_LINKS

Row = Mapping[str, str]

TABLE: Final = Path("step_time_quantiles.csv")
WITHIN: Final = 1.5
# Factors on the shipped constants that are tried.
FACTORS: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.5, 4.0)
# Points added to spreads before their logarithms are compared, so that steps that hardly vary do not count more than others.
_FLOOR: Final = 0.02
_NOTHING: Final = {DRIFT: 0.0, JITTER: 0.0, NETWORK: 0.0, NODE_LINKS: 0.0}


def measured(row: Row) -> float:
    """Measured spread in points."""
    return 100 * (float(row["p95"]) / float(row["p50"]) - 1)


def differences(rows: Sequence[Row], changed: Mapping[str, float]) -> list[float]:
    """Differences of predicted and measured spread in points."""
    return [abs(100 * spread(row, changed) - measured(row)) for row in rows]


def line(title: str, rows: Sequence[Row], changed: Mapping[str, float]) -> str:
    """Share of rows within the bound, median, mean and 95th percentile of the difference, and the rank correlation."""
    points = differences(rows, changed)
    within = sum(point <= WITHIN for point in points) / len(points)
    numbers = f"{np.median(points):7.3f} {np.mean(points):7.3f} {np.percentile(points, 95):7.2f}"
    order = f"{correlation(rows, changed):6.2f} {loss(rows, changed):7.2f}"
    return f"{title:<34}{len(rows):5d} {100 * within:8.1f} % {numbers} {order}"


def correlation(rows: Sequence[Row], changed: Mapping[str, float]) -> float:
    """Rank correlation of predicted and measured spreads; 0 where all predictions are equal."""
    predicted, found = (
        np.array(values) for values in ([spread(row, changed) for row in rows], [measured(row) for row in rows])
    )
    if len(rows) < 3 or np.ptp(predicted) == 0 or np.ptp(found) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(predicted), _ranks(found))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of values; equal ones have their mean rank."""
    below, equal = (values[:, None] > values).sum(axis=1), (values[:, None] == values).sum(axis=1)
    return np.asarray(below + (equal - 1) / 2)


def loss(rows: Sequence[Row], changed: Mapping[str, float]) -> float:
    """Mean absolute logarithm of the ratio of predicted and measured spread."""
    pairs = [(100 * spread(row, changed), measured(row)) for row in rows]
    return sum(abs(math.log((predicted + _FLOOR) / (found + _FLOOR))) for predicted, found in pairs) / len(pairs)


def fitted(rows: Sequence[Row]) -> dict[str, float]:
    """Factors on the shipped drift and variability of networks with the lowest loss."""
    tried = [{DRIFT: drift, NETWORK: network} for drift, network in itertools.product(FACTORS[1:], FACTORS)]
    return min(tried, key=lambda changed: loss(rows, changed))


def by(rows: Sequence[Row], key: Callable[[Row], str]) -> dict[str, Sequence[Row]]:
    """Rows by a key, in its order."""
    return {name: [row for row in rows if key(row) == name] for name in sorted({key(row) for row in rows})}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, default=TABLE)
    _, rows = read_table(find_table(parser.parse_args().table))
    own, others = ([row for row in rows if (row["id"] in FITTED) is is_own] for is_own in (True, False))
    print(f"{'p95/p50 - 1, points':<34} rows  within {WITHIN}  median    mean     p95   rank    loss")
    parts: dict[str, Sequence[Row]] = {"all rows": rows, "fitted on": own, "all others": others}
    for title, some in parts.items():
        print(line(title, some, {}))
    for of in ("benchmark", "submitter"):
        for name, some in by(rows, itemgetter(of)).items():
            print(line(f"  {name}", some, {}))
    for name, some in by(rows, fabric).items():
        print(line(f"  {name}", some, {}))
    print("\nall others, without")
    ablations = {
        "  variability of networks": {NETWORK: 0.0, NODE_LINKS: 0.0}, "  jitter of compute": {JITTER: 0.0},
        "  drift": {DRIFT: 0.0}, "  everything (no spread)": _NOTHING,
    }  # fmt: skip
    for title, changed in ablations.items():
        print(line(title, others, changed))
    print("\nloss by factors on the shipped constants: fitted on, all others")
    for source in (DRIFT, JITTER, NETWORK):
        losses = (f"{factor:g}: {loss(own, {source: factor}):.2f} {loss(others, {source: factor}):.2f}" for factor in FACTORS)
        print(f"  {source}: {', '.join(losses)}")
    print("\nfitted without, then scored on it: factors on drift and on networks")
    for of in ("benchmark", "submitter"):
        for name, some in by(rows, itemgetter(of)).items():
            changed = fitted([row for row in rows if row[of] != name])
            print(f"{line(f'  {name}', some, changed)}  drift {changed[DRIFT]:g}, networks {changed[NETWORK]:g}")


if __name__ == "__main__":
    main()
