"""Published training runs: the bounds that predictions keep, and what a row makes of them."""

from __future__ import annotations

import csv

import pytest

from simulator import library
from simulator.errors import ScaleproofError
from tests.accuracy_page import ALL, CALIBRATED, shown
from validator.framework_constants import CALIBRATIONS
from validator.frameworks import framework_of
from validator.published import Prediction
from validator.published_transformer_training import predict, predict_calibrated, row_step_s

TABLE = library.ROOT / "published" / "transformer_training.csv"
# Mean errors of step times in percent, with nothing fitted and with constants of other rows.
BOUNDS = {
    "korthikanti22": (6, 6), "megatron_sc21_t1": (6, 4), "vtrain_single": (15, 11), "vtrain_multi": (12, 14),
    "bigscience": (24, 10), "llm_foundry": (10, 8), "torchtitan": (16, 12), "nemo": (10, 10), "megatron_bridge": (10, 18),
    "simumax_b200": (13, 10), "mcore_h100_weak": (18, 12),
}  # fmt: skip


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def row(name: str, **changes: str) -> dict[str, str]:
    return next(row for row in rows() if row["id"] == name) | changes


def step(predictions: list[Prediction]) -> Prediction:
    return predictions[0]


def skipped(**changes: str) -> str:
    (only,) = predict(row("llm_foundry-0095", **changes))
    return only.skipped


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items())
def test_sets_are_predicted_within_their_bounds(name: str, bounds: tuple[float, float]) -> None:
    for command, bound in zip((ALL, CALIBRATED), bounds, strict=True):
        found = shown(command)["transformer_training"].sets[name].mean
        assert found is not None
        assert found < bound


def test_every_set_has_a_bound() -> None:
    assert set(BOUNDS) == {row["source_set"] for row in rows()}


def test_rows_that_constants_were_fitted_on_are_few_and_left_out() -> None:
    table = {row["id"]: row for row in rows()}
    for family, calibration in CALIBRATIONS.items():
        assert 0 < len(set(calibration.rows)) == len(calibration.rows) <= 20
        for name in calibration.rows:
            assert framework_of(table[name]["software"]).family == family
            (only,) = predict_calibrated(table[name])
            assert only.skipped == "constants were fitted on it"


def test_a_prediction_comes_from_what_the_row_says_of_the_run_alone() -> None:
    original = row("torchtitan-0001")
    renamed = original | {"id": "x", "source_set": "y", "source": "z", "note": "", "step_time_s": "1", "measured_as": "w"}
    assert step(predict(renamed)).predicted == step(predict(original)).predicted
    assert step(predict(renamed)).set_name == "y"
    assert step(predict(renamed)).measured == 1


def test_more_microbatches_take_longer_and_fewer_replicas_too() -> None:
    single = row("vtrain_single-0022", recompute="none")
    steps = [step(predict(single | {"global_batch_seqs": str(64 * times)})).predicted for times in (1, 2, 3)]
    # after the first step's gradients every microbatch takes the same time
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], rel=0.01)
    fewer = step(predict(single | {"dp": "4", "gpus": "4"})).predicted
    assert steps[0] < fewer < 2 * steps[0]


def test_recomputation_costs_what_it_does_again() -> None:
    name = "korthikanti22-0001"
    none, selective, full = (step(predict(row(name, recompute=kind))).predicted for kind in ("none", "selective", "full"))
    assert none < selective < full < 4 / 3 * none


def test_memory_and_whether_it_fits_have_sets_of_their_own() -> None:
    found = predict(row("simumax_b200-0001"))
    assert [one.set_name for one in found] == ["simumax_b200", "simumax_b200 memory", "fits: yes"]
    assert found[1].measured == pytest.approx(60.68 * 2**30)
    none, right = predict(row("bigscience-0051"))
    assert none.skipped == "ran out of memory"
    assert (right.set_name, right.error) == ("fits: no", 0)
    wrong = predict(row("bigscience-0051", fits="yes"))[-1]
    assert (wrong.set_name, wrong.error) == ("fits: yes", 1)


def test_blanks_are_assumed_and_named() -> None:
    found = step(predict(row("nemo-0029", vocab="")))
    assert found.assumed == ("vocab", "recompute")
    said = step(predict(row("nemo-0029", note="vocabulary assumed")))
    assert (said.predicted, said.assumed) == (found.predicted, found.assumed)
    largest = step(predict(row("mcore_h100_weak-0000")))
    four = step(predict(row("mcore_h100_weak-0000", microbatch_seqs="4")))
    assert largest.predicted == four.predicted
    assert "microbatch_seqs" in largest.assumed
    assert "microbatch_seqs" not in four.assumed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"software": "MaxText"}, "unknown software: MaxText"),
        ({"cluster": "nowhere"}, "no cluster is called 'nowhere'"),
        ({"precision": "int4"}, "unknown precision: int4"),
        ({"microbatch_seqs": "7"}, "microbatches do not divide the batch"),
        ({"ep": "2"}, "experts that the table does not describe"),
        ({"heads": "33", "kv_heads": ""}, "no run that can be read"),
        ({"tp": "3", "gpus": "24"}, "strategy.tensor: 3 ranks do not divide"),
        ({"layers": "many"}, "no run that can be read"),
        ({"step_time_s": "", "fits": "", "memory_GiB": ""}, "no time"),
    ],
)
def test_what_cannot_be_predicted_is_skipped_with_its_reason(changes: dict[str, str], reason: str) -> None:
    assert skipped(**changes).startswith(reason)
    assert step(predict_calibrated(row("llm_foundry-0095", **changes))).skipped.startswith(reason)


def test_a_row_without_columns_is_skipped() -> None:
    assert [one.skipped for one in predict({"software": "NeMo"})] == ["no run that can be read"]


def test_a_row_may_be_timed_in_another_framework() -> None:
    here = row("llm_foundry-0095")
    assert row_step_s(here, framework_of("torchtitan compile=True")) != row_step_s(here, framework_of("llm-foundry FSDP"))
    with pytest.raises(ScaleproofError):
        row_step_s(here | {"precision": "int4"}, framework_of("llm-foundry FSDP"))
