"""Published runs of recommenders: how rows are read, and bounds of the errors."""

from __future__ import annotations

import functools
import statistics

import pytest

from scaleproof.proof.published.recommenders import predict
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Dlrm
from scaleproof.simulator.model.recommender.placement import each
from scaleproof.simulator.published.recommenders import recommender_run
from scaleproof.simulator.published.tables import Row, folder, read_table


@functools.cache
def rows() -> list[Row]:
    return list(read_table(folder() / "recommenders.csv")[1])


def row(name: str, **changes: str) -> dict[str, str]:
    return dict(next(row for row in rows() if row["id"] == name)) | changes


def test_a_row_is_a_scenario_with_its_tables() -> None:
    scenario = recommender_run(row("rec-dle_dlrm-006")).scenario
    tables, model = scenario.strategy.plan.tables, scenario.model
    assert isinstance(model, Dlrm)
    assert tables is not None
    assert (tables.shard, tables.optimizer, scenario.training.precision, scenario.training.autocast) == (
        "table", "sgd", "fp16", True,
    )  # fmt: skip
    assert (scenario.framework.name, scenario.cluster.name) == ("ngc-dlrm", "dgx1-v100")
    stored_bytes = sum(table.rows * table.dim for table in each(model.tables)) * 4
    assert stored_bytes == pytest.approx(82 * 2**30, rel=0.001)


def test_replicated_tables_are_parameters_like_others() -> None:
    scenario = recommender_run(row("rec-dle_ncf-007")).scenario
    assert (scenario.strategy.plan.tables, scenario.strategy.workers) == (None, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": "0"}, "trained on processors"),
        ({"batch_total": ""}, "no batch is given"),
        ({"placement": "host memory"}, "tables that the host's processors look up are not modelled"),
        ({"model": "BERT4Rec"}, "no model that ships is called BERT4Rec"),
        ({"dim": "16"}, "rows of 16 elements"),
        ({"optimizer": "LAMB"}, "optimizer LAMB is not modelled"),
    ],
)
def test_rows_that_say_what_is_not_modelled_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        recommender_run(row("rec-dle_dlrm-005", **changes))


def test_errors_of_a_sample_are_bounded() -> None:
    names = ("rec-dle_dlrm-005", "rec-dle_dlrm-016", "rec-dle_ncf-003", "rec-dle_ncf-010", "rec-sok-005")
    found = [predict(row(name)) for name in names]
    assert statistics.median(abs(one.error) for one in found) < 0.25
    assert all(one.interval for one in found)
    assert predict(row(names[0], step_time_s="", samples_per_s="")).skipped == "no step time, and no rate of a batch"
