"""What each mechanism of frameworks contributes to predictions of published training runs.

The table is the mean absolute relative error of step times, by set, with all mechanisms, with each of them switched off, with
`ideal`, the default framework, and the one that stands for the words for the row's software, in place of the row's.
No constants are fitted; `benchmarks/fit.py` does that.

Run: python benchmarks/frameworks.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import mean
from typing import Final

import numpy as np

from scaleproof.proof.published import parallel_map
from scaleproof.proof.published.prediction import Options
from scaleproof.proof.published.transformer_training import scenario_of
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.frameworks import ABLATIONS, shipped
from scaleproof.simulator.predict import timed
from scaleproof.simulator.published.tables import Row, folder, read_table
from scaleproof.simulator.published.training_runs import row_scenario

# Sets on which constants of frameworks were looked up before the rest was collected.
_OLDER: Final = (
    "korthikanti22", "megatron_sc21_t1", "vtrain_single", "vtrain_multi", "bigscience", "llm_foundry", "torchtitan", "nemo",
    "megatron_bridge", "simumax_b200", "mcore_h100_weak",
)  # fmt: skip
_DEFAULT: Final = "default framework"
_IDEAL: Final = "ideal"
_WORDS: Final = "words for software"


def print_ablations(table: Mapping[str, Row]) -> None:
    """The mean error of each set with all mechanisms, without each of them, and with other frameworks; means of sets."""
    rows = [row for row in table.values() if row["step_time_s"]]
    names = {row["source_set"] for row in rows}
    older, newer = [name for name in _OLDER if name in names], sorted(names - set(_OLDER))
    columns = (*older, "older", *newer, "newer")
    width = max(map(len, columns))
    print(f"{'':<{width}} {' '.join(f'{name:>{width}}' for name in columns)}")
    for variant in ("all on", *ABLATIONS, _DEFAULT, _WORDS, _IDEAL):
        found = parallel_map.each(_set_error, [(row, variant) for row in rows])
        means = {name: float(np.nanmean([error for of, error in found if of == name])) for name in names}
        shown = [*(means[one] for one in older), mean(means[one] for one in older)]
        shown += [*(means[one] for one in newer), mean(means[one] for one in newer)]
        title = f"without {variant}" if variant in ABLATIONS else variant
        print(f"{title:<{width}} {' '.join(f'{100 * one:>{width}.2f}' for one in shown)}", flush=True)


def _set_error(one: tuple[Row, str]) -> tuple[str, float]:
    """The set of a row, and the absolute relative error of its step time; NaN where it cannot be predicted."""
    row, variant = one
    options = Options(ablate=(variant,) if variant in ABLATIONS else (), frameworks=variant not in (_DEFAULT, _WORDS))
    try:
        found = row_scenario(row, shipped(_IDEAL)) if variant == _IDEAL else scenario_of(row, options)
        assert not isinstance(found, str), "only calibrated scores leave rows out"
        scenario = found.scenario.copied(software=row["software"]) if variant == _WORDS else found.scenario
        return row["source_set"], abs(timed(scenario).step_time_s / float(row["step_time_s"]) - 1)
    except ScaleproofError:
        return row["source_set"], math.nan


def main() -> None:
    """Prints the contribution of each mechanism."""
    print_ablations({row["id"]: row for row in read_table(folder() / "transformer_training.csv")[1]})


if __name__ == "__main__":
    main()
