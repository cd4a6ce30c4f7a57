from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import modelled_costing
from scaleproof.simulator.cluster.collectives.groups import Group, Op
from scaleproof.simulator.cluster.collectives.settings import Adjust
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.fit.collective_posterior import (
    CollectivePosterior,
    MeasuredTime,
    prior_deviations,
    times_of,
    updated,
)
from scaleproof.validator.probe.points import Point

SIZES = [2.0**power for power in range(10, 31, 2)]


def _cluster(name: str, **factors: float) -> Cluster:
    cluster = load_cluster(name)
    return cluster.model_copy(update={"collectives": cluster.collectives.model_copy(update={"adjust": Adjust(**factors)})})


def _times(cluster: Cluster, op: Op, nodes: int, noise: float = 0.0) -> list[MeasuredTime]:
    random, devices = np.random.default_rng(nodes), cluster.node.devices
    cost = modelled_costing(op, Group.of(nodes * devices, devices), cluster)
    factors = np.exp(noise * random.standard_normal(len(SIZES)))
    pairs = zip(SIZES, factors, strict=True)
    return [MeasuredTime(op, nodes * devices, nodes, size, cost(size).seconds * float(factor)) for size, factor in pairs]


def _updated(cluster: Cluster, times: list[MeasuredTime]) -> CollectivePosterior:
    found = updated(cluster, times)
    assert found is not None
    return found


def _point(size: float, time_s: float, **numbers: float) -> Point:
    ranks = tuple(range(8))
    return Point("collective", "all_reduce", "", ranks, "", size, "bytes", (time_s,), "narrow", 0.0, {"nodes": 1.0, **numbers})


def _error(cluster: Cluster, times: list[MeasuredTime]) -> float:
    found = []
    for one in times:
        cost = modelled_costing(one.op, Group.of(one.ranks, cluster.node.devices), cluster)
        found.append(abs(cost(one.size_bytes).seconds / one.seconds - 1))
    return float(np.median(found))


def test_times_of_the_shipped_constants_leave_them() -> None:
    cluster = _cluster("dgx-h100")
    found = _updated(cluster, _times(cluster, "all_reduce", 2))
    assert found.error_before == found.error_after == 0
    assert all(factor.value == pytest.approx(1, abs=1e-6) for factor in found.factors)


def test_more_measurements_never_widen_an_interval() -> None:
    cluster = _cluster("dgx-h100")
    few, many = (_updated(cluster, [t for n in nodes for t in _times(cluster, "all_reduce", n)]) for nodes in ([2], [1, 2, 4]))
    for one, other in zip(few.factors, many.factors, strict=True):
        assert one.prior_low <= one.low * 1.001 <= other.low * 1.002
        assert other.high <= one.high * 1.001 <= one.prior_high * 1.002
    assert any(factor.is_learned for factor in many.factors)


def test_from_all_reduce_at_two_node_counts_other_operations_at_a_third_improve() -> None:
    shipped, truth = (
        _cluster("dgx-h100"),
        _cluster("dgx-h100", launch=1.4, latency_between=1.5, rate_between=0.9, rate_inside=0.93),
    )
    times = [time for nodes in (2, 4) for time in _times(truth, "all_reduce", nodes, noise=0.03)]
    learned = _cluster("dgx-h100", **_updated(shipped, times).adjust.model_dump())
    for op in ("all_gather", "reduce_scatter", "alltoall"):
        others = _times(truth, cast(Op, op), 8)
        assert _error(learned, others) < 0.6 * _error(shipped, others)


def test_most_truths_lie_in_the_intervals() -> None:
    """Of factors drawn from the prior, about 90 % lie in the posterior's intervals, although the prior's are wider."""
    random, shipped = np.random.default_rng(5), _cluster("dgx-h100")
    inside = []
    for _ in range(8):
        truth = {name: float(np.exp(sd * random.standard_normal())) for name, sd in prior_deviations(shipped).items()}
        times = [time for nodes in (2, 4) for time in _times(_cluster("dgx-h100", **truth), "all_reduce", nodes)]
        inside += [factor.low <= truth[factor.name] <= factor.high for factor in _updated(shipped, times).factors]
    assert np.mean(inside) >= 0.85


def test_an_implausible_factor_is_surprising() -> None:
    """A network with a tenth of the described bandwidth is not learned silently."""
    found = _updated(_cluster("dgx-h100"), _times(_cluster("dgx-h100", rate_between=0.1), "all_reduce", 4))
    assert "rate_between" in [factor.name for factor in found.factors if factor.is_surprising]


def test_only_clusters_with_nccl_have_such_constants() -> None:
    assert updated(_cluster("netlab-200mbit"), [MeasuredTime("all_reduce", 4, 4, 2.0**20, 0.1)]) is None
    assert updated(_cluster("dgx-h100"), [MeasuredTime("all_reduce", 4096, 512, 2.0**20, 0.1)]) is None


def test_a_cluster_of_one_node_has_no_factors_between_nodes() -> None:
    alone = _cluster("dgx-h100").model_copy(update={"network": None, "nodes": 1})
    assert set(prior_deviations(alone)) == {"launch", "latency_inside", "rate_inside"}
    assert set(prior_deviations(_cluster("dgx-h100"))) == set(Adjust.model_fields)


def test_slow_outliers_of_a_sweep_are_not_learned_from() -> None:
    times = times_of([_point(8, 900e-6), _point(16, 30e-6), _point(32, 30e-6), _point(64, 31e-6)])
    assert [time.size_bytes for time in times] == [16, 32, 64]


def test_times_of_traces_are_not_learned_from() -> None:
    """They contain waiting for other ranks."""
    assert not times_of([_point(2**20, 900e-6, traced=1.0)])
    assert len(times_of([_point(2**20, 900e-6)])) == 1
