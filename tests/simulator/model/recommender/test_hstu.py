"""Recommenders of sequences of interactions (HSTU): parameters, FLOPs, activations, and the bytes of exchanges."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from scaleproof.simulator.analysis.planner.space import spaces
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model import Hstu
from scaleproof.simulator.model.layers import Shard
from scaleproof.simulator.model.recommender.parts import lookups_of
from scaleproof.simulator.model.recommender.placement import EmbeddingTable, Tables
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model

_TABLES = (EmbeddingTable(rows=1000, dim=64), EmbeddingTable(rows=8, dim=64))
_MODEL = Hstu(tables=_TABLES, layers=3, hidden=64, heads=4, width=8, value_width=16, sequence=32, top=(16, 2))


def test_parameters_are_those_of_tables_products_biases_and_the_mlp() -> None:
    """A block has factors, values, queries and keys from one product, biases of 2·32 − 1 distances and of 129 ranges of times,
    and a projection with a bias; norms have none (generative-recommenders, sequential/hstu.py)."""
    block = 64 * (2 * 4 * 16 + 2 * 4 * 8) + (2 * 32 - 1) + 129 + (4 * 16 * 64 + 64)
    assert _MODEL.parameters() == 1008 * 64 + 3 * block + (64 * 16 + 16) + (16 * 2 + 2)


def test_flops_are_those_of_two_products_and_of_all_scores_and_values() -> None:
    block = 2 * 32 * 64 * (2 * 64 + 2 * 32) + 2 * 4 * 32 * 32 * (8 + 16) + 2 * 32 * 64 * 64
    head = 2 * 32 * (64 * 16 + 16 * 2)
    assert sum(layer.forward_flops for layer in _MODEL.build_layers()) == 3 * block + head


def test_a_block_keeps_14_bytes_for_each_element_of_a_token() -> None:
    """arXiv 2402.17152, section 3.3, with heads that are as wide as a token in all; a transformer's block keeps 34 of them
    (arXiv 2205.05198, equation 1, without scores)."""
    model = _MODEL.model_copy(update={"width": 16})
    block = model.build_layers()[1]
    assert sum(kept.elements for kept in block.kept) * 2 == 14 * 32 * 64


def test_tables_in_turns_have_a_token_each_and_the_mlp_reads_those_of_the_first() -> None:
    sums, turns = _MODEL.build_layers(), _MODEL.model_copy(update={"interleaved": True}).build_layers()
    (of_sums,), (of_turns,) = lookups_of(sums), lookups_of(turns)
    assert of_sums.lookups(1) == 2 * 32
    assert of_turns.lookups(1) == 32
    assert [turns[-1].output_elements, sums[-1].output_elements] == [16 * 2, 32 * 2]


@pytest.mark.parametrize("shard", ["table", "column", "row"])
def test_workers_exchange_an_output_for_each_token_and_table(shard: str) -> None:
    """A worker's samples have 32 tokens with rows of two tables, 64 wide; four workers own equal parts of them."""
    layer = _MODEL.build_layers(Shard(tables=Tables.model_validate({"shard": shard}), workers=4))[0]
    indices, outputs, gradients = layer.exchanges
    assert {one.op for one in layer.exchanges} == {"alltoall"}
    assert outputs.elements == gradients.elements
    if shard == "table":
        # the owner of a table sends outputs to all four workers, and two workers own none
        assert (outputs.elements, indices.elements) == (4 * 32 * 64, 4 * 32)
    else:
        assert outputs.elements == 2 * 32 * 64
    if shard == "row":
        assert indices.elements == 2 * 32


def test_lengths_change_tokens_and_scores_but_not_parameters() -> None:
    fields = {
        "model": _MODEL, "cluster": "dgx-a100", "strategy": {"kind": "data_parallel", "workers": 2}, "framework": "torchrec",
        "batch": {"total": 64, "lengths": {"distribution": "uniform", "mean": 8}},
    }  # fmt: skip
    short, whole = load(fields), load(fields, {"batch.lengths": None})
    layers = [scenario.layers(Shard()) for scenario in (short, whole)]
    assert [sum(layer.parameters for layer in own) for own in layers] == [_MODEL.parameters()] * 2
    assert sum(layer.forward_flops for layer in layers[0]) < 0.6 * sum(layer.forward_flops for layer in layers[1])
    assert (short.tokens_per_sample, whole.tokens_per_sample) == (8, 32)


def test_the_interval_includes_twice_the_time_of_unmeasured_attention() -> None:
    run = predict(load("hstu-64-h100"))
    assert any("pointwise attention" in warning for warning in run.warnings)


def test_a_plan_leaves_out_whole_tables_that_no_device_has_room_for() -> None:
    """500 M rows of 1,024 elements with two bytes each are a terabyte."""
    tried = [space.scenario.strategy.plan.tables for space in spaces(load("hstu-64-h100"), 64)]
    assert {how.shard for how in tried if how is not None} == {"column", "row"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tables": ({"rows": 10, "dim": 32},)}, "dim: 64"),
        ({"interleaved": True, "sequence": 33}, "interleaved"),
        ({"positions": 16}, "positions"),
    ],
)
def test_fields_that_conflict_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Hstu.model_validate(_MODEL.model_dump() | changes)


def test_blocks_are_not_divided() -> None:
    with pytest.raises(FieldError, match="hstu"):
        _MODEL.build_layers(Shard(tensor=2))


def test_models_by_name_are_hstu() -> None:
    assert {type(load_model(name)) for name in ("hstu-ml-20m-large", "hstu-24x1024")} == {Hstu}
