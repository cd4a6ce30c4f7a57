"""Published training runs: the bounds that predictions keep, and what a row makes of them."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from simulator import library
from simulator.errors import ScaleproofError
from simulator.spread import Spread
from validator.framework_constants import CALIBRATIONS
from validator.frameworks import framework_of
from validator.published import Prediction, SetScore, summarise
from validator.published_transformer_training import predict, predict_calibrated, row_step_s

TABLE = library.ROOT / "published" / "transformer_training.csv"
# Mean errors of step times, with nothing fitted and with constants of other rows.
BOUNDS = {
    "korthikanti22": (0.06, 0.06), "megatron_sc21_t1": (0.06, 0.04), "vtrain_single": (0.15, 0.11),
    "vtrain_multi": (0.12, 0.14), "bigscience": (0.24, 0.10), "llm_foundry": (0.10, 0.08), "torchtitan": (0.16, 0.12),
    "nemo": (0.10, 0.10), "megatron_bridge": (0.10, 0.18), "simumax_b200": (0.13, 0.10), "mcore_h100_weak": (0.18, 0.12),
}  # fmt: skip
# Of large sets every tenth row is tried; programs of more devices take seconds to simulate.
_LARGE, _TENTH, _MOST_GPUS = 100, 10, 600


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tried() -> list[dict[str, str]]:
    size = Counter(row["source_set"] for row in rows())
    few = (row for number, row in enumerate(rows()) if size[row["source_set"]] < _LARGE or number % _TENTH == 0)
    return [row for row in few if int(row["gpus"]) <= _MOST_GPUS]


def row(name: str, **changes: str) -> dict[str, str]:
    return next(row for row in rows() if row["id"] == name) | changes


def step(predictions: list[Prediction]) -> Prediction:
    return predictions[0]


def skipped(**changes: str) -> str:
    (only,) = predict(row("llm_foundry-0095", **changes))
    return only.skipped


def scores(calibrated: bool) -> dict[str, SetScore]:
    """Without intervals, which take most of the time."""
    predicted = predict_calibrated if calibrated else predict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("validator.published_transformer_training.spread", lambda *_: Spread(1.0, 1.0, {}))
        return summarise(one for each in tried() for one in predicted(each))


def test_sets_are_predicted_within_their_bounds() -> None:
    plain, calibrated = scores(False), scores(True)
    for name, bounds in BOUNDS.items():
        for found, bound in zip((plain[name], calibrated[name]), bounds, strict=True):
            assert found.mean is not None
            assert found.mean < bound, name
    assert plain["bigscience"].skipped == {"ran out of memory": 4}
    assert plain["mcore_h100_weak"].assumed == {"recompute": 4, "microbatch_seqs": 4}
    assert sum(score.rows for name, score in plain.items() if name in BOUNDS) == len(tried())


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
