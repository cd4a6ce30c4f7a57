"""Plans choose what sends tokens to experts: of the ways that a framework has, those that run on the cluster."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scaleproof.reports.descriptions.plan_settings import settings
from scaleproof.simulator.analysis.planner.candidates import Candidates
from scaleproof.simulator.analysis.planner.estimate import Configurations, every, memory_bytes
from scaleproof.simulator.analysis.planner.search import PlanResult, candidates_of, plan
from scaleproof.simulator.analysis.planner.space import spaces
from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import build
from scaleproof.simulator.scenario.schema import Scenario

EXPERTS = {"count": 16, "active": 4, "feedforward": 1024, "shared": 1}
MODEL = {"kind": "llama", "layers": 4, "hidden": 2048, "heads": 16, "feedforward": 4096, "vocabulary": 32000, "sequence": 2048}


def mixture(
    cluster: Any = "dgx-h100", framework: str = "megatron-core-2026", experts: Any = EXPERTS, **strategy: Any
) -> Scenario:
    tree = {
        "model": MODEL | {"experts": experts},
        "cluster": {"base": cluster, "nodes": 2} if isinstance(cluster, str) else cluster,
        "framework": framework,
        "strategy": {"kind": "hybrid", "workers": 16} | strategy,
        "batch": 32,
        "training": {"precision": "bf16", "optimizer": "adam", "zero": 1},
    }
    return build(yaml_file.parse(yaml.safe_dump(tree), "mixture.yaml"), Path("mixture.yaml"))


def tried(scenario: Scenario, dispatchers: list[str] | None = None) -> list[tuple[str, bool]]:
    """Dispatchers of the spaces with expert parallelism, and whether shared experts overlap."""
    degrees = {"tensor": 1, "context": 1, "expert": 2, "stages": 1, "workers": 16, "sequence_parallel": 0, "zero": 0}
    found = [one.options(degrees) for one in spaces(scenario, 16, dispatchers=dispatchers) if one.expert != (1,)]
    return [(one["dispatcher"], one["overlap_shared_experts"]) for one in found]


@functools.cache
def planned() -> PlanResult:
    return plan(mixture(), 16, top=8)


def test_plans_try_the_ways_of_the_framework_its_own_first() -> None:
    ways = [("hybridep", False), ("alltoall", False), ("alltoall", True), ("deepep", False)]
    assert tried(mixture()) == ways
    assert tried(mixture(framework="nanotron")) == [("alltoall", False)]
    assert tried(mixture(framework="deepseek-v3")) == [("deepep", False)]


def test_fields_of_the_scenario_and_names_restrict_what_is_tried() -> None:
    assert tried(mixture(expert=8, dispatcher="deepep")) == [("deepep", False)]
    assert tried(mixture(overlap_shared_experts=False)) == [("hybridep", False), ("alltoall", False), ("deepep", False)]
    assert tried(mixture(), ["alltoall"]) == [("alltoall", False), ("alltoall", True)]
    assert tried(mixture(expert=8, dispatcher="deepep"), ["hybridep"]) == [("hybridep", False)]


def test_kernels_are_tried_where_they_run() -> None:
    """HybridEP needs a Hopper or later; both need a network whose cards GPUs write to."""
    assert tried(mixture("dgx-a100", "nemo")) == [("alltoall", False), ("alltoall", True), ("deepep", False)]
    sockets = {"base": "dgx-h100", "nodes": 2, "network": {"transport": "sockets"}}
    assert tried(mixture(sockets, "megatron-core-0.12")) == [("alltoall", False), ("alltoall", True)]


def test_models_without_shared_experts_have_nothing_to_overlap() -> None:
    assert not any(overlaps for _, overlaps in tried(mixture(experts=EXPERTS | {"shared": 0})))


def test_dispatchers_that_no_framework_has_are_refused() -> None:
    with pytest.raises(InputError, match="--dispatchers nccl: give some of alltoall, deepep, hybridep"):
        spaces(mixture(), 16, dispatchers=["nccl"])
    with pytest.raises(InputError, match="no framework of this plan sends tokens so; give some of alltoall"):
        spaces(mixture(framework="nanotron"), 16, dispatchers=["deepep"])
    with pytest.raises(InputError, match="leave it out, as no ranks have different experts"):
        spaces(mixture(experts=None), 16, dispatchers=["deepep"])


def test_a_plan_prints_what_predict_gives_of_each_way() -> None:
    """Estimates bound predictions from below, whatever sends tokens."""
    found = planned()
    assert found.proved
    assert len({found.configurations.kind(one.row) for one in found.best}) == len(found.best)
    for one in found.best:
        assert predict(one.scenario).step_time_s == one.run.step_time_s
        assert one.run.step_time_s >= found.best[0].run.step_time_s


def test_bounds_are_below_predictions_for_each_way() -> None:
    candidates = candidates_of(mixture(), 16, None, ("hybrid",), ("1f1b",), None)
    divided = [number for number, part in enumerate(candidates.parts) if isinstance(part, Configurations) and part.space.tried]
    assert len(divided) == 4
    for number in divided:
        part = Candidates((candidates.parts[number],))
        rows = np.random.default_rng(number).choice(len(part), 6, replace=False)
        least_s = part.times(rows).least_s
        for row, bound_s in zip(rows.tolist(), least_s.tolist(), strict=True):
            assert bound_s <= predict(part.scenario(row)).step_time_s * (1 + 1e-9)


def test_ways_with_equal_copies_of_tokens_have_equal_memory() -> None:
    candidates = candidates_of(mixture(), 16, None, ("hybrid",), ("1f1b",), None)
    separate = [memory_bytes(part) for part in candidates.parts if isinstance(part, Configurations)]
    assert np.array_equal(candidates.memory_bytes(), np.concatenate(separate))


@pytest.mark.parametrize("dispatcher", ["alltoall", "deepep"])
def test_no_way_alone_gives_a_faster_plan(dispatcher: str) -> None:
    alone = plan(mixture(), 16, top=1, dispatchers=[dispatcher]).best[0]
    assert alone.run.step_time_s >= planned().best[0].run.step_time_s
    assert alone.scenario.strategy.plan.dispatcher in (dispatcher, "alltoall")


def test_the_dispatcher_has_a_column_where_it_differs() -> None:
    ways = [{"dispatcher": "alltoall", "overlap_shared_experts": shared} for shared in (False, True)] + [
        {"dispatcher": "deepep"}
    ]
    rows = [planned().configurations.row(planned().best[0].row) | way for way in ways]
    differing, equal = settings(rows)
    assert "dispatcher" in [column.head for column in differing]
    own = every(spaces(mixture(framework="nanotron"), 16)[0])
    differing, equal = settings([own.row(row) for row in range(4)])
    assert "dispatcher" not in [column.head for column in differing]
    assert "dispatcher" not in equal
