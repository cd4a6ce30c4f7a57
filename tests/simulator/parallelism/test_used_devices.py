"""Number of devices of each node that ranks use: groups that exchange within passes straddle no nodes where devices can stay
idle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate import Configurations, Space, every
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.launch.job import nodes_of_ranks
from tests.simulator.analysis.planner.estimate.predicted import check_against_predictions

Make = Callable[..., Scenario]
# 72 devices a node, of which a job of 64 experts can use 64.
RACKS = (
    "cluster.node={devices: 72, cards: 72, link: {bandwidth: 900 GB/s, latency: 5 us}}",
    "cluster.network.bandwidth=3.6 TB/s",
)
MIXTURE = (
    "model={kind: llama, layers: 4, hidden: 64, heads: 8, vocabulary: 256, sequence: 32, "
    "experts: {count: 64, active: 2, feedforward: 64}}"
)


def on_racks(small: Make, numbers: str, *more: str) -> Scenario:
    return small(MIXTURE, f"strategy={{kind: hybrid, {numbers}}}", "batch={per_worker: 4}", *RACKS, *more)


def groups_nodes(scenario: Scenario, axis: Literal["tensor", "context", "expert"]) -> int:
    """Number of nodes of the group of an axis that spans the most."""
    collectives = cast(LayerCollectives, with_collectives(scenario.strategy.plan, job_of(scenario)).exchange)
    return collectives.mesh.passing(axis).nodes


@pytest.mark.parametrize(
    ("numbers", "axis", "used"),
    [
        ("workers: 128, expert: 64", "expert", 64),
        ("workers: 64, expert: 16, tensor: 2", "expert", 64),
        ("workers: 64, expert: 32, tensor: 2, expert_tensor: 1, sequence_parallel: true", "expert", 64),
        ("workers: 32, context: 4, tensor: 4, expert: 2", "context", 64),
        ("workers: 10, context: 5, tensor: 4", "context", 60),
        ("workers: 32, stages: 2, expert: 16, order: [tensor, context, stages, workers]", "expert", 72),
    ],
)
def test_groups_straddle_no_nodes_where_devices_can_stay_idle(
    small: Make, numbers: str, axis: Literal["tensor", "context", "expert"], used: int
) -> None:
    """The largest number of a node's devices that the groups divide."""
    model = "model.heads=8", "model.sequence=40"
    scenario = on_racks(small, numbers, *model)
    assert scenario.cluster.node.devices == used
    if scenario.strategy.training_ranks > used:
        assert groups_nodes(scenario, axis) == 1
    assert scenario.cluster.node.installed == 72


@pytest.mark.parametrize(
    ("devices", "numbers", "used"),
    [
        (4, "workers: 6, tensor: 2", 4),
        (4, "workers: 3, expert: 3", 4),
        (4, "workers: 9, expert: 3", 3),
        (6, "workers: 5, tensor: 4", 4),
        (6, "workers: 7, tensor: 2", 6),
        (10, "workers: 5, tensor: 4", 8),
        (10, "workers: 3, tensor: 8", 8),
        (16, "workers: 3, context: 5, tensor: 2", 10),
        (16, "workers: 12, tensor: 2, expert: 3", 12),
    ],
)
def test_used_devices_of_nodes_of_many_sizes(small: Make, devices: int, numbers: str, used: int) -> None:
    """Of nodes of 4, 6, 10 and 16 devices, with odd numbers of workers, that which no group straddles."""
    model = "model.experts.count=12", "model.sequence=40"
    scenario = on_racks(small, numbers, *model, f"cluster.node.devices={devices}", "cluster.node.cards=1", "cluster.nodes=16")
    assert scenario.cluster.node.devices == used
    plan = scenario.strategy.plan
    axes: tuple[Literal["tensor", "context", "expert"], ...] = ("tensor", "context", "expert")
    for axis, size in zip(axes, (plan.tensor, plan.context, plan.expert), strict=True):
        if 1 < size <= used:
            assert groups_nodes(scenario, axis) == 1


@pytest.mark.parametrize(("numbers", "used"), [("workers: 256, expert: 128", 64), ("workers: 288, expert: 96", 72)])
def test_groups_larger_than_a_node_have_equal_parts_if_few_devices_stay_idle(small: Make, numbers: str, used: int) -> None:
    """128 = 2 · 64, where an eighth of 72 devices stays idle; of 96 ranks, 48 on each node would leave a third idle."""
    scenario = on_racks(small, numbers, "model.experts.count=384")
    assert scenario.cluster.node.devices == used
    group = scenario.strategy.plan.grid_on(scenario.cluster).expert_group()
    assert group.is_even == (used == 64)
    unequal = [one for one in predict(scenario, interval=False).warnings if "have parts of different sizes" in one]
    assert bool(unequal) == (used == 72)


@pytest.mark.parametrize("numbers", ["workers: 144", "workers: 36, tensor: 8", "workers: 72, expert: 8, tensor: 1"])
def test_nothing_changes_where_groups_divide_a_node(small: Make, numbers: str) -> None:
    scenario, given = (on_racks(small, numbers, *more) for more in ((), ("cluster.node.used=72",)))
    assert scenario.cluster.node.devices == 72
    assert timed(scenario).step_time_s == timed(given).step_time_s
    assert not predict(scenario, interval=False, remedy=False).warnings


