"""Fixtures of real training, which proofs use too."""

from __future__ import annotations

from tests.validator.conftest import make_scenario

__all__ = ["make_scenario"]
