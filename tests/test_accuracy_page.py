"""docs/accuracy.md: its headline is what rows of more than two nodes say today."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from simulator import library
from validator.published_transformer_training import predict_calibrated

PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
_MOST_NODES = 2


def headline() -> str:
    """Of the absolute errors of step times, with constants that were fitted on other rows."""
    with (library.ROOT / "published" / "transformer_training.csv").open(newline="", encoding="utf-8") as file:
        larger = [row for row in csv.DictReader(file) if int(row["gpus"]) > _MOST_NODES * int(row["gpus_per_node"])]
    times = [found for row in larger for found in predict_calibrated(row) if found.set_name == row["source_set"]]
    errors = np.abs([found.error for found in times if not found.skipped]) * 100
    return (
        f"On the {len(errors)} rows of more than two nodes that are not fitted on, the mean error is {errors.mean():.1f} %, "
        f"the median {np.median(errors):.1f} %."
    )


def test_the_headline_is_todays() -> None:
    assert re.findall(r"^\*\*(On the .*)\*\*$", PAGE.read_text(), re.MULTILINE) == [headline()]
