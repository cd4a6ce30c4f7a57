"""Script that torchrun starts in a test: runs functions like probes; the rank that prints reports the results."""

from __future__ import annotations

from scaleproof.simulator.common.errors import RankError
from scaleproof.validator.calibration.sites import site
from scaleproof.validator.measure import MeasureOptions
from tests.validator.calibration.test_sites import fail_on_last, who

if __name__ == "__main__":
    with site("cluster", None, 0, MeasureOptions(timeout_s=60.0)) as where:
        all_of_them, one = where.run(who), where.run(who, ranks=1)
        try:
            where.run(fail_on_last, "no")
        except RankError as error:
            if where.is_reporter:
                print(f"rank 0 of {where.ranks}: {all_of_them}, then {one}, then {error}")
