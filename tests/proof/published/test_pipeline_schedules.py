from __future__ import annotations

from itertools import combinations, groupby
from typing import Any

import pytest

from scaleproof.proof.published.pipeline_schedules import PipelineRow, parse_row, predict, step_s
from scaleproof.simulator.common import catalog
from scaleproof.simulator.published.tables import read_table
from tests.docs.accuracy_page import ALL, shown
from tests.validator.verdicts import in_bulk

TABLE = catalog.ROOT / "published" / "pipeline_schedules.csv"


def rows() -> list[dict[str, str]]:
    return [dict(row) for row in read_table(TABLE)[1]]


def row(schedule: str, microbatches: int = 24, model: str = "6.2B") -> dict[str, str]:
    wanted = (schedule, str(microbatches), model)
    return next(each for each in rows() if (each["schedule"], each["microbatches"], each["model"]) == wanted)


def given(schedule: str, **changes: Any) -> PipelineRow:
    return parse_row(row(schedule))._replace(**changes)


def test_every_row_is_scored_within_the_bound() -> None:
    found = shown(ALL)["pipeline_schedules"].lines["all"]
    assert found.rows == found.scored == len(rows())
    assert found.mean is not None
    assert found.worst is not None
    assert found.mean < 3
    assert found.worst < 8


@pytest.mark.parametrize(("model", "least"), [("6.2B", 15), *in_bulk(("", 30))])
def test_predicted_ratios_of_schedules_equal_measured_ones(model: str, least: int) -> None:
    """All pairs, of a model or of all models, that differ by their schedule alone, and by more than two percent."""
    predictions = sorted((predict(each) for each in rows() if model in each["model"]), key=lambda one: one.pairs)
    compared = 0
    for _, group in groupby(predictions, key=lambda one: one.pairs):
        for a, b in combinations(group, 2):
            if abs(a.measured / b.measured - 1) > 0.02:
                assert (a.predicted < b.predicted) == (a.measured < b.measured), (a, b)
                compared += 1
    assert compared > least


def test_1f1b_time_is_the_sum_of_stages_and_messages() -> None:
    """(m + p − 1) · (F + B + W + 2 messages) and an optimizer's step, with nearly equal stages."""
    case = given("1F1B")
    forward_s, input_s, weight_s, send_s, _ = case.times
    theory_s = (case.microbatches + case.ranks - 1) * (forward_s + input_s + weight_s + 2 * send_s)
    assert theory_s < step_s(case) < 1.06 * theory_s


def test_zero_bubble_steps_tend_to_the_work_of_the_busiest_stage() -> None:
    """The blocks of a stage in the middle are more than its share of the model, embedding and head are less."""
    case = given("ZB-2p")
    busy_s = sum(case.times[:3])
    more_s = step_s(case._replace(microbatches=96)) - step_s(case._replace(microbatches=64))
    assert 32 * busy_s < more_s < 32 * busy_s * 32 / 30


def test_synchronised_ranks_wait_for_the_last() -> None:
    """As long as the first rank is ahead: ranks − 1 forward passes and messages, and what else is idle meanwhile."""
    free, together = given("ZB-2p"), given("ZB-2p with all-reduce sync")
    assert (free.synchronised, together.synchronised) == (False, True)
    ahead_s = (free.ranks - 1) * (free.times.forward + free.times.send)
    assert 0.3 * ahead_s < step_s(together) - step_s(free) < 1.1 * ahead_s
    assert step_s(given("1F1B", synchronised=False)) == pytest.approx(step_s(given("1F1B")), rel=0.01)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step_time_s": ""}, "no time of the step, of passes or of messages, or no readable shape"),
        ({"forward_ms": ""}, "no time of the step, of passes or of messages, or no readable shape"),
        ({"p2p_ms": "0"}, "no time of the step, of passes or of messages, or no readable shape"),
        ({"stages": "eight"}, "no time of the step, of passes or of messages, or no readable shape"),
        ({"seq_len": "9" * 30}, "no time of the step, of passes or of messages, or no readable shape"),
        ({"microbatches": "-4"}, "no time of the step, of passes or of messages, or no readable shape"),
        ({"schedule": "PipeDream"}, "unknown schedule: PipeDream"),
        ({"gpus": "16"}, "16 GPUs for 8 stages"),
        ({"layers": "31"}, "33 layers, with embedding and head, on 8 stages"),
        ({"schedule": "1F1B-I", "microbatches": "25"}, "strategy.microbatches: interleaved_1f1b runs its microbatches in"),
    ],
)
def test_rows_that_cannot_be_predicted_are_skipped_with_their_reason(change: dict[str, str], reason: str) -> None:
    found = predict(row("ZB-2p") | change)
    assert found.skipped.startswith(reason)