def test_the_given_number_of_devices_is_used(small: Make) -> None:
    numbers = "workers: 128, expert: 64"
    chosen = on_racks(small, numbers)
    given, straddling = (on_racks(small, numbers, f"cluster.node.used={used}") for used in (64, 72))
    assert timed(given).step_time_s == timed(chosen).step_time_s
    assert timed(straddling).step_time_s > 1.5 * timed(chosen).step_time_s
    assert groups_nodes(straddling, "expert") == 2
    # as on nodes that have no other devices and cards
    cut = "cluster.node.devices=64", "cluster.node.cards=64", f"cluster.network.bandwidth={64 * 50} GB/s"
    assert timed(on_racks(small, numbers, *cut)).step_time_s == pytest.approx(timed(chosen).step_time_s, rel=1e-3)


def test_more_devices_than_a_node_has_are_refused(small: Make) -> None:
    with pytest.raises(ScenarioError, match=r"cluster\.node.*used: 73 of 72 devices; give at most 72"):
        on_racks(small, "workers: 128, expert: 64", "cluster.node.used=73")


def test_a_written_scenario_leaves_the_choice_open(small: Make, tmp_path: Path) -> None:
    scenario = on_racks(small, "workers: 128, expert: 64")
    assert "used" not in dump(scenario)
    (tmp_path / "again.yaml").write_text(dump(scenario))
    assert load(tmp_path / "again.yaml") == scenario
    assert "used: 72" in dump(on_racks(small, "workers: 128, expert: 64", "cluster.node.used=72"))
    assert "cluster: gb200-nvl72\n" in dump(on_racks(small, "workers: 128, expert: 64", "cluster=gb200-nvl72"), by_name=True)


def test_warnings_name_idle_devices_and_straddling_groups(small: Make) -> None:
    numbers = "workers: 144, expert: 48"

    def warning(*more: str) -> str:
        return " ".join(predict(on_racks(small, numbers, "model.experts.count=48", *more), interval=False).warnings)

    assert "ranks use 48 of the 72 devices of each node" in warning()
    short = warning("cluster.nodes=2")
    assert "expert-parallel groups straddle nodes, as 48 ranks do not divide the 72 devices" in short
    assert "set cluster.nodes=3," in short
    assert "set cluster.node.used=48," in warning("cluster.node.used=72")


def test_tensor_parallel_groups_larger_than_a_node_are_warned_about(small: Make) -> None:
    across = small("strategy={kind: hybrid, tensor: 8}", "model.heads=8", "batch={per_worker: 4}")
    (warning,) = predict(across, interval=False).warnings
    assert "tensor-parallel groups of 8 ranks lie on several nodes, of 4 devices used each" in warning
    assert "set strategy.tensor to at most 4" in warning


def test_nodes_with_idle_devices_are_powered_and_paid_for_whole(small: Make) -> None:
    priced = "cluster.node.price=72 USD/h", "cluster.node.power=72 kW"
    run = predict(on_racks(small, "workers: 128, expert: 64", *priced), interval=False)
    assert run.cost_USD is not None
    assert run.energy_J is not None
    assert run.cost_USD["per_step"] == pytest.approx(2 * 72 / 3600 * run.step_time_s)
    assert run.energy_J["per_step"] == pytest.approx(2 * 72e3 * run.step_time_s)


def test_real_runs_place_ranks_as_predictions_do(small: Make) -> None:
    scenario = small(
        "strategy={kind: hybrid, workers: 4, tensor: 3}",
        "model={kind: gpt, layers: 2, hidden: 96, heads: 6, vocabulary: 252, sequence: 32}",
    )
    assert nodes_of_ranks(scenario) == [rank // 3 for rank in range(12)]
    straddling = scenario.copied(cluster=scenario.cluster.rebuilt(nodes=3))
    assert nodes_of_ranks(straddling) == [rank // 4 for rank in range(12)]


def planned(small: Make, *more: str) -> Configurations:
    scenario = on_racks(small, "workers: 128, expert: 64", "batch=512", "framework=ideal", *more)
    return every(
        Space(scenario, (128,), tensor=(1, 2, 8), expert=(1, 8, 16, 64), stages=(1, 2), sequence_parallel=(False, True),
              zero=(0, 1), samples=(1, 4))
    )  # fmt: skip


def test_estimates_place_ranks_as_predictions_do(small: Make) -> None:
    found = planned(small)
    used = [found.scenario(row).cluster.node.devices for row in range(len(found))]
    assert found.used_devices.tolist() == used
    assert set(used) == {64, 72}
    # of pipelines on 72 devices a node some messages cross nodes and some do not, which estimates do not distinguish
    even = np.flatnonzero((found.stages == 1) | (found.used_devices == 64))
    rows = np.random.default_rng(3).choice(even, 12, replace=False)
    assert {used[row] for row in rows} == {64, 72}
    check_against_predictions(found, rows)
