"""Quantities that tests of strategies read from programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives import cost
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import simulate
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.mesh import RankClass
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.worker_classes import separate_classes
from scaleproof.simulator.strategy.plan_costs import stage_layers
from scaleproof.simulator.strategy.scenario_job import job_of

# a network and devices on which nothing but compute takes time
ONLY_COMPUTE = (
    "cluster.network={bandwidth: 1 EB/s, latency: 0}",
    "cluster.node.link={bandwidth: 1 EB/s, latency: 0}",
    "cluster.device.memory_bandwidth=1 EB/s",
)
# FSDP whose root frees parameters after the forward pass, as all other layers do, so that every layer is gathered as often
FREES_ENDS = "framework={base: torchtitan, defaults: {keeps_ends: false}}"
# of 24 equal blocks; the head is a hundred-thousandth of one
EVEN = "model={kind: gpt, layers: 24, hidden: 8192, heads: 4, vocabulary: 1, sequence: 8}"


def hybrid(**fields: object) -> str:
    """An override that makes the strategy a hybrid."""
    return f"strategy={{kind: hybrid, {', '.join(f'{name}: {value}' for name, value in fields.items())}}}"


def compiled(scenario: Scenario) -> Program:
    """The program of one step, with the scenario's perturbations."""
    return compile_step(scenario.strategy, job_of(scenario, unevenness=scenario.unevenness))


def size_bytes(scenario: Scenario) -> float:
    """Bytes of all parameters in 32 bits."""
    return 4.0 * scenario.model.parameters()


def ends_bytes(scenario: Scenario) -> float:
    """Bytes in 32 bits of the embedding and the head."""
    return 4.0 * sum(layer.parameters for layer in job_of(scenario).layers if layer.pinned_to_end)


def freeing_ends(zero: int) -> tuple[str, ...]:
    """Overrides with which ZeRO's stage 3 gathers every layer equally often."""
    return (FREES_ENDS,) if zero == 3 else ()


def ring_bytes(ranks: int, size_bytes: float) -> float:
    """Bytes through each rank for one round of a ring: an all-gather or a reduce-scatter."""
    return (ranks - 1) / ranks * size_bytes


def rank_layers(strategy: Strategy, job: Job) -> list[list[Layer]]:
    """Layers on each rank of a pipeline in the order of the rank's chunks, or on each stage of another strategy."""
    if isinstance(strategy, ReplicaStrategy):
        stages = stage_layers(strategy, job)
        return [[job.layers[i] for stage in own for i in stages[stage]] for own in strategy.plan.stage_of]
    return strategy.parts(job.layers)


def separate_workers(patch: pytest.MonkeyPatch) -> None:
    """Makes a class of each worker."""

    def classes(plan: Plan, job: Job) -> list[RankClass]:
        return separate_classes(plan, plan.grid(job.cluster.node.devices))

    patch.setattr("scaleproof.simulator.strategy.compile.worker_classes", classes)


@contextmanager
def only_algorithms(*names: str) -> Iterator[None]:
    """Lets collectives use some algorithms alone, which no cached costs have done and none do afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "_COMMON", names)
        cost._modelled_costing.cache_clear()
        yield
    cost._modelled_costing.cache_clear()


def step_s(program: Program) -> float:
    """Seconds of a steady step."""
    return float(np.diff(simulate(program, 3).step_ends_s())[-1])


def moved_bytes(program: Program, kind: Kind = Kind.COLLECTIVE, stage: int | None = None) -> float:
    """Bytes of all messages of a kind in a step, of one pipeline rank where it is given; of collectives through each member."""
    rows = (program.kind == kind) & ((program.stage == stage) if stage is not None else True)
    return float(program.amount[rows].sum())


def work_s(program: Program, phase: Phase) -> NDArray[np.float64]:
    """Seconds of work of each rank class in a phase."""
    rows = (program.kind == Kind.COMPUTE) & (program.phase == phase)
    return np.bincount(program.rank[rows], program.amount[rows], len(program.ranks.names)).astype(np.float64)


def exchange_s(program: Program, phase: Phase) -> NDArray[np.float64]:
    """Seconds of model-parallel exchanges within the passes of each rank class."""
    rows = (program.kind == Kind.COMPUTE) & (program.phase == phase)
    return np.bincount(program.rank[rows], program.latency_s[rows], len(program.ranks.names)).astype(np.float64)


def sent_bytes(program: Program, kind: Kind) -> dict[int, float]:
    """Bytes that each modelled node sends over the network in a step."""
    result: dict[int, float] = {}
    for uses, amount, own in zip(program.uses(), program.amount.tolist(), program.kind.tolist(), strict=True):
        for use in uses if own == kind else ():
            name = program.resources.names[use.resource].split()
            if name[0] == "network" and name[2] == "out":
                result[int(name[1])] = result.get(int(name[1]), 0.0) + use.per_unit * amount
    return result
