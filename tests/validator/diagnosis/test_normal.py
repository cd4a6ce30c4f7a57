"""Whether a job's speed is normal, and what would help: predictions of the same job and of other layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from scaleproof.reports.descriptions.diagnosis import describe
from scaleproof.simulator.analysis.diagnosis import Normal
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.diagnosis.diagnose import diagnose
from scaleproof.validator.diagnosis.normal import compared
from tests.validator.diagnosis.jobs import megatron_log

# tensor parallelism over a node is a poor choice for a model of this size
JOB = {
    "name": "titan",
    "model": "llama-3-8b",
    "cluster": "dgx-h100",
    "framework": "torchtitan",
    "strategy": {"kind": "hybrid", "workers": 2, "tensor": 8, "microbatches": 16},
    "batch": {"total": 256},
    "training": {"precision": "bf16", "zero": 3, "optimizer": "adam", "recompute": "full"},
}


def _normal(folder: Path, seconds: Sequence[float], overrides: Sequence[str] = ()) -> tuple[Normal | None, tuple[str, ...]]:
    found, evidence = diagnose([megatron_log(folder / "train.log", seconds)], lambda _: None)

    def scenario(more: Sequence[str]) -> Scenario:
        return load(JOB, [*overrides, *more])

    found = compared(found, evidence.logs, scenario)
    return found.normal, (*found.notes, *(note for section in describe(found).sections for table in section.tables
                                          for note in table.notes))  # fmt: skip


@pytest.mark.full
def test_other_software_and_layouts_are_offered_with_their_gains(tmp_path: Path) -> None:
    normal, notes = _normal(tmp_path, [40.0 if number < 60 else 50.0 for number in range(120)])
    assert normal is not None
    assert normal.low_s < normal.measured_s < normal.high_s
    assert normal.words.startswith("normal for this software")
    gains = {one.change: one for one in normal.what_ifs}
    layout = next(change for change in gains if change.startswith("the best layout: "))
    assert {"as before: since iteration 61 (10:40:50)", "the framework torchtitan-compiled"} < set(gains)
    assert gains[layout].gain == max(one.gain for one in normal.what_ifs) > 1
    for one in gains.values():
        assert one.low is None or one.high is None or one.low <= one.gain <= one.high
    assert normal.mfu is not None
    assert normal.best_mfu is not None
    assert normal.best_mfu > 2 * normal.mfu
    assert any("MFU; this software usually reaches" in note and "the best layout would give" in note for note in notes)
    assert normal.evidence is not None
    assert any("torchtitan" in one.id for one in normal.evidence.runs)


def test_logs_of_other_jobs_are_not_compared(tmp_path: Path) -> None:
    normal, notes = _normal(tmp_path, [40.0] * 30, ["batch.total=512"])
    assert normal is None
    assert "the job has a global batch of 256 sequences, titan describes 512" in notes[0]
    other = {"scenario": "titan", "framework": "torchtitan", "predicted_s": 38.4, "low_s": 32.3, "high_s": 52.1}
    normal = Normal(**other, measured_s=0.5, mfu=11.7)
    assert normal.words.startswith("the step times are not of titan, of which they mean")


@pytest.mark.parametrize("change", [0.1, 0.4])
def test_the_interval_of_a_measured_gain_narrows_with_the_number_of_steps(change: float, tmp_path: Path) -> None:
    widths = []
    for count in (30, 300):
        steps_s = [1.0 + 0.05 * ((7 * number) % 5 - 2) / 2 + change * (number >= count) for number in range(2 * count)]
        (fault,) = diagnose([megatron_log(tmp_path / "train.log", steps_s)], lambda _: None)[0].faults
        assert fault.error is not None
        assert fault.loss_s == pytest.approx(change, rel=max(0.05, 3 * fault.error))
        widths.append(fault.error)
    assert widths[1] == pytest.approx(widths[0] / 10**0.5, rel=0.1)
