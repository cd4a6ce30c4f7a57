"""Verification results of measured runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scaleproof.simulator.common.spans import Phase, Spans, Stream
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import MeasureOptions, measure


def deviation(scenario: Scenario) -> float:
    """Relative deviation of the ranks' parameters from those of one reference process."""
    return deviation_of(measure(scenario, watch=MeasureOptions(verify=True)))


def deviation_of(run: Run) -> float:
    """Relative deviation of a verified run."""
    assert run.verified is not None
    return float(run.verified.deviation)


def at_night(*values: Any) -> list[Any]:
    """Parameters of tests that run nightly only, since other tests cover nearly the same."""
    return [pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.nightly) for value in values]


def in_bulk(*values: Any) -> list[Any]:
    """Parameters of tests that run with all tests only, since one of each kind is enough before a commit."""
    return [pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.full) for value in values]


def main_of(run: Run, rank: int) -> Spans:
    """What holds a rank up, in its order."""
    assert run.spans is not None
    return run.spans.where((run.spans.rank == rank) & (run.spans.stream == Stream.MAIN))


def collectives(run: Run, rank: int = 0) -> Counter[float]:
    """How often each size of collective, in bytes, occurs on a rank in the last step. Predicted runs give the bytes that a rank
    sends, measured ones the size of the whole tensor."""
    spans = run.spans
    assert spans is not None
    chosen = (spans.stream == Stream.COMMUNICATION) & (spans.phase == Phase.SYNCHRONISE)
    return Counter(spans.where(chosen & (spans.rank == rank) & (spans.step == spans.step.max())).size_bytes.tolist())


def in_turn(spans: Spans) -> bool:
    """Whether the rank whose main stream this is does one thing at a time."""
    return bool((spans.arrival_s[1:] >= spans.end_s[:-1] - 1e-9).all())


def paced(scenario: Scenario) -> Scenario:
    """The scenario with emulated compute."""
    return scenario.model_copy(update={"compute": "paced"})
