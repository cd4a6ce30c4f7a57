"""Lateness of ranks with emulated compute is recorded for training ranks, with a warning if it is large."""

from __future__ import annotations

import pytest

from scaleproof.validator.record.emulation_lateness import summary

QUIET = {
    "paced_s": 10.0,
    "overrun_s": 0.01,
    "late_sum_s": 0.05,
    "late_mean_s": 0.0001,
    "late_p95_s": 0.0004,
    "took_s": 11.0,
}


def test_the_lateness_of_the_latest_rank_is_recorded() -> None:
    early = {**QUIET, "overrun_s": 0.02, "late_sum_s": 0.01, "late_mean_s": 0.00002}
    provenance, warning = summary([early, QUIET, {}])
    assert provenance == {
        "compute_overrun": "0.2% of the time to be waited",
        "compute_lateness": "woke up 0.1 ms late on average, 0.4 ms at the 95th percentile",
    }
    assert warning == ""


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        ({"overrun_s": 0.7}, "computing took 7% longer than it should"),
        ({"late_sum_s": 0.44}, "ranks woke up late by up to 4% of a step in all, for which others may have waited"),
    ],
)
def test_too_much_lateness_gives_a_warning(late: dict[str, float], reason: str) -> None:
    _, warning = summary([QUIET, {**QUIET, **late}])
    assert warning == f"{reason}: emulate fewer ranks, or slower layers, on a quiet machine"
