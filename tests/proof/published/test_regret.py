"""Regret of the chosen layouts, on small tables that are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.published.prediction import Prediction
from scaleproof.proof.published.regret import regrets
from scaleproof.proof.published.score import score, summarise, totals
from scaleproof.simulator.published.tables import folder, read_table
from tests.validator.kernels.made import written


def layout(name: str, predicted: float, measured: float, job: str = "7B on 8", fits: bool = True) -> Prediction:
    return Prediction("a", predicted, measured, inputs=(name,), choices=(job,), fits=fits)


def test_the_regret_is_the_chosen_time_over_the_best_measured_one() -> None:
    assert regrets([layout("tp", 1.0, 12.0), layout("pp", 2.0, 10.0), layout("dp", 3.0, 15.0)]) == [pytest.approx(0.2)]
    assert regrets([layout("tp", 2.0, 12.0), layout("pp", 1.0, 10.0)]) == [0.0]


def test_a_layout_that_is_predicted_not_to_fit_is_not_chosen() -> None:
    small, large = layout("dp", 1.0, 10.0, fits=False), layout("pp", 2.0, 11.0)
    assert regrets([small, large]) == [pytest.approx(0.1)]
    # all were measured, so one has to be chosen
    assert regrets([small, replace(large, fits=False)]) == [0.0]


def test_repeated_runs_are_one_layout_with_their_median() -> None:
    repeats = [layout("tp", 1.0, measured) for measured in (10.0, 11.0, 30.0)]
    assert regrets(repeats) == []
    assert regrets([*repeats, layout("pp", 2.0, 10.0)]) == [pytest.approx(0.1)]


def test_only_layouts_of_the_same_job_are_compared() -> None:
    assert regrets([layout("tp", 1.0, 12.0), layout("pp", 2.0, 10.0, job="7B on 16")]) == []
    assert regrets([replace(layout("tp", 1.0, 12.0), choices=()), replace(layout("pp", 2.0, 10.0), choices=())]) == []


def test_sets_and_totals_state_mean_and_worst_regret() -> None:
    good = [layout("tp", 1.0, 10.0), layout("pp", 2.0, 12.0)]
    bad = [layout("tp", 1.0, 13.0, "7B on 16"), layout("pp", 2.0, 10.0, "7B on 16")]
    found = summarise([*good, *bad])["a"]
    assert (found.regret_mean, found.regret_worst) == pytest.approx((0.15, 0.3))
    # the same job in another set is another group
    found = totals([*good, *(replace(one, set_name="b", choices=good[0].choices) for one in bad)])["all"]
    assert (found.regret_mean, found.regret_worst) == pytest.approx((0.15, 0.3))
    alone = summarise(good[:1])["a"]
    assert (alone.regret_mean, alone.regret_worst) == (None, None)


def test_rows_of_training_runs_are_grouped_by_model_gpus_and_batch(tmp_path: Path) -> None:
    rows = {row["id"]: row for row in read_table(folder() / "transformer_training.csv")[1]}
    recomputes = [rows["korthikanti22-0000"], rows["korthikanti22-0001"]]
    slow = recomputes[1] | {"id": "larger", "global_batch_seqs": "8", "dp": "1", "step_time_s": "2.2"}
    found = score(written(tmp_path / "some.csv", *recomputes, slow))
    times = {one.id: one for one in found.predictions if one.of == "speed"}
    assert len({one.choices for one in times.values()}) == 2
    assert times["korthikanti22-0000"].predicted > times["korthikanti22-0001"].predicted
    assert (found.totals["all"].regret_mean, found.totals["all"].regret_worst) == (0.0, 0.0)
