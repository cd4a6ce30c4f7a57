"""Times of an undisturbed run, computed from the records of processes."""

from __future__ import annotations

import pytest

from scaleproof.proof.elastic.undisturbed import pieces
from tests.proof.elastic import made


def test_an_undisturbed_run_gives_the_times_of_its_pieces() -> None:
    found = pieces(made.undisturbed(made.job(), 0.5, 0.25))
    assert found.start_s == pytest.approx(6.0)
    assert found.meet_s == pytest.approx(1.0)
    assert found.save_s == pytest.approx(0.25)
