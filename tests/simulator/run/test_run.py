from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.spans import Phase, Spans, Stream
from scaleproof.simulator.run.breakdown import from_spans, slope
from scaleproof.simulator.run.files import load_run, save
from scaleproof.simulator.run.records import StageMemory
from scaleproof.simulator.run.run import BREAKDOWN, Run


def spans(*rows: tuple[float, ...], overlapped: int = 0) -> Spans:
    """Spans from (rank, step, phase, arrival, start, end) on the main stream, the last `overlapped` on the other."""
    rank, step, phase, arrival_s, start_s, end_s = zip(*rows, strict=True)
    none = [-1] * len(rows)
    stream = [Stream.MAIN] * (len(rows) - overlapped) + [Stream.COMMUNICATION] * overlapped
    return Spans.of(
        {
            "rank": rank, "step": step, "stream": stream, "phase": phase, "stage": none, "microbatch": none,
            "arrival_s": arrival_s, "start_s": start_s, "end_s": end_s, "size_bytes": [0.0] * len(rows),
        }
    )  # fmt: skip


def made(rows: Spans, ends_s: list[float], servers: list[bool], multiplicity: list[int] | None = None) -> Run:
    times = from_spans(
        rows,
        np.array(ends_s),
        servers=np.array(servers),
        multiplicity=None if multiplicity is None else np.array(multiplicity),
    )
    return Run(**vars(times), origin="measured", scenario="s", strategy="data_parallel", samples=8)


ONE = spans(
    (0, 1, Phase.FORWARD, 0, 0, 2),
    (0, 1, Phase.RECEIVE, 2, 5, 6),
    (0, 1, Phase.WAIT, 6, 7, 8),
    (0, 1, Phase.SYNCHRONISE, 8, 9, 10),
)


def test_waiting_and_transfer_are_separate_and_the_remainder_is_other() -> None:
    run = made(ONE, [0, 12], [False])
    assert run.breakdown_s == {
        "compute": 2, "slowest_rank": 0, "exposed_communication": 2, "bubble": 3, "waiting_for_server": 2,
        "waiting_for_ranks": 1, "waiting_for_input": 0, "other": 2,
    }  # fmt: skip
    # how much longer the slowest rank takes than the mean is predicted, and shows in no span: zero
    assert tuple(run.breakdown_s) == BREAKDOWN
    assert run.phase_s["receive"] == 4


def test_warm_up_steps_do_not_count() -> None:
    rows = spans((0, 0, Phase.FORWARD, 0, 0, 9), (0, 1, Phase.FORWARD, 9, 9, 11))
    assert made(rows, [9, 11], [False]).breakdown_s["compute"] == 2


def test_breakdown_excludes_servers_and_weights_folded_ranks() -> None:
    rows = spans((0, 1, Phase.FORWARD, 0, 0, 1), (1, 1, Phase.FORWARD, 0, 0, 4), (2, 1, Phase.OPTIMIZER, 0, 0, 4))
    run = made(rows, [0, 4], [False, False, True], [3, 1, 2])
    assert run.breakdown_s["compute"] == pytest.approx((3 * 1 + 1 * 4) / 4)
    assert (run.ranks, run.compute_ranks) == (6, 4)
    assert run.samples_per_s == 2
    assert run.samples_per_s_per_rank == 0.5


def test_one_slow_step_does_not_change_the_slope() -> None:
    ends_s = np.cumsum([0.0, *[1.0] * 6, 30.0, *[1.0] * 6])
    assert slope(ends_s) == pytest.approx(1.0)


def test_alternating_step_times_count_with_their_mean() -> None:
    assert slope(np.cumsum([0.0, 1.0, 3.0, 1.0, 3.0, 1.0])) == pytest.approx(2.0)


@given(st.floats(1e-6, 1e3), st.integers(2, 30))
def test_the_slope_of_equal_steps_is_the_step_time(step_s: float, steps: int) -> None:
    assert slope(np.arange(steps) * step_s) == pytest.approx(step_s)


def test_breakdown_adds_up_to_the_step_time_if_steps_vary() -> None:
    rows = spans(*[(0, step, Phase.FORWARD, 0, 0, seconds) for step, seconds in enumerate([9, 1, 1, 4], start=0)])
    run = made(rows, [0, 1, 2, 6], [False])
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    assert run.breakdown_s["other"] == pytest.approx(0)


