"""Figures of a diagnosis say what a share is of."""

from __future__ import annotations

import pytest

from scaleproof.reports.descriptions.diagnosis import describe
from scaleproof.simulator.analysis.diagnosis import Diagnosis, Finding


@pytest.mark.parametrize(
    ("loss_s", "label"), [(0.15, "of each step lost to the first cause"), (None, "lost to the first cause")]
)
def test_a_share_of_a_rate_is_not_called_one_of_a_step(loss_s: float | None, label: str) -> None:
    """A tested link is slow by a share of its rate, also where a log next to it has step times."""
    found = Finding(cause="slow link", words="gpu4 is slow", share=0.2, loss_s=loss_s, where="gpu4", hosts=("gpu4",))
    assert ("20.0 %", label) in describe(Diagnosis(files=("1 log",), step_s=0.75, findings=(found,))).figures
