"""Theoretical results for each strategy, on clusters for which they are simple."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.program import Kind
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.job import Job

Make = Callable[..., Scenario]


def job(scenario: Scenario) -> Job:
    return Job(scenario.model.build_layers(), scenario.cluster, scenario.samples_per_worker, "fp32", "sgd")


@pytest.mark.parametrize("placement", ["dedicated", "colocated"])
def test_folded_servers_equal_unfolded_ones(small: Make, placement: str) -> None:
    """Bytes through each resource equal those of every single message, counted one by one."""
    workers, servers = 10, 3
    scenario = small(
        f"strategy={{kind: parameter_server, workers: {workers}, servers: {servers}, placement: {placement}}}",
        "batch={per_worker: 1}",
    )
    program = compile_step(scenario.strategy, job(scenario))
    shard_bytes = 4 * scenario.model.parameters() / servers
    folded: dict[str, float] = {}
    for uses, amount, kind in zip(program.uses(), program.amount, program.kind, strict=True):
        for use in uses if kind == Kind.TRANSFER else []:
            name = program.resources.names[use.resource]
            folded[name] = folded.get(name, 0.0) + use.per_unit * amount
    node_of_worker = [w // 4 for w in range(workers)]
    node_of_server = [3 + s if placement == "dedicated" else s % 3 for s in range(servers)]
    cards: dict[str, float] = {}
    for a in node_of_worker:
        for b in node_of_server:
            for source, target in ((a, b), (b, a)):
                if source != target:
                    cards[f"network {source} out"] = cards.get(f"network {source} out", 0.0) + shard_bytes
                    cards[f"network {target} in"] = cards.get(f"network {target} in", 0.0) + shard_bytes
    modelled = {name: folded[name] for name in folded if "network" in name}
    assert modelled
    for name, size_bytes in modelled.items():
        assert size_bytes == pytest.approx(cards[name]), name


def test_programs_too_large_to_simulate_are_rejected(small: Make) -> None:
    with pytest.raises(ScenarioError, match=r"strategy.microbatches: 600000 passes .* give at most 66666"):
        small("strategy={kind: pipeline, stages: 3, microbatches: 200000}", "batch=200000")
