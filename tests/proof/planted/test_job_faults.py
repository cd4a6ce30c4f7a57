"""Faults of jobs are named from the files of their runs alone: of artificial records, and of real runs in a lab."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import planted_faults
from scaleproof.proof.planted import job_faults, job_files
from scaleproof.proof.planted.job_faults import KINDS, drawn
from scaleproof.simulator.analysis.diagnosis import Diagnosis
from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.diagnosis.diagnose import diagnose
from scaleproof.validator.preflight.checks import check
from scaleproof.validator.record.recorder import END_OF_STEP, RAW_SPAN
from tests.validator.netlabs import needs_netlab

STAGES, STEPS = 5, 12
FORWARD_S, MESSAGE_S, UPDATE_S = 0.002, 0.005, 0.003


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_the_same_fault_which_can_be_measured(kind: str) -> None:
    fault = drawn(kind, 1)
    assert fault == drawn(kind, 1)
    assert fault != drawn(kind, 2)
    assert fault.without != fault.planted
    for one in (fault.planted, fault.without):
        check(one.scenario, "netlab", None)


def in_turn(
    link: Callable[[int, int], float] = lambda source, target: 1.0, compute: Callable[[int], float] = lambda rank: 1.0
) -> list[bytes]:
    """What the stages of a pipeline record that take turns. link: factor on the time of messages. compute: on that of a rank's
    passes and updates."""
    draw = np.random.default_rng(1)
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(STAGES)]
    free_s = [0.0] * STAGES
    for step in range(STEPS):
        for phase, order in ((Phase.FORWARD, range(STAGES)), (Phase.BACKWARD, range(STAGES)[::-1])):
            sent_s = -1.0
            for before, rank, after in zip([None, *order], order, [*order[1:], None], strict=False):
                match = rank if phase == Phase.FORWARD else STAGES + rank
                if before is not None:
                    end_s = sent_s + MESSAGE_S * link(before, rank) * draw.uniform(0.98, 1.02)
                    own = before if phase == Phase.FORWARD else STAGES + before
                    rows[rank].append(_row(step, Phase.RECEIVE, free_s[rank], end_s, 1e5, before, own))
                    free_s[rank] = end_s
                end_s = free_s[rank] + FORWARD_S * compute(rank) * draw.uniform(0.99, 1.01)
                rows[rank].append(_row(step, phase, free_s[rank], end_s))
                free_s[rank] = sent_s = end_s
                if after is not None:
                    rows[rank].append(_row(step, Phase.SEND, sent_s, sent_s + 1e-4, 1e5, after, match))
        for rank in range(STAGES):
            end_s = free_s[rank] + UPDATE_S * compute(rank)
            rows[rank].append(_row(step, Phase.OPTIMIZER, free_s[rank], end_s))
            rows[rank].append(_row(step, END_OF_STEP, end_s, end_s))
            free_s[rank] = end_s
    return [np.array(own, dtype=RAW_SPAN).tobytes() for own in rows]


def _row(
    step: int, phase: int, begin_s: float, end_s: float, size: float = 0.0, peer: int = -1, match: int = -1
) -> tuple[Any, ...]:
    return (step, 0, phase, -1, 0, begin_s, begin_s, end_s, size, peer, -1, match, -1)


def found(recorded: list[bytes], folder: Path) -> Diagnosis:
    job_files.write(job_faults.drawn("slow link one way", 1).planted.scenario, recorded, folder)
    return diagnose([folder], lambda _: None)[0]


@pytest.mark.parametrize(
    ("link", "rank", "words", "slow"),
    [
        (lambda source, target: 2.0 if source == 2 else 1.0, 2, "messages from rank 2 (host2, GPU 0) run at 50 %", 2),
        (lambda source, target: 2.0 if source == 0 else 1.0, 0, "messages from rank 0 (host0, GPU 0) run at 50 %", 1),
        (lambda source, target: 2.0 if 3 in (source, target) else 1.0, 3, "messages from and to rank 3 (host3, GPU 0) run", 4),
    ],
)
def test_messages_name_the_host_and_direction_of_a_slow_link(
    link: Callable[[int, int], float], rank: int, words: str, slow: int, tmp_path: Path
) -> None:
    (fault,) = found(in_turn(link), tmp_path).faults
    assert (fault.cause, fault.ranks) == ("slow link", (rank,))
    assert fault.words.startswith(words)
    # a message on each slow path in every step
    assert fault.loss_s == pytest.approx(slow * MESSAGE_S, rel=0.05)


def test_links_of_equal_rate_are_not_accused(tmp_path: Path) -> None:
    assert not found(in_turn(), tmp_path).faults


@pytest.mark.parametrize(("rank", "lost_s"), [(0, 2 * FORWARD_S + UPDATE_S), (2, 2 * FORWARD_S)])
def test_a_stage_loses_nothing_in_updates_before_it_waits(rank: int, lost_s: float, tmp_path: Path) -> None:
    """All stages but the first, whose backward pass is the last, wait for messages after their updates anyway."""
    (fault,) = found(in_turn(compute=lambda one: 1.5 if one == rank else 1.0), tmp_path).faults
    assert (fault.cause, fault.ranks) == ("slow device", (rank,))
    assert fault.loss_s == pytest.approx(0.5 * lost_s, rel=0.1)


def test_a_case_is_judged_by_cause_place_and_cost() -> None:
    fault = drawn("slow device", 1)
    ((cause, ranks),) = fault.expected
    other = (min(ranks) + 1) % 4
    named = [(cause, tuple(ranks), 0.02, "right"), ("jitter", (other,), 0.01, "wrong")]
    sides: list[dict[str, Any]] = [{"step_s": step_s, "found": own} for step_s, own in ((0.12, named), (0.1, []))]
    result = planted_faults.judged(fault, *sides)
    assert (result["named"], result["wrong"], result["found_s"]) == (True, ["wrong"], 0.02)
    assert result["loss_s"] == pytest.approx(0.02)
    assert not planted_faults.judged(fault, sides[0] | {"found": named[::-1]}, sides[1])["named"]


@needs_netlab
@pytest.mark.nightly
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks of four hosts need two cores")
@pytest.mark.parametrize("kind", ["slow loader", "slow link one way"])
def test_a_planted_fault_in_a_lab_is_named_from_its_files(kind: str) -> None:
    assert planted_faults.result_of(kind, 1)["named"]
