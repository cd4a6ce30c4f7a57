"""Compilation of a plan: rank schedules, rank classes of replicas, and gradient synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.program import Program, ProgramBuilder
from scaleproof.simulator.strategy.data_parallel.gradient_sync import GradientSync, RankLayers
from scaleproof.simulator.strategy.data_parallel.loading_tasks import BatchLoader
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.parameter_server.hybrid import add_servers
from scaleproof.simulator.strategy.pipeline.rank_schedule import rank_schedule
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext, Replica
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.simulator.strategy.program_template import (
    JobCosts,
    ProgramTemplate,
    TemplateKey,
    TemplateRecorder,
    cached_template,
    store_template,
)

# Limit of stages · microbatches of all simulated replicas. At the limit, replay needs 10 s and 1.5 GB on a 2-core virtual
# machine; events needs minutes, when jitter makes messages of hundreds of replicas contend with gradient synchronisation.
_MAX_PASSES: Final = 200_000
# Limit of units of layers · microbatches, of about five tasks each; 6 GB at the limit.
_MAX_UNITS: Final = 800_000


def compile_plan(plan: Plan, job: Job, ranges: Sequence[range]) -> Program:
    """One step of all replicas. ranges: layers of each stage of the model. Raises FieldError for too many passes."""
    job = plan.exchanging(job)
    # templates do not cover servers and data loading
    if plan.servers or job.input is not None:
        return _record(plan, job, ranges).program
    key = TemplateKey.of(plan, job, ranges)
    template = cached_template(key)
    if template is not None:
        return template.fill(job)
    template = _record(plan, job, ranges)
    store_template(key, job.layers, template)
    return template.program


def _record(plan: Plan, job: Job, ranges: Sequence[range]) -> ProgramTemplate:
    """Compiles the job and records how its numbers are computed."""
    builder = ProgramBuilder()
    mesh = plan.grid(job.cluster.node.devices)
    classes = plan.classes(job)
    check_size(plan, len(classes))
    rank_layers = RankLayers(job.layers, plan)
    units = [rank_layers.units(stage, plan, job) for stage in ranges]
    cuts_all_passes = job.zero == 3 or job.scatters
    if cuts_all_passes:
        _check_units(len(classes) * sum(map(len, units)), plan.microbatches)
    schedule = rank_schedule(plan, [[unit.layers for unit in stage] for stage in units], cuts_all_passes, plan.pass_times(job))
    resource_map = ResourceMap(job.cluster, builder)
    recorder = TemplateRecorder(resource_map)
    context = CompileContext(
        builder,
        resource_map,
        BatchLoader(builder, job),
        plan,
        mesh,
        ranges,
        schedule,
        recorder,
        JobCosts(job, plan.microbatches),
    )
    replicas = [Replica(context, replace(job, samples_per_worker=plan.samples_of(one.rank, job)), one) for one in classes]
    if plan.servers:
        add_servers(context, job, replicas)
    else:
        GradientSync(context, job, rank_layers, units, replicas).add()
    return ProgramTemplate(builder.build(), recorder, plan.microbatches)


def _check_units(units: int, microbatches: int) -> None:
    """Raises FieldError where units with sharded gradients are too many to be passed one by one."""
    if units * microbatches > _MAX_UNITS:
        message = f"{units * microbatches} passes over layers with sharded gradients are too many to simulate"
        raise FieldError(("strategy", "microbatches"), f"{message}; give at most {_MAX_UNITS // units}, or training.zero=1")


def check_size(plan: Plan, replicas: int = 1) -> None:
    """Raises FieldError if a step has too many passes to simulate."""
    passes = replicas * plan.stages * plan.chunks * plan.microbatches
    if passes > _MAX_PASSES:
        limit = _MAX_PASSES // (replicas * plan.stages * plan.chunks)
        message = f"{passes} passes in a step are too many to simulate; give at most {limit}"
        raise FieldError(("strategy", "microbatches"), message)
