"""Warnings about processor time taken by other processes."""

from __future__ import annotations

import pytest

from scaleproof.proof.elastic import foreign_load
from scaleproof.proof.elastic.foreign_load import ForeignLoad
from scaleproof.validator.record.cpu_usage import Usage


def watched(monkeypatch: pytest.MonkeyPatch, elapsed_s: float, busy_s: float, own_s: float) -> ForeignLoad:
    """Two cores that each worked for `busy_s` seconds."""
    usages = iter([Usage(0.0, {0: 0.0, 1: 0.0}, 0.0), Usage(elapsed_s, {0: busy_s, 1: busy_s}, 0.0)])
    own = iter([0.0, own_s])
    monkeypatch.setattr(Usage, "now", lambda: next(usages))
    monkeypatch.setattr(foreign_load, "_own_s", lambda: next(own))
    with ForeignLoad() as watch:
        pass
    return watch


def test_processor_time_of_other_processes_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch, elapsed_s=10.0, busy_s=8.0, own_s=4.0)
    assert watch.load == pytest.approx(0.6)
    assert watch.warning == "other work used 60 % of the cores during the run; measure on a quiet machine"


def test_a_quiet_machine_gives_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(monkeypatch, elapsed_s=10.0, busy_s=5.0, own_s=9.0)
    assert watch.load == pytest.approx(0.05)
    assert watch.warning == ""
