"""Published training runs: bounds of the errors, and conversion of rows."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

import scaleproof
from scaleproof.proof.published.calibrations import MOST_GPUS, MOST_RUNS, calibrations, chosen, posteriors
from scaleproof.proof.published.prediction import ROW_COLUMNS, Options, Prediction
from scaleproof.proof.published.score import score, summarise
from scaleproof.proof.published.transformer_training import predict
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.frameworks import ABLATIONS
from scaleproof.simulator.predict import predict as predicted_run
from scaleproof.simulator.published.tables import folder, read_table
from scaleproof.simulator.scenario.load import load
from tests.docs.accuracy_page import ALL, CALIBRATED, shown
from tests.validator.kernels.made import written

TABLE = folder() / "transformer_training.csv"
# Mean errors of step times in percent, with nothing fitted and with constants of other rows.
BOUNDS = {
    "korthikanti22": (6, 7), "megatron_sc21_t1": (4, 4), "vtrain_single": (11, 8), "vtrain_multi": (10, 12),
    "bigscience": (21, 16), "llm_foundry": (6, 6), "torchtitan": (14, 10), "nemo": (7, 7), "megatron_bridge": (6, 8),
    "simumax_b200": (10, 4), "mcore_h100_weak": (13, 11), "ultrascale": (55, 23), "dgxc": (5, 5), "internevo": (13, 9),
    "moe_recipes": (15, 6),
}  # fmt: skip
WITH_CONSTANTS = Options(calibrated=True)


def rows() -> list[dict[str, str]]:
    return [dict(row) for row in read_table(TABLE)[1]]


def row(name: str, **changes: str) -> dict[str, str]:
    return next(row for row in rows() if row["id"] == name) | changes


def step(predictions: list[Prediction]) -> Prediction:
    return predictions[0]


def step_s(name: str, options: Options = Options(), **changes: str) -> float:  # noqa: B008 (it never changes)
    return step(predict(row(name, **changes), options)).predicted


@pytest.mark.parametrize(("name", "bounds"), BOUNDS.items())
def test_sets_are_predicted_within_their_bounds(name: str, bounds: tuple[float, float]) -> None:
    for command, bound in zip((ALL, CALIBRATED), bounds, strict=True):
        found = shown(command)["transformer_training"].sets[name].mean
        assert found is not None
        assert found < bound


def test_rows_used_for_fitting_are_few_small_and_not_scored() -> None:
    table = {row["id"]: row for row in rows()}
    for calibration in calibrations():
        assert 0 < len(set(calibration.rows)) == len(calibration.rows) <= MOST_RUNS
        for name in calibration.rows:
            assert table[name]["source_set"] == calibration.sets[0]
            assert int(table[name]["gpus"]) <= MOST_GPUS
            (only,) = predict(table[name], WITH_CONSTANTS)
            assert only.skipped == "constants were fitted on it"


def test_rows_used_for_fitting_do_not_depend_on_measured_times() -> None:
    for calibration in calibrations():
        own = [row for row in rows() if row["source_set"] == calibration.sets[0]]
        same = [row | {"step_time_s": row["step_time_s"] and "1"} for row in own]
        assert chosen(same[::-1]) == chosen(own) == calibration.rows


@pytest.mark.full
def test_fitted_constants_affect_the_other_rows_of_their_set() -> None:
    learned = posteriors(["simumax_b200", "bigscience"])
    assert list(learned) == [("simumax_b200", "B200-SXM")], "bigscience has no small runs"
    rest = [one for one in rows() if one["source_set"] == "simumax_b200" and one["id"] not in calibrations()[6].rows]
    found = [(step(predict(one)), step(predict(one, WITH_CONSTANTS, learned))) for one in rest]
    before, after = found[0]
    assert sum(abs(one.error) for _, one in found) < 0.6 * sum(abs(one.error) for one, _ in found)
    unknown = row("bigscience-0026")
    assert before.interval is not None
    assert after.interval is not None
    assert after.interval[1] / after.interval[0] < before.interval[1] / before.interval[0]
    assert step(predict(unknown, WITH_CONSTANTS, learned)).predicted == step(predict(unknown)).predicted


def test_runs_on_one_kind_of_gpu_say_nothing_of_another() -> None:
    learned = posteriors(["moe_recipes"])
    assert list(learned) == [("moe_recipes", "GB200")]
    for name, changes in (("moe_recipes-15", False), ("moe_recipes-18", True)):
        before, after = (step(predict(row(name), *options)) for options in ((), (WITH_CONSTANTS, learned)))
        assert (after.predicted != before.predicted) is changes


def test_scored_predictions_equal_predict() -> None:
    name = "torchtitan-0001"
    one = step(predict(row(name)))
    assert one.scenario == f"published:{name}"
    run = predicted_run(load(one.scenario))
    assert one.predicted == pytest.approx(run.step_time_s, rel=1e-12)
    assert one.interval == pytest.approx(run.prediction_interval_s)
    assert one.framework == run.framework


def test_more_microbatches_or_fewer_replicas_take_longer() -> None:
    single = row("vtrain_single-0022", recompute="none")
    steps = [step(predict(single | {"global_batch_seqs": str(64 * times)})).predicted for times in (1, 2, 3)]
    # after the first step's gradients every microbatch takes the same time
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], rel=0.01)
    fewer = step(predict(single | {"dp": "4", "gpus": "4"})).predicted
    assert steps[0] < fewer < 2 * steps[0]


def test_recomputation_costs_its_forward_time() -> None:
    none, selective, full = (step_s("korthikanti22-0001", recompute=kind) for kind in ("none", "selective", "full"))
    # the forward pass comes twice, with its collectives; those of the backward pass are partly hidden
    assert none < selective < full < 1.36 * none


def test_memory_and_fit_are_scored_in_separate_sets() -> None:
    found = predict(row("simumax_b200-0001"))
    assert [one.set_name for one in found] == ["simumax_b200", "simumax_b200 memory", "fits: yes"]
    assert found[1].measured == pytest.approx(60.68 * 2**30)
    none, right = predict(row("bigscience-0051"))
    assert none.skipped == "ran out of memory"
    assert (right.set_name, right.error) == ("fits: no", 0)
    wrong = predict(row("bigscience-0051", fits="yes"))[-1]
    assert (wrong.set_name, wrong.error) == ("fits: yes", 1)


def test_blank_cells_are_assumed_and_named() -> None:
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
        ({"cluster": "nowhere", "gpu": "GTX-970"}, "unknown cluster and GPU: nowhere, GTX-970"),
        ({"precision": "int4"}, "unknown precision: int4"),
        ({"microbatch_seqs": "7"}, "microbatches do not divide the batch"),
        ({"ep": "2"}, "experts that the table does not describe"),
        ({"heads": "33", "kv_heads": ""}, "no run that can be read"),
        ({"tp": "3", "gpus": "24"}, "framework: llm-foundry does not support tensor"),
        ({"software": "torchtitan", "tp": "3", "gpus": "24"}, "strategy.tensor: 3 ranks do not divide"),
        ({"layers": "many"}, "no run that can be read"),
        ({"step_time_s": "", "fits": "", "memory_GiB": ""}, "no time"),
    ],
)
def test_rows_that_cannot_be_predicted_are_skipped_with_a_reason(changes: dict[str, str], reason: str) -> None:
    for options in (Options(), WITH_CONSTANTS):
        (only,) = predict(row("llm_foundry-0095", **changes), options)
        assert only.skipped.startswith(reason)


def test_steps_are_faster_without_host_time_or_copies() -> None:
    """A small model on one node, whose host is not much faster than its GPUs."""
    whole_s = step_s("vtrain_single-0022")
    assert step_s("vtrain_single-0022", Options(ablate=("host",))) < whole_s
    assert step_s("vtrain_single-0022", Options(ablate=("copies", "optimizer", "slowest"))) < whole_s


def test_unknown_mechanisms_are_rejected_with_the_known_names() -> None:
    with pytest.raises(InputError, match=f"--ablate hots: no such mechanism; give one of {', '.join(ABLATIONS)}"):
        score(TABLE, Options(ablate=("hots",)))


def test_rows_option_writes_a_line_for_each_scored_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = row("simumax_b200-0001"), row("nemo-0029", software="one of our own"), row("bigscience-0051", precision="int4")
    path, out = written(tmp_path / "some.csv", *rows), tmp_path / "rows.csv"
    assert scaleproof.main(["score", str(path), "--rows", str(out), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert set(plain) == {"table", "sets", "totals", "rows"}
    with out.open(newline="") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    assert tuple(reader.fieldnames or ()) == ROW_COLUMNS
    assert ROW_COLUMNS == (
        "id", "set", "of", "predicted", "measured", "error", "low", "high", "assumed", "framework", "scenario",
    )  # fmt: skip
    speeds = [line for line in lines if line["of"] == "speed"]
    assert [line["id"] for line in speeds] == ["simumax_b200-0001", "nemo-0029"]
    assert [line["of"] for line in lines if line["id"] == "simumax_b200-0001"] == ["speed", "memory", "fit"]
    assert len(lines) == len(plain["rows"]) == sum(one["scored"] for one in plain["sets"].values())
    assert "software" in speeds[1]["assumed"].split()
    for line, one in zip(lines, plain["rows"], strict=True):
        assert line["scenario"] == one["scenario"] == f"published:{line['id']}"
        assert float(line["error"]) == pytest.approx(float(line["predicted"]) / float(line["measured"]) - 1)
    assert all(float(line["low"]) < float(line["predicted"]) < float(line["high"]) for line in speeds)


def test_only_pairs_that_differ_by_more_than_five_percent_count_for_the_order() -> None:
    near, far = (
        [Prediction("a", 1.0, 1.0, inputs=("x",)), Prediction("a", 0.9, other, inputs=("y",))] for other in (1.04, 1.06)
    )
    assert summarise(near)["a"].order_right is None
    assert summarise(far)["a"].order_right == 0
    assert summarise([far[0], replace(far[1], predicted=1.1)])["a"].order_right == 1
