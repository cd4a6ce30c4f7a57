"""Embeddings of a user's module with `sparse=True`: servers receive and send the rows that a batch is expected to look up.

Theory: n lookups of a table of R rows, all equally frequent, touch R·(1 − (1 − 1/R)ⁿ) different rows. A push has their elements
and two numbers of 8 bytes for each, its own and that of a row of the reply, which has elements alone.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.parallelism import DataParallel
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.parameter_server.shards import buckets
from scaleproof.simulator.strategy.scenario_job import program_of

_WORKERS, _SAMPLES = 4, 6
_ITEMS, _FIELDS = (60, 8, 4), (40, 4, 2)
_DENSE = 3 * 8 + 8 + 24 + 1


def scenario(model: Any = "recommender", **strategy: Any) -> Scenario:
    device = {"name": "gpu", "peak": {"fp32": "1 TFLOP/s"}, "memory": "16 GiB", "memory_bandwidth": "100 GB/s"}
    network = {"bandwidth": "10 Gbit/s", "latency": "20 us"}
    cluster = {"nodes": 8, "network": network, "node": {"devices": 1}, "device": device}
    if isinstance(model, str):
        model = {"kind": "traced", "source": f"python:tests.validator.train.models.users:{model}"}
    servers = {"kind": "parameter_server", "workers": _WORKERS, "servers": 1} | strategy
    parts = {"cluster": cluster, "strategy": servers, "batch": {"total": _SAMPLES * _WORKERS}, "training": {"optimizer": "sgd"}}
    return Scenario.model_validate({"model": model, **parts})


def leaving_bytes(given: Scenario, node: int) -> float:
    """Bytes that a node's card sends in a step."""
    program = program_of(given)
    card = program.resources.names.index(f"network {node} out")
    uses = zip(program.uses(), program.amount.tolist(), strict=True)
    return sum(amount * use.per_unit for route, amount in uses for use in route if use.resource == card)


def rows_bytes(rows: float, width: int, numbers: int) -> float:
    return rows * (4 * width + 8 * numbers)


def uniform(rows: int, lookups: float) -> float:
    return rows * (1 - (1 - 1 / rows) ** lookups)


def theory_bytes(numbers: int = 2) -> float:
    """Bytes of a push; without numbers, of a pull."""
    tables = (rows_bytes(uniform(rows, _SAMPLES * lookups), width, numbers) for rows, width, lookups in (_ITEMS, _FIELDS))
    return sum(tables) + 4 * _DENSE


@pytest.mark.parametrize("mode", [{}, {"mode": "asynchronous"}, {"mode": "stale_synchronous", "bound": 2}])
def test_messages_have_the_expected_different_rows_of_a_batch(mode: dict[str, Any]) -> None:
    given = scenario(**mode)
    assert leaving_bytes(given, 0) == pytest.approx(theory_bytes())
    assert leaving_bytes(given, _WORKERS) == pytest.approx(_WORKERS * theory_bytes(numbers=0))


def test_stated_rows_and_skew_replace_the_uniform_distribution() -> None:
    stated = scenario(sparse={"rows": 0.25})
    assert leaving_bytes(stated, 0) == pytest.approx(rows_bytes(15, 8, 2) + rows_bytes(10, 4, 2) + 4 * _DENSE)
    # the more lookups are of the same rows, the fewer rows are different
    skewed = [leaving_bytes(scenario(sparse={"skew": skew}), 0) for skew in (0.0, 1.0, 2.0)]
    assert skewed[0] == pytest.approx(theory_bytes())
    assert skewed == sorted(skewed, reverse=True)


def test_servers_update_and_keep_gradients_of_touched_rows_alone() -> None:
    parts = {
        sparse: buckets(given.model.build_layers(), 1, "bytes", 4, math.inf, given.strategy.sparse, _WORKERS, _SAMPLES)
        for sparse, given in ((True, scenario()), (False, scenario("dense_recommender")))
    }
    ((rows,), (whole,)) = parts[True], parts[False]
    every = sum(width * uniform(rows, _WORKERS * _SAMPLES * lookups) for rows, width, lookups in (_ITEMS, _FIELDS))
    assert rows.touched_by_all.sum() == pytest.approx(every + _DENSE)
    assert whole.touched_by_all.sum() == whole.stored.sum() == rows.stored.sum() == 60 * 8 + 40 * 4 + _DENSE
    sparse, dense = (memory(scenario(name)).servers for name in ("recommender", "dense_recommender"))
    assert sparse is not None
    assert dense is not None
    assert sparse.holders_bytes["parameters"] == dense.holders_bytes["parameters"]
    assert sparse.holders_bytes["gradients"] == pytest.approx(4 * (every + _DENSE))
    assert sparse.holders_bytes["communication"] < dense.holders_bytes["communication"]


def test_modules_without_sparse_gradients_are_sent_whole() -> None:
    assert leaving_bytes(scenario("dense_recommender"), 0) == pytest.approx(4 * (60 * 8 + 40 * 4 + _DENSE))
    assert "rows of" not in predict(scenario("dense_recommender")).provenance.get("notes", "")


def test_what_the_example_does_not_show_is_said() -> None:
    notes = predict(scenario()).provenance["notes"]
    assert "pushes and pulls 30 of 100 rows of fields, items: 6 lookups a sample, as in the example, of rows that are" in notes
    assert "the data decide how many there are" in notes
    assert "rows depend on parameters or random numbers" in predict(scenario("chosen_rows")).provenance["notes"]


def test_other_strategies_count_sparse_gradients_as_dense() -> None:
    workers = scenario().model_copy(update={"strategy": DataParallel(workers=_WORKERS)})
    assert any("fields.weight, items.weight are sparse, but are counted as dense" in text for text in predict(workers).warnings)


@pytest.mark.parametrize(
    ("model", "sparse", "message"),
    [
        ("dense_recommender", {"rows": 0.1}, r"strategy\.sparse: only tables .*sparse=True.*leave sparse out"),
        ("recommender", {"rows": 0.1, "skew": 1}, r"strategy\.sparse\.skew: is of lookups .* in place of rows; leave it out"),
        ({"kind": "gpt", "layers": 1, "hidden": 8, "heads": 1, "vocabulary": 90, "sequence": 8}, {},
         r"strategy\.sparse\.rows: missing: share of the embedding's rows"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(model: Any, sparse: dict[str, Any], message: str) -> None:
    with pytest.raises(ScaleproofError, match=message):
        predict(scenario(model, sparse=sparse))
