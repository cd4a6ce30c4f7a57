"""Quantities of claims, compared with theory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.proof.claims.quantities import KINDS
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

Small = Callable[..., Scenario]


def read(name: str, scenario: Scenario) -> float:
    return KINDS[name].read(scenario, lambda: timed(scenario))


def unread() -> Run:
    raise AssertionError("a prediction was requested")


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_busiest_link_is_found_for_rings_and_servers(small: Small, workers: int) -> None:
    """Patarasuk and Yuan, 2009: 2 (n − 1) / n; a server takes in all gradients."""
    alone = ("cluster.node.devices=1", "cluster.nodes=9", f"batch.per_worker={48 // 8}")
    ring = small(*alone, f"strategy={{kind: data_parallel, workers: {workers}, algorithm: ring}}")
    size_bytes = 4 * sum(layer.parameters for layer in ring.model.build_layers())
    assert KINDS["busiest_link"].read(ring, unread) == pytest.approx(2 * (workers - 1) / workers * size_bytes)
    server = small(*alone, f"strategy={{kind: parameter_server, workers: {workers}, servers: 1}}")
    assert KINDS["busiest_link"].read(server, unread) == pytest.approx(workers * size_bytes)


def test_model_parallel_devices_compute_one_at_a_time(small: Small) -> None:
    turns = small("strategy={kind: model_parallel, stages: 4}")
    assert read("at_once", turns) <= 1
    assert read("at_once", small("strategy={kind: pipeline, stages: 4, microbatches: 12}")) > 1.5
    assert read("at_once", turns) == pytest.approx(4 * read("efficiency", turns))


def test_workers_of_servers_store_all_parameters_and_stages_store_a_part(small: Small) -> None:
    alone = KINDS["parameters"].read(small("strategy={kind: data_parallel, workers: 1}"), unread)
    served = KINDS["parameters"].read(small("strategy={kind: parameter_server, workers: 4, servers: 4}"), unread)
    stages = KINDS["parameters"].read(small("strategy={kind: pipeline, stages: 2, microbatches: 4}"), unread)
    assert served == alone
    assert stages < 0.75 * alone


def test_memory_is_relative_to_the_devices_capacity(small: Small) -> None:
    scenario = small()
    share = KINDS["memory_share"].read(scenario, unread)
    assert share * 8 * 2**30 == pytest.approx(KINDS["memory"].read(scenario, unread))
    assert 0 < KINDS["states_share"].read(scenario, unread) < 1
    assert read("fitting_throughput", scenario) == pytest.approx(read("throughput", scenario))
    assert KINDS["fitting_throughput"].read(small("cluster.device.memory=1 MiB"), lambda: timed(scenario)) == 0


@given(shares=st.lists(st.integers(1, 40), min_size=2, max_size=6))
def test_only_weighted_averages_equal_the_average_over_all_samples(shares: list[int]) -> None:
    overrides = [
        f"strategy={{kind: data_parallel, workers: {len(shares)}, overlap: false}}",
        f"strategy.shares={shares}",
        f"batch.total={sum(shares)}",
    ]
    if sum(shares) % len(shares):
        # a batch is divided evenly before shares are looked at
        shares[0] += len(shares) - sum(shares) % len(shares)
        overrides[1:] = [f"strategy.shares={shares}", f"batch.total={sum(shares)}"]
    scenario = load("netlab-ring", overrides)
    assert read("weighted_deviation", scenario) < 1e-9
    without = KINDS["unweighted_deviation"].read(scenario, unread)
    assert (without < 1e-9) == (len(set(shares)) == 1)


def test_measured_runs_have_the_error_of_their_gradients(small: Small) -> None:
    from dataclasses import replace

    scenario = small()
    run = replace(timed(scenario), verified=Verification("one process", deviation=0.25, tolerance=0.5))
    assert KINDS["weighted_deviation"].read(scenario, lambda: run) == 0.25


def test_staleness_is_defined_for_parameter_servers_only(small: Small) -> None:
    with pytest.raises(InputError, match="give such a strategy"):
        read("staleness", small())
    asynchronous = "strategy={kind: parameter_server, workers: 4, servers: 1, mode: asynchronous}"
    assert read("staleness", small(asynchronous)) == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize("name", KINDS)
def test_every_quantity_has_a_description(name: str) -> None:
    kind: Any = KINDS[name]
    assert kind.words
    assert kind.text(0.5)
