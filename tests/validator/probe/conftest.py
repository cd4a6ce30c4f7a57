"""A single rank, and clocks that only steps advance."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from scaleproof.validator.launch import rank
from scaleproof.validator.probe import adaptive
from scaleproof.validator.record.status_board import Board, Status


class Hands:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0

    def step(self, seconds: float) -> float:
        self.steps += 1
        self.now_s += seconds
        return seconds


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process the only rank."""
    be_alone(monkeypatch)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """Makes this process the only rank, with an artificial clock."""
    return stand_still(monkeypatch)


def be_alone(patch: pytest.MonkeyPatch) -> None:
    me = rank.Rank(0, 1, torch.device("cpu"), Status(Board.private(), 0), lambda _: None)
    patch.setattr(rank, "_here", [me])


def stand_still(patch: pytest.MonkeyPatch) -> Hands:
    be_alone(patch)
    found = Hands()
    clocks = SimpleNamespace(perf_counter=lambda: found.now_s, process_time=lambda: found.now_s / 2)
    patch.setattr(adaptive, "time", clocks)
    return found
