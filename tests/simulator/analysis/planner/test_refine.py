"""Finer recomputation is planned where full recomputation would be needed."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.planner.refine import _forms
from scaleproof.simulator.analysis.planner.search import PlanResult, plan
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.recompute import Recompute
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.dump import dump_part
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

# One sample on one GPU: nothing but recomputation saves memory.
ONE = (
    "model={kind: gpt, layers: 24, hidden: 1024, heads: 16, vocabulary: 1024, sequence: 16384, flash: true}",
    "cluster=dgx-a100", "strategy={kind: hybrid, workers: 1}", "batch=1", "training.zero=0",
)  # fmt: skip


def single_gpu(*overrides: str) -> Scenario:
    return load("llama-2-7b-fsdp-a100", (*ONE, *overrides))


def fullest_bytes(scenario: Scenario) -> float:
    return memory(scenario).worst.total_bytes


def recomputing(scenario: Scenario, value: object) -> Scenario:
    training = scenario.training.model_copy(update={"recompute": Recompute.model_validate(value)})
    return scenario.copied(training=training)


def between(share: float, scenario: Scenario) -> float:
    """Bytes between those with full recomputation (0) and those without any (1)."""
    none, full = (fullest_bytes(recomputing(scenario, kind)) for kind in ("none", "full"))
    return full + share * (none - full)


def coarse(planned: PlanResult) -> set[str]:
    """Recomputation of the configurations that are not refined and fit."""
    rows = [row for row in range(len(planned.configurations)) if planned.memory_bytes[row] <= planned.capacity_bytes]
    return {planned.configurations.row(row)["recompute"] for row in rows} & {"none", "selective", "full"}


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_fewest_blocks_that_make_it_fit_are_recomputed(share: float) -> None:
    scenario = single_gpu("framework=pytorch-fsdp2")
    planned = plan(scenario, 1, memory=between(share, scenario))
    assert coarse(planned) == {"full"}, "all else does not fit"
    best = planned.best[0]
    count = best.scenario.training.recompute.layers
    assert count is not None
    assert best.memory_bytes == pytest.approx(fullest_bytes(best.scenario))
    assert best.memory_bytes <= planned.capacity_bytes
    assert fullest_bytes(recomputing(best.scenario, {"layers": count - 1})) > planned.capacity_bytes
    assert best.run.step_time_s < timed(recomputing(best.scenario, "full")).step_time_s
    assert f"recompute: {{layers: {count}}}" in dump_part(best.scenario, "training")


def test_refinement_is_skipped_if_no_faster_configuration_exceeds_memory() -> None:
    scenario = single_gpu("framework=pytorch-fsdp2")
    planned = plan(scenario, 1, memory=between(2.0, scenario))
    assert planned.best[0].scenario.training.recompute.kind == "none"
    rows = range(len(planned.configurations))
    assert {planned.configurations.row(row)["recompute"] for row in rows} == {"none", "full"}


def test_only_recomputation_forms_of_the_framework_are_offered() -> None:
    def fields(name: str) -> set[str]:
        return {field for form in _forms(shipped(name).recomputes, blocks=8, guess=4) for field in form}

    assert fields("megatron-core-0.12") == {"layers", "modules"}
    assert fields("torchtitan") == {"every", "products"}
    assert fields("jax-maxtext") == set()


def test_plans_with_finer_recomputation_are_faster_on_several_devices() -> None:
    # the fastest degrees need 21 GiB with full recomputation, and 58 GiB without any
    planned = plan(load("llama-2-7b-fsdp-a100", ("batch=64",)), 8, memory=32 * 2.0**30, top=3)
    assert planned.proved
    assert planned.best[0].scenario.training.recompute.layers
    rows = planned.configurations
    others = min(
        float(planned.expected_s[row])
        for row in range(len(rows))
        if planned.memory_bytes[row] <= planned.capacity_bytes and rows.row(row)["recompute"] in ("none", "full")
    )
    assert planned.best[0].run.step_time_s < 0.97 * others
