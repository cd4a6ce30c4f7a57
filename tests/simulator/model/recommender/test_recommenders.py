"""Recommenders: parameters, the placement of tables, what lookups touch, and the bytes of every exchange."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from scaleproof.simulator.analysis.planner.space import spaces
from scaleproof.simulator.common.errors import FieldError, ScaleproofError
from scaleproof.simulator.model.layers import Shard
from scaleproof.simulator.model.recommender import greedy
from scaleproof.simulator.model.recommender.dlrm import Dlrm
from scaleproof.simulator.model.recommender.lookups import LookupDistribution, state_bytes
from scaleproof.simulator.model.recommender.parts import lookups_of
from scaleproof.simulator.model.recommender.placement import EmbeddingTable, Tables, each, imbalance, place
from scaleproof.simulator.parallelism.parameter_server import Sparse
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.parameter_server.shards import buckets

_TABLES = tuple(
    EmbeddingTable(rows=rows, dim=16, pooling=pooling) for rows, pooling in ((1000, 1), (100, 3), (5000, 2), (64, 1))
)
_MODEL = Dlrm(tables=_TABLES, dense=4, bottom=(32, 16), top=(8, 1))


def _model(name: str) -> Dlrm:
    model = load_model(name)
    assert isinstance(model, Dlrm)
    return model


@pytest.mark.parametrize(
    ("name", "mlps"),
    [
        ("dlrm-small", [[13, 512, 256, 128], [27 * 26 // 2 + 128, 1024, 1024, 512, 256, 1]]),
        ("ncf", [[256, 256, 128, 64], [128, 1]]),
        ("two-tower", [[64, 128, 64], [64, 128, 64]]),
    ],
)
def test_parameters_are_those_of_tables_and_mlps(name: str, mlps: list[list[int]]) -> None:
    model = _model(name)
    rows = sum(table.rows * table.dim for table in each(model.tables))
    assert model.parameters() == rows + sum(a * b + b for widths in mlps for a, b in itertools.pairwise(widths))


def test_measured_times_are_those_of_equal_tables_alone() -> None:
    """Layers with equal signatures take the times that were measured for one of them."""

    def signature(model: Dlrm = _MODEL, tables: Tables | None = None) -> str:
        return model.build_layers(Shard(tables=tables, workers=2))[0].signature

    others = (_MODEL.model_copy(update={"tables": _TABLES[:3]}), _MODEL.model_copy(update={"bottom": (8, 16)}))
    divided = (Tables(), Tables(shard="row"), Tables(shard="column"))
    assert len({signature(), *map(signature, others), *(signature(tables=how) for how in divided)}) == 6
    assert signature(_MODEL.model_copy()) == signature()


def test_owners_of_more_than_their_part_move_the_rest_in_one_direction() -> None:
    """An owner of all four tables of 16 columns sends another worker's outputs and receives none; it receives the indices of
    seven lookups a sample, and sends none. With three of four tables it receives the outputs of one."""
    layers = [
        _MODEL.build_layers(Shard(tables=Tables(plan=plan), workers=2))[0]
        for plan in ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 1))
    ]
    all_own, uneven, even = ([(one.elements, one.one_way) for one in layer.exchanges] for layer in layers)
    assert all_own == [(2 * 7, 2 * 7), (2 * 64, 2 * 64), (2 * 64, 2 * 64)]
    assert uneven[1:] == [(2 * 48, 2 * (48 - 16))] * 2
    # four and three lookups
    assert even == [(2 * 4, 2 * (4 - 3)), (64, 0), (64, 0)]


def test_measured_all_to_alls_are_of_equal_parts() -> None:
    """Where an all-to-all of equal parts was measured to take three times as long as links need, what moves in one direction
    alone does not."""

    def forward_s(plan: tuple[int, ...], measured: bool) -> float:
        curve = {"op": "alltoall", "ranks": 2, "nodes": 2, "latency": "0 us", "bandwidth": "4 MB/s"}
        changes = {"cluster.collectives.measured": [curve]} if measured else {}
        fields = {
            "model": _MODEL, "cluster": "netlab-100mbit", "batch": 8192, "framework": "ideal",
            "strategy": {"kind": "data_parallel", "workers": 2, "overlap": False, "tables": {"plan": plan}},
        }  # fmt: skip
        return timed(load(fields, changes)).step_time_s

    plans = ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 1))
    all_own, uneven, even = (forward_s(plan, True) - forward_s(plan, False) for plan in plans)
    assert all_own == pytest.approx(0, abs=1e-3)
    assert even > 0.1
    # outputs of one table in place of two, and indices of one lookup in place of three, move in both directions
    assert uneven == pytest.approx((2 * 4 * 16 + 8 * 1) / (2 * 4 * 32 + 8 * 3) * even, rel=0.02)


@pytest.mark.parametrize("lookups", [1, 50, 5000])
@pytest.mark.parametrize(
    "distribution", [LookupDistribution(3000, 1.2), LookupDistribution(3000, 0.0), LookupDistribution(300, 0, (0.9, 0.1))]
)
def test_distinct_rows_are_their_expected_number(distribution: LookupDistribution, lookups: int) -> None:
    ranks = np.arange(1.0, distribution.rows + 1)
    weights = np.repeat(distribution.hot, 150) if distribution.hot else ranks**-distribution.skew
    probabilities = weights / weights.sum()
    exact = (1 - (1 - probabilities) ** lookups).sum()
    assert distribution.distinct(lookups) == pytest.approx(exact, rel=0.01)
    assert distribution.share_of(distribution.rows / 2) == pytest.approx(
        probabilities[: distribution.rows // 2].sum(), rel=0.01
    )


@pytest.mark.parametrize("shard", ["table", "row", "column"])
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_each_parameter_has_one_owner(shard: str, workers: int) -> None:
    owned = Counter(
        (part.table, row, column)
        for part in place(_TABLES[1::2], Tables.model_validate({"shard": shard}), workers)
        for row in part.rows
        for column in part.columns
        if part.owner < workers
    )
    assert set(owned.values()) == {1}
    assert len(owned) == (100 + 64) * 16


def test_greedy_plans_are_within_graham_of_the_bound() -> None:
    weights = np.random.default_rng(0).lognormal(size=200).tolist()
    for bins in (2, 7, 32):
        heaviest = max(greedy.loads(weights, greedy.assign(weights, bins), bins))
        bound = greedy.lower_bound(weights, bins)
        assert bound <= heaviest <= (4 / 3) * bound * (1 + 1e-9)
    assert greedy.lower_bound([5, 5, 5], 2) == 10


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_exchanges_have_the_bytes_of_theory(workers: int) -> None:
    outputs, lookups = 4 * 16, 7
    for shard in ("column", "table", "row"):
        how = Tables.model_validate({"shard": shard})
        layer = _MODEL.build_layers(Shard(tables=how, workers=workers))[0]
        sizes = [(one.op, one.elements, one.backward) for one in layer.exchanges]
        heaviest = max(Counter(part.owner for part in place(_TABLES, how, workers)).values()) * 16 * workers
        pooled = outputs if shard == "column" else max(outputs, heaviest)
        if shard == "row":
            assert sizes[1:] == [("reduce_scatter", workers * outputs, False), ("all_gather", workers * outputs, True)]
            # the fullest of ranges that differ by a row
            assert lookups <= sizes[0][1] <= lookups + 1
        else:
            assert sizes[1:] == [("alltoall", pooled, False), ("alltoall", pooled, True)]
            assert sizes[0][1] >= lookups


def test_sharded_rows_have_no_dense_gradients_and_each_byte_is_stored_once() -> None:
    how = Tables.model_validate({"shard": "row", "optimizer": "adagrad", "replicate_below": 100})
    whole, shared = (_MODEL.build_layers(shard)[0] for shard in (Shard(), Shard(tables=how, workers=4)))
    assert whole.trained_parameters - shared.trained_parameters == 16 * (1000 + 100 + 5000)
    assert shared.table_bytes == 16 * (250 + 25 + 1250) * 8
    assert state_bytes("rowwise_adagrad", 16) == 4
    on_host = _MODEL.build_layers(Shard(tables=how.model_copy(update={"on": "host", "cache": 0.1}), workers=4))[0]
    assert on_host.table_bytes == pytest.approx(0.1 * on_host.host_table_bytes)


def test_imbalance_is_the_busiest_over_the_mean() -> None:
    table_wise, bound = imbalance(_TABLES, Tables(), 4)
    assert table_wise == pytest.approx(3 / (7 / 4))
    assert bound == pytest.approx(table_wise)
    assert imbalance(_TABLES, Tables(shard="column"), 4)[0] == pytest.approx(1)


def test_a_batch_reads_rows_that_occur_twice_once() -> None:
    (lookup,) = lookups_of(_MODEL.build_layers())
    few, many = (lookup.forward_bytes(samples, 4) / samples for samples in (10, 100_000))
    assert many < few
    assert 0 < lookup.repeated_bytes(10) < lookup.repeated_bytes(100)
    assert lookup.backward_bytes(10, 4) > lookup.forward_bytes(10, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shard": "row"}, "8 shards for the 4 rows of table 1; set strategy.tables.replicate_below=8"),
        ({"plan": [0, 8]}, "there is no worker 8; they are numbered 0 to 7"),
        ({"plan": [0]}, "1 owners for 2 parts of tables; give one for each, or plan=greedy"),
    ],
)
def test_bad_placements_are_explained(fields: dict[str, object], message: str) -> None:
    tables = (EmbeddingTable(rows=100, dim=8), EmbeddingTable(rows=4, dim=8))
    with pytest.raises(FieldError, match=message):
        place(tables, Tables.model_validate(fields), 8)


def _scenario(*overrides: str) -> Scenario:
    return load("dlrm-dcnv2-64-h100", overrides)


def test_tables_that_fit_nowhere_are_refused() -> None:
    overrides = ("strategy.workers=1", "cluster.nodes=1", "batch=1024", "strategy.tables.precision=fp32")
    message = r"strategy.tables: the fullest worker's tables take 19\d GiB.*divide them by row or column, add workers"
    with pytest.raises(ScaleproofError, match=message):
        _scenario(*overrides)
    found = _scenario(*overrides, "strategy.tables.on=host", "strategy.tables.cache=0.05", "cluster.node.host.memory=1 TiB")
    run = predict(found)
    assert run.fits
    assert {"to host send", "from host send"} <= {f"{one.dimension} {one.collective}" for one in run.communication}


def test_entries_of_lists_are_set_by_their_numbers() -> None:
    changed = _scenario("model.tables.3.rows=4000", "model.top.0=2048")
    assert isinstance(changed.model, Dlrm)
    assert changed.model.tables[3].rows == 4000
    assert changed.model.top[0] == 2048
    with pytest.raises(ScaleproofError, match=r"^--set model.tables.3.rows=-4: model.tables.3.rows: must be greater than 0"):
        _scenario("model.tables.3.rows=-4")
    for entry in ("26", "x"):
        with pytest.raises(
            ScaleproofError, match=f"model.tables is a list, whose entries are numbered, 0 to 25; '{entry}' is none"
        ):
            _scenario(f"model.tables.{entry}.rows=4")


def test_tables_of_servers_are_sparse() -> None:
    with pytest.raises(ScaleproofError, match=r"servers have tables by strategy\.sparse; leave tables out"):
        _scenario("strategy={kind: parameter_server, workers: 64, servers: 8, tables: {shard: row}}")


def test_all_to_alls_of_a_step_are_those_of_theory() -> None:
    run = predict(_scenario("strategy.tables.least_columns=2"), interval=False)
    (exchanges,) = (one for one in run.communication if one.dimension == "table")
    # indices of 8 bytes, each sent to every worker that has a range of columns, rows and gradients of 2 bytes
    pooling = sum(table.pooling for table in each(_model("dlrm-dcnv2").tables))
    assert exchanges.calls == 3
    assert exchanges.size_bytes == pytest.approx(1024 * (8 * 64 * pooling + 2 * 2 * 26 * 128))
    assert any("lookups take" in note and "all workers have the same load" in note for note in run.notes)
    whole = predict(_scenario("strategy.tables.shard=table"), interval=False)
    assert any(
        "the busiest worker has 29.9 times the mean load, no plan of these parts less than 29.9" in note for note in whole.notes
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hot": [0.5, 0.4]}, "shares of lookups sum to 0.9, not 1; give shares that sum to one"),
        ({"hot": [0.5, 0.5], "rows": 1}, "2 shares for 1 rows"),
    ],
)
def test_bad_distributions_are_explained(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EmbeddingTable.model_validate({"rows": 10, "dim": 4} | fields)


def test_servers_send_the_rows_that_samples_touch() -> None:
    layers = _MODEL.build_layers()
    dense = sum(layer.trained_parameters for layer in layers) - 16 * (1000 + 100 + 5000 + 64)
    (whole,) = buckets(layers, 1, "bytes", 4, math.inf, Sparse(rows=0.01), 2, 1)
    # an index of 8 bytes for 16 elements of 4
    rows = 0.01 * (1000 + 100 + 5000 + 64)
    assert whole.pulled_bytes.sum() == pytest.approx(4 * dense + rows * 16 * 4)
    # the numbers of the rows, and of those of the reply
    assert whole.pushed_bytes.sum() == pytest.approx(whole.pulled_bytes.sum() + rows * 2 * 8)


def test_a_plan_divides_tables_of_a_scenario_that_does_not() -> None:
    """Tables with fewer rows than workers are replicated by rows, and rows have the optimizer of the other parameters."""
    scenario = load("dlrm-dcnv2", ["cluster=dgx-h100", "cluster.nodes=8", "batch=65536", "strategy.workers=64"])
    tried = [space.scenario.strategy.plan.tables for space in spaces(scenario, 64)]
    assert {None if how is None else (how.shard, how.replicate_below, how.optimizer) for how in tried} == {
        None, ("column", 0, "adam"), ("table", 0, "adam"), ("row", 64, "adam"),
    }  # fmt: skip


def test_ranges_of_columns_have_the_least_width() -> None:
    """FBGEMM's kernels read four elements of a row at once."""
    wide = (EmbeddingTable(rows=1000, dim=128),)
    widths = {
        least: {len(part.columns) for part in place(wide, Tables(shard="column", least_columns=least), 128)}
        for least in (1, 4, 96, 128)
    }
    assert widths == {1: {1}, 4: {4}, 96: {128}, 128: {128}}
    assert {len(part.columns) for part in place(wide, Tables(shard="column"), 128)} == {4}
    assert {len(part.columns) for part in place((EmbeddingTable(rows=9, dim=2),), Tables(shard="column"), 8)} == {2}


def test_only_tables_on_hosts_have_a_cache() -> None:
    with pytest.raises(ValidationError, match="give on: host too, or leave cache out"):
        Tables(cache=0.2)
    assert Tables(cache=0.2, on="host").cache == 0.2


def test_a_plan_tries_each_way_to_divide_tables() -> None:
    scenario = _scenario("strategy.tables.replicate_below=100000")
    tried = [space.scenario.strategy.plan.tables for space in spaces(scenario, 64)]
    assert [how.shard for how in tried if how is not None] == ["column", "table", "row"]
    assert all(how is not None and how.replicate_below == 100_000 for how in tried)