def test_communication_is_hidden_during_compute_and_other_waits() -> None:
    rows = spans(
        (0, 1, Phase.FORWARD, 0, 0, 4),
        (0, 1, Phase.RECEIVE, 4, 7, 8),
        # overlapped with the main stream: two concurrent sends, one of which lasts through the bubble, and an awaited message
        (0, 1, Phase.SEND, 1, 1, 3),
        (0, 1, Phase.SEND, 2, 2, 5),
        (0, 1, Phase.RECEIVE, 7, 7, 8),
        overlapped=3,
    )
    run = made(rows, [0, 8], [False])
    assert run.communication_s == {"exposed": 1, "hidden": 4}
    assert run.bubble_fraction == 3 / 8


def test_communication_beyond_a_step_counts_in_the_next() -> None:
    rows = spans(
        (0, 1, Phase.SYNCHRONISE, 0, 0, 2),
        (0, 1, Phase.FORWARD, 2, 2, 10),
        # begins in this step as it did in the one before, whose last two seconds this one waits for
        (0, 1, Phase.SYNCHRONISE, 7, 7, 12),
        overlapped=1,
    )
    assert made(rows, [0, 10], [False]).communication_s == {"exposed": 2, "hidden": 3}


def test_communication_of_folded_ranks_is_their_mean() -> None:
    rows = spans(
        (0, 1, Phase.FORWARD, 0, 0, 4), (1, 1, Phase.FORWARD, 0, 0, 4), (2, 1, Phase.OPTIMIZER, 0, 0, 4),
        (0, 1, Phase.SEND, 0, 0, 4), (2, 1, Phase.RECEIVE, 0, 0, 4), overlapped=2,
    )  # fmt: skip
    assert made(rows, [0, 4], [False, False, True], [3, 1, 1]).communication_s == {"exposed": 0, "hidden": 3}


def test_utilisation_is_flops_over_the_peak_of_all_training_ranks() -> None:
    run = replace(made(ONE, [0, 10], [False]), compute_ranks=4, peak_flops=100.0, model_flops=2000.0, hardware_flops=3000.0)
    assert (run.mfu, run.hfu) == (0.5, 0.75)
    assert replace(run, peak_flops=0.0).mfu is None
    assert replace(run, model_flops=None).mfu is None


def test_dividing_a_run_by_steps_keeps_its_shares() -> None:
    times = from_spans(ONE, np.array([0, 12]), servers=np.array([False]))
    one = times.divided(4)
    assert one.step_time_s == 3
    assert sum(one.breakdown_s.values()) == 3
    assert one.breakdown_s["bubble"] / 3 == times.breakdown_s["bubble"] / 12


def test_a_saved_run_is_loaded_unchanged(tmp_path: Path) -> None:
    memory = (StageMemory("stage 0", 3.0, {"parameters": 3.0}),)
    run = replace(made(ONE, [0, 12], [False]), memory_by_stage=memory, tokens=8, energy_J={"per_step": 2.0})
    run = replace(run, step_time_interval_s=(11.0, 13.0))
    save(run, tmp_path / "x")
    again = load_run(tmp_path / "x")
    assert again.to_dict() == run.to_dict()
    assert again.step_time_interval_s == (11.0, 13.0)
    assert again.spans is not None
    for name, column in ONE.columns().items():
        assert (getattr(again.spans, name) == column).all()
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["run.json", "spans.npz"]


def test_spans_of_another_run_are_not_loaded(tmp_path: Path) -> None:
    first, second = made(ONE, [0, 12], [False]), made(ONE.where(ONE.end_s < 5), [0, 12], [False])
    save(first, tmp_path / "first")
    save(second, tmp_path / "second")
    # whoever is killed between the two files leaves this
    (tmp_path / "first" / "spans.npz").write_bytes((tmp_path / "second" / "spans.npz").read_bytes())
    with pytest.raises(ValueError, match="spans are of another run"):
        load_run(tmp_path / "first")
    save(replace(first, spans=None), tmp_path / "second")
    assert load_run(tmp_path / "second").spans is None


def test_names_with_control_characters_are_rejected(tmp_path: Path) -> None:
    save(replace(made(ONE, [0, 12], [False]), strategy="\a"), tmp_path)
    with pytest.raises(ValueError, match="its names contain control characters"):
        load_run(tmp_path)


def test_a_full_disk_is_reported_with_the_path_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as failed:
        write_atomically(tmp_path / "run.json", b"{}")
    assert failed.value.filename == str(tmp_path / "run.json")
    assert not list(tmp_path.iterdir())
