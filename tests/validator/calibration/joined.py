"""Script that torchrun starts in a test: runs functions like probes; the rank that prints reports what is recorded."""

from __future__ import annotations

from scaleproof.validator.calibration.sites import site
from scaleproof.validator.measure import MeasureOptions
from tests.validator.calibration.test_sites import fail_on_last, recorded, who

if __name__ == "__main__":
    with site("cluster", None, 0, MeasureOptions(timeout_s=60.0)) as where:
        all_of_them, _ = recorded(where, who)
        one, _ = recorded(where, who, ranks=1)
        _, error = recorded(where, fail_on_last, "no")
        if where.is_reporter:
            print(f"rank 0 of {where.ranks}: {all_of_them}, then {one}, then {error}; kept: {not where.starts_ranks}")
