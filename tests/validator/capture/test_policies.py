"""Policies choose different options per row, as often as their shares say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.capture.backend.policies import Policy, policy_of


@given(st.integers(1, 200), st.integers(1, 8), st.integers(8, 64), st.floats(0, 3))
def test_options_of_a_row_differ(rows: int, chosen: int, options: int, exponent: float) -> None:
    choices = Policy("zipf", exponent).choices(rows, chosen, options)
    assert choices.shape == (rows, chosen)
    assert choices.min() >= 0
    assert choices.max() < options
    assert all(len(set(row)) == chosen for row in choices.tolist())


def test_balanced_choices_are_equally_frequent() -> None:
    counts = np.bincount(policy_of("balanced").choices(1024, 4, 64).ravel(), minlength=64)
    assert set(counts) == {64}


def test_zipf_choices_follow_the_law() -> None:
    counts = np.bincount(policy_of("zipf:1").choices(12000, 1, 4).ravel(), minlength=4)
    np.testing.assert_allclose(counts / 12000, np.array([12, 6, 4, 3]) / 25, atol=1e-3)


def test_a_file_gives_shares(tmp_path: Path) -> None:
    path = tmp_path / "shares"
    path.write_text("3, 1\n")
    counts = np.bincount(policy_of(str(path)).choices(400, 1, 2).ravel())
    assert counts.tolist() == [300, 100]
    with pytest.raises(InputError, match="has 2 numbers, but the script chooses among 8"):
        policy_of(str(path)).choices(4, 1, 8)


@pytest.mark.parametrize("text", ["zipf:", "zipf:-1", "zipf:x", "nothing", "zipf:nan"])
def test_other_policies_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--values"):
        policy_of(text)
