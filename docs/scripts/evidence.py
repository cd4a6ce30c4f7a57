"""Writes scenarios/published/evidence.csv: the published transformer runs with their predicted step times.

Run: python docs/scripts/evidence.py
"""

from __future__ import annotations

import csv
import io

from scaleproof.proof.published.score import score
from scaleproof.simulator.analysis.evidence import FILE, PublishedRun, description
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.scenario.load import load

_DIGITS = 5


def rows() -> list[dict[str, object]]:
    """A row per scored step time, with the facts by which runs are compared."""
    result = []
    for one in score(FILE.with_name("transformer_training.csv")).predictions:
        if one.skipped or one.of != "speed" or one.interval is None:
            continue
        about = description(load(one.scenario))
        if about is not None:
            times_s = (one.predicted, one.measured, *one.interval)
            rounded = (f"{time_s:.{_DIGITS}g}" for time_s in times_s)
            result.append(
                {"id": one.id} | about | dict(zip(("predicted_s", "measured_s", "low_s", "high_s"), rounded, strict=True))
            )
    return result


def main() -> None:
    """Writes the file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(PublishedRun.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows())
    write_atomically(FILE, text.getvalue().encode())


if __name__ == "__main__":
    main()
