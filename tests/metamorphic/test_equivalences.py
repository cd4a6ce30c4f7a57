"""Scenarios that describe the same training have the same prediction."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest

from scaleproof.api import sweep
from scaleproof.simulator.analysis.compare import compare
from scaleproof.simulator.common.units import format_Bps
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from tests.metamorphic.drawn import BLOCKS, Fields, drawn, is_valid, seeds

SCENARIOS: Final = 5
EXACT: Final = 1e-9
# A bucket that holds all gradients.
_ALL: Final = "1 TB"


def step_s(fields: Fields) -> float:
    """Seconds of a step by its prediction."""
    return timed(load(fields)).step_time_s


@pytest.mark.parametrize("block", BLOCKS)
def test_one_worker_of_any_strategy_is_one_worker(block: int) -> None:
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed, "data_parallel", framework="ideal", batch={"per_worker": 4}, strategy={"kind": "data_parallel"})
        training = fields["training"] | {"zero": 0, "recompute": "none"}
        fields["training"] = training
        alone_s = step_s(fields)
        for kind in ("hybrid", "pipeline", "model_parallel", "gather_average", "local_sgd"):
            assert step_s(fields | {"strategy": {"kind": kind}}) == pytest.approx(alone_s, rel=EXACT), (kind, fields)
        for zero in (1, 2, 3):
            assert step_s(fields | {"training": training | {"zero": zero}}) == pytest.approx(alone_s, rel=EXACT), (zero, fields)


@pytest.mark.parametrize("kind", ["data_parallel", "pipeline"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_hybrid_of_workers_or_stages_alone_is_that_strategy(block: int, kind: str) -> None:
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed, kind)
        hybrid = fields | {"strategy": fields["strategy"] | {"kind": "hybrid"}}
        assert step_s(hybrid) == pytest.approx(step_s(fields), rel=EXACT), fields


@pytest.mark.parametrize("block", BLOCKS)
def test_local_sgd_of_one_step_is_one_sum_after_the_pass(block: int) -> None:
    """It averages parameters instead of gradients, which are of equal size."""
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed, "local_sgd", framework="ideal")
        workers = fields["strategy"]["workers"]
        after = {"kind": "data_parallel", "workers": workers, "overlap": False, "bucket": _ALL, "first_bucket": _ALL}
        local = fields | {"strategy": {"kind": "local_sgd", "workers": workers}}
        assert step_s(local) == pytest.approx(step_s(fields | {"strategy": after}), rel=1e-6), fields


@pytest.mark.parametrize("block", BLOCKS)
def test_twice_the_microbatches_take_twice_the_compute(block: int) -> None:
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed, "data_parallel", framework="ideal")
        fields["training"] |= {"zero": 0}
        number, samples = fields["strategy"]["microbatches"], fields["batch"]["per_worker"]
        twice = fields | {
            "strategy": fields["strategy"] | {"workers": 1, "microbatches": 2 * number},
            "batch": {"per_worker": 2 * samples},
        }
        once = fields | {"strategy": fields["strategy"] | {"workers": 1}}
        three = twice | {
            "strategy": twice["strategy"] | {"microbatches": 3 * number},
            "batch": {"per_worker": 3 * samples},
        }
        # what a step does once, the optimizer's update, is in all of them
        assert step_s(three) - step_s(twice) == pytest.approx(step_s(twice) - step_s(once), rel=1e-6), fields


@pytest.mark.parametrize("block", BLOCKS)
def test_zero_1_moves_the_bytes_of_an_allreduce(block: int) -> None:
    """A reduce-scatter and an all-gather take the time of the ring that consists of them. Libraries choose other algorithms for
    an allreduce where those are faster, so that hosts of one device, joined by a plain link, are compared."""
    network = {"bandwidth": "10 Gbit/s", "latency": "20 us"}
    device = {"name": "mine", "peak": {"fp32": "10 TFLOP/s"}, "memory": "80 GiB", "memory_bandwidth": "1 TB/s"}
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed, "data_parallel")
        fields |= {"cluster": {"nodes": 32, "node": {}, "network": network, "device": device}, "framework": "ideal"}
        workers = fields["strategy"]["workers"]
        fields["strategy"] = {"kind": "data_parallel", "workers": workers, "overlap": False, "algorithm": "ring"}
        fields["training"] = {"precision": "fp32", "optimizer": "sgd", "zero": 0}
        sharded = fields | {
            "strategy": {"kind": "data_parallel", "workers": workers, "overlap": False},
            "training": fields["training"] | {"zero": 1},
        }
        assert step_s(sharded) == pytest.approx(step_s(fields), rel=0.1), fields


@pytest.mark.parametrize("block", BLOCKS)
def test_servers_of_one_worker_have_no_one_to_wait_for(block: int) -> None:
    """Asynchronous and stale servers update with each push, where synchronous ones first add it to a sum."""
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed, "parameter_server")
        strategy = {name: value for name, value in fields["strategy"].items() if name != "bound"} | {"workers": 1}
        modes = ({"mode": "asynchronous"}, {"mode": "stale_synchronous", "bound": 0}, {"mode": "synchronous"})
        asynchronous_s, stale_s, synchronous_s = (step_s(fields | {"strategy": strategy | mode}) for mode in modes)
        assert stale_s == pytest.approx(asynchronous_s, rel=EXACT), fields
        assert stale_s <= synchronous_s * (1 + EXACT), fields


def _respelled(value: Any, source: random.Random) -> Any:
    """Fields in another order, with rates and times in other units."""
    if isinstance(value, dict):
        items = list(value.items())
        source.shuffle(items)
        return {name: _respelled(inner, source) for name, inner in items}
    if isinstance(value, str) and value.endswith(" Gbit/s"):
        return f"{float(value.split()[0]) / 8 * 1000:g} MB/s"
    if isinstance(value, str) and value.endswith("GB/s"):
        return f"{float(value.split()[0]) * 8:g} Gbit/s"
    if isinstance(value, str) and value.endswith(" us"):
        return f"{float(value.split()[0]) / 1000:g} ms"
    if isinstance(value, str) and value.endswith("GiB"):
        return f"{int(value.split()[0]) * 1024} MiB"
    return value


@pytest.mark.parametrize("block", BLOCKS)
def test_units_and_order_of_fields_change_nothing(block: int) -> None:
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed)
        respelled = _respelled(fields, random.Random(seed))
        assert step_s(respelled) == pytest.approx(step_s(fields), rel=EXACT), fields


@pytest.mark.parametrize("block", BLOCKS)
def test_repetition_total_batch_and_idle_nodes_change_nothing(block: int) -> None:
    for seed in seeds(block, SCENARIOS):
        fields = drawn(seed)
        scenario, expected_s = load(fields), step_s(fields)
        assert step_s(fields) == expected_s
        assert step_s(fields | {"batch": scenario.total_samples}) == pytest.approx(expected_s, rel=EXACT), fields
        idle = {"cluster.nodes": scenario.cluster.nodes + 2}
        if is_valid(fields, idle):
            assert timed(load(fields, idle)).step_time_s == pytest.approx(expected_s, rel=EXACT), fields


@pytest.mark.parametrize("block", BLOCKS)
def test_sweeps_and_comparisons_report_what_is_predicted(block: int) -> None:
    for seed in seeds(block, SCENARIOS)[:3]:
        fields = drawn(seed)
        cluster = load(fields).cluster
        if cluster.network is None:
            continue
        values = [format_Bps(factor * cluster.network.bandwidth_Bps) for factor in (0.5, 1, 3)]
        overrides = [{"cluster.network.bandwidth": value} for value in values]
        expected_s = [timed(load(fields, each)).step_time_s for each in overrides]
        found = sweep(fields, axes={"cluster.network.bandwidth": values}).points
        assert found["step_time_s"].tolist() == pytest.approx(expected_s, rel=1e-6), fields
        compared = compare(load(fields, overrides[0]), load(fields, overrides[2]))
        assert (compared.a.step_time_s, compared.b.step_time_s) == pytest.approx((expected_s[0], expected_s[2]), rel=EXACT)
