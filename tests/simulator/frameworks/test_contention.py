"""Contention: how collectives that run next to passes slow them down."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.data_parallel.contention import ContendedResources, slowed_by
from scaleproof.simulator.strategy.job import Costs
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.frameworks.scenarios import scenario

DDP = "framework=pytorch-ddp"
FREE = "framework={base: pytorch-ddp, contention: false}"


def costs(one: Scenario) -> Costs:
    plan = one.strategy.plan
    return with_collectives(plan, job_of(one)).costs(plan.microbatches)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_work_overlapped_with_a_collective_is_slowed_by_its_share(share: float) -> None:
    """W + t·C; and W / (1 − t) where the collective outlasts the work."""
    work_s, moved_s = np.array([10.0]), np.array([1.0])
    assert work_s + slowed_by(np.array([share]), moved_s, work_s) == pytest.approx(10 + share * 1)
    assert moved_s + slowed_by(np.array([share]), np.array([1e9]), moved_s) == pytest.approx(1 / (1 - share))
    # both say the same where work and collective end together
    together_s = moved_s / (1 - share)
    assert slowed_by(np.array([share]), together_s, moved_s) == pytest.approx(share / (1 - share))


def test_no_contention_without_both_transfer_and_compute() -> None:
    share = np.array([0.3])
    assert slowed_by(share, np.array([0.0]), np.array([1.0])) == 0
    assert slowed_by(share, np.array([1.0]), np.array([0.0])) == 0
    assert slowed_by(np.array([0.0]), np.array([1.0]), np.array([1.0])) == 0


def test_the_contention_share_is_between_those_of_processors_and_memory() -> None:
    bound, no_W = np.array([0.0, 0.25, 1.0]), np.zeros(3)
    resources = ContendedResources(processors=0.1, memory_Bps=1e12)
    assert resources.taken(np.full(3, 4e11), no_W, bound) == pytest.approx([0.1, 0.175, 0.4])
    # a collective that moves next to nothing still occupies its processors
    assert resources.taken(np.zeros(3), no_W, bound) == pytest.approx(0.1)


def test_overlapped_gradient_synchronisation_slows_the_last_backward_pass() -> None:
    """Only the last pass: with several microbatches DistributedDataParallel sums in the last microbatch only."""
    contended, free = (costs(scenario(name, "strategy.microbatches=4")) for name in (DDP, FREE))
    assert (contended.last_backward_s > 0).all()
    assert (contended.first_forward_s == 0).all()
    assert contended.forward_s == pytest.approx(free.forward_s)
    assert contended.backward_s == pytest.approx(free.backward_s)
    assert (free.last_backward_s == 0).all()


def test_collectives_of_each_microbatch_slow_every_pass() -> None:
    overrides = ("training.zero=3", "strategy.microbatches=4")
    contended, free = (costs(scenario(name.replace("pytorch-ddp", "pytorch-fsdp2"), *overrides)) for name in (DDP, FREE))
    assert (contended.forward_s > free.forward_s).all()
    assert (contended.backward_s > free.backward_s).all()
    assert (contended.last_backward_s == 0).all()


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy.workers=1",),
        ("strategy.overlap=false",),
        ("strategy={kind: pipeline, stages: 4, microbatches: 8}",),
        ("strategy={kind: gather_average, workers: 8}",),
    ],
)
def test_without_overlap_there_is_no_contention(overrides: tuple[str, ...]) -> None:
    contended, free = (timed(scenario(name, *overrides)).step_time_s for name in (DDP, FREE))
    assert contended == free
