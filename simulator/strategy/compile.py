"""Compilation of a plan: rank schedules, rank classes of replicas, and gradient synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.parallelism.mesh import Placed
from scaleproof.simulator.parallelism.plan import Plan, check_size
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.program import Program
from scaleproof.simulator.strategy.data_parallel.buckets import RankLayers
from scaleproof.simulator.strategy.data_parallel.gradient_sync import GradientSync
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.folding import can_fold, folded, folded_with_links, worker_classes
from scaleproof.simulator.strategy.layout.resource_map import LinkClasses
from scaleproof.simulator.strategy.parameter_server.hybrid import add_servers
from scaleproof.simulator.strategy.pipeline.rank_schedule import rank_schedule
from scaleproof.simulator.strategy.pipeline.stage_partition import cut
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext, Replica
from scaleproof.simulator.strategy.plan_costs import pass_times, with_collectives
from scaleproof.simulator.strategy.program_template import ProgramTemplate, delayed_s, from_template, in_passes

# Limit of units of layers · microbatches, of about five tasks each; 6 GB at the limit.
_MAX_UNITS: Final = 800_000


def compile_replicas(strategy: ReplicaStrategy, job: Job) -> Program:
    """Compiles one training step of a strategy's replicas. Raises FieldError for too many passes."""
    return compile_plan(strategy.plan, job, cut(job, strategy.plan, strategy.balance_of))


def compile_plan(plan: Plan, job: Job, ranges: Sequence[range]) -> Program:
    """One step of all replicas. ranges: layers of each stage of the model. Raises FieldError for too many passes."""
    job = with_collectives(plan, job)
    # templates do not cover servers and data loading
    if plan.servers or job.input is not None:
        return record(plan, job, ranges).program
    return from_template(plan, job, ranges, record)


def record(plan: Plan, job: Job, ranges: Sequence[range]) -> ProgramTemplate:
    """Compiles the job, which has the collectives of the plan, and records how its numbers are computed."""
    rank_layers = RankLayers(job.layers, plan)
    classes = worker_classes(plan, job)
    link_classes: LinkClasses = {}
    # sums of weights that two stages have, of all workers at once, share links
    if not rank_layers.copied:
        classes, link_classes = _folded(classes, plan, job, ranges)
    check_size(plan, len(classes))
    units = [rank_layers.units(stage, plan, job) for stage in ranges]
    cuts_all_passes = job.zero == 3 or job.scatters
    if cuts_all_passes:
        _check_units(len(classes) * sum(map(len, units)), plan.microbatches)
    schedule = rank_schedule(plan, [[unit.layers for unit in stage] for stage in units], cuts_all_passes, pass_times(plan, job))
    context = CompileContext(plan, job, ranges, schedule, rank_layers, units, link_classes)
    replicas = [Replica(context, placed) for placed in classes]
    if plan.servers:
        add_servers(context, replicas)
    else:
        GradientSync(context, replicas).add()
    program = context.builder.build(in_passes(job, plan.microbatches))
    columns = {name: getattr(program, name) for name in ("latency_s", "amount", "max_rate")}
    program = replace(program, latency_s=delayed_s(columns, context.recorder.delays, context.job_costs))
    return ProgramTemplate(program, context.recorder, plan.microbatches, link_classes)


def _folded(classes: list[Placed], plan: Plan, job: Job, ranges: Sequence[range]) -> tuple[list[Placed], LinkClasses]:
    """Classes of equivalent workers, and of equivalent links if the engine lets messages share links."""
    if not job.shares_links:
        return folded(classes, plan, job), {}
    if job.cluster.is_uniform or not can_fold(classes, plan, job):
        return classes, {}
    unshared = from_template(plan, replace(job, shares_links=False), ranges, record)
    return folded_with_links(classes, plan, job, unshared)


def _check_units(units: int, microbatches: int) -> None:
    """Raises FieldError where units with sharded gradients are too many to be passed one by one."""
    if units * microbatches > _MAX_UNITS:
        message = f"{units * microbatches} passes over layers with sharded gradients are too many to simulate"
        raise FieldError(("strategy", "microbatches"), f"{message}; give at most {_MAX_UNITS // units}, or training.zero=1")
