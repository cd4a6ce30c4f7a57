"""Compilation of a plan: rank schedules, rank classes of replicas, and gradient synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.parallelism.mesh import RankClass
from scaleproof.simulator.parallelism.plan import Plan, check_size
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.program import Program
from scaleproof.simulator.program.costs import PassCommunication
from scaleproof.simulator.strategy.data_parallel.buckets import RankLayers
from scaleproof.simulator.strategy.data_parallel.offloading import add_activation_copies
from scaleproof.simulator.strategy.data_parallel.ring_allreduce import GradientSync
from scaleproof.simulator.strategy.data_parallel.tables import add_row_copies
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.folding import folded, folded_with_links
from scaleproof.simulator.strategy.layout.resource_map import LinkClasses
from scaleproof.simulator.strategy.layout.worker_classes import can_fold, worker_classes
from scaleproof.simulator.strategy.model_parallel.layer_collectives import pass_communication
from scaleproof.simulator.strategy.parameter_server.hybrid import add_servers
from scaleproof.simulator.strategy.pipeline.messages import add_messages
from scaleproof.simulator.strategy.pipeline.replica import CompileContext, Replica, rank_schedule
from scaleproof.simulator.strategy.pipeline.schedules import PassTimes
from scaleproof.simulator.strategy.plan_costs import cut, pass_times, with_collectives
from scaleproof.simulator.strategy.step_builder import JobCosts

# Limit of units of layers · microbatches, of about five tasks each; 6 GB at the limit.
_MAX_UNITS: Final = 800_000


def compile_replicas(strategy: ReplicaStrategy, job: Job) -> Program:
    """Compiles one training step of a strategy's replicas. Raises FieldError for too many passes."""
    return compile_plan(strategy.plan, job, cut(job, strategy.plan))


def compile_plan(plan: Plan, job: Job, ranges: Sequence[range]) -> Program:
    """One step of all replicas. ranges: layers of each stage of the model. Raises FieldError for too many passes."""
    job = with_collectives(plan, job)
    rank_layers = RankLayers(job.layers, plan, job.gathered_bytes)
    classes = worker_classes(plan, job)
    link_classes: LinkClasses = {}
    # sums of weights that two stages have, of all workers at once, share links
    if not rank_layers.copied:
        classes, link_classes = _folded(classes, plan, job, ranges)
    check_size(plan, len(classes))
    units = [rank_layers.units(stage, plan, job) for stage in ranges]
    cuts_all_passes = job.zero == 3 or job.scatters or "activations" in job.offload
    if cuts_all_passes:
        _check_units(len(classes) * sum(map(len, units)), plan.microbatches)
    times = pass_times(plan, job)
    schedule = rank_schedule(plan, [[unit.layers for unit in stage] for stage in units], cuts_all_passes, times)
    context = CompileContext(plan, job, ranges, schedule, rank_layers, units)
    replicas = [_replica(context, workers) for workers in classes]
    if plan.servers:
        add_servers(context, replicas)
    else:
        GradientSync(context, replicas).add()
        if "activations" in job.offload:
            add_activation_copies(context, replicas)
        if plan.stores_rows_on_hosts:
            add_row_copies(context, replicas)
    return context.builder.build(PlanCosts(job, plan.microbatches, link_classes, plan, times))


def _replica(context: CompileContext, workers: RankClass) -> Replica:
    """The tasks of a class of workers, without their synchronisation."""
    replica = Replica(context, workers)
    if context.plan.stages > 1:
        add_messages(replica)
    return replica


@dataclass(frozen=True)
class PlanCosts(JobCosts):
    """Costs of the replicas of a plan. times: durations of passes for which its schedule was made."""

    plan: Plan = field(default_factory=Plan)
    times: PassTimes = field(default_factory=PassTimes)

    def in_passes(self) -> Callable[[], PassCommunication] | None:
        """The collectives within the passes; None without any."""
        return None if self.job.exchange is None else partial(pass_communication, self.job, self.microbatches)

    def at(self, job: Job) -> PlanCosts | None:
        """The costs of another job; None if the schedule would be another one."""
        job = with_collectives(self.plan, job)
        return replace(self, job=job) if pass_times(self.plan, job) == self.times else None


def _folded(classes: list[RankClass], plan: Plan, job: Job, ranges: Sequence[range]) -> tuple[list[RankClass], LinkClasses]:
    """Classes of equivalent workers, and of equivalent links if the engine lets messages share links."""
    if not can_fold(classes, plan, job):
        return classes, {}
    if not job.shares_links:
        return folded(classes, plan, job), {}
    if job.cluster.is_uniform:
        return classes, {}
    unshared = compile_plan(plan, replace(job, shares_links=False), ranges)
    return folded_with_links(classes, plan, job, unshared)


def _check_units(units: int, microbatches: int) -> None:
    """Raises FieldError where units with sharded gradients are too many to be passed one by one."""
    if units * microbatches > _MAX_UNITS:
        message = f"{units * microbatches} passes over layers with sharded gradients are too many to simulate"
        raise FieldError(("strategy", "microbatches"), f"{message}; give at most {_MAX_UNITS // units}, or training.zero=1")
