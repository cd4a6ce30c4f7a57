"""Replicas: the program of any plan, from its lanes, its replicas and what these agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.program import Program, ProgramBuilder
from scaleproof.simulator.strategy.data_parallel.gradient_sync import GradientSync, RankLayers
from scaleproof.simulator.strategy.data_parallel.loading_tasks import Feeding
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap
from scaleproof.simulator.strategy.parameter_server.hybrid import add_servers
from scaleproof.simulator.strategy.pipeline.rank_schedule import lanes
from scaleproof.simulator.strategy.pipeline.tasks import CompileContext, Replica
from scaleproof.simulator.strategy.plan import Plan
from scaleproof.simulator.strategy.program_template import JobCosts, ProgramTemplate, TemplateKey, TemplateRecorder, keep, kept

# stages · microbatches of all replicas that are simulated; as many take 10 s and 1.5 GB on a 2-core virtual machine by replay,
# and minutes by events, where jitter makes messages of hundreds of replicas share noticeably with what all of them agree on
_MOST_PASSES: Final = 200_000
# units of layers · microbatches, of about five tasks each: as many take 6 GB
_MOST_UNITS: Final = 800_000


def compile_plan(plan: Plan, job: Job, ranges: Sequence[range]) -> Program:
    """One step of all replicas. ranges: the layers of each stage of the model. Raises FieldError for too many passes."""
    job = plan.exchanging(job)
    # servers and what feeds ranks have numbers of their own
    if plan.servers or job.input is not None:
        return _sketched(plan, job, ranges).program
    shape = TemplateKey.of(plan, job, ranges)
    sketch = kept(shape)
    if sketch is not None:
        return sketch.filled(job)
    sketch = _sketched(plan, job, ranges)
    keep(shape, job.layers, sketch)
    return sketch.program


def _sketched(plan: Plan, job: Job, ranges: Sequence[range]) -> ProgramTemplate:
    """The program as the job has it, and what its numbers follow from."""
    builder = ProgramBuilder()
    grid = plan.grid(job.cluster.node.devices)
    classes = plan.classes(job)
    check_size(plan, len(classes))
    held = RankLayers(job.layers, plan)
    found = [held.units(stage, plan, job) for stage in ranges]
    all_cut = job.zero == 3 or job.scatters
    if all_cut:
        _check_units(len(classes) * sum(map(len, found)), plan.microbatches)
    tasks = lanes(plan, [[unit.layers for unit in stage] for stage in found], all_cut, plan.pass_times(job))
    fabric = ResourceMap(job.cluster, builder)
    draft = TemplateRecorder(fabric)
    shop = CompileContext(
        builder, fabric, Feeding(builder, job), plan, grid, ranges, tasks, draft, JobCosts(job, plan.microbatches)
    )
    replicas = [Replica(shop, replace(job, samples_per_worker=plan.samples_of(placed.rank, job)), placed) for placed in classes]
    if plan.servers:
        add_servers(shop, job, replicas)
    else:
        GradientSync(shop, job, held, found, replicas).add()
    return ProgramTemplate(builder.build(), draft, plan.microbatches)


def _check_units(units: int, microbatches: int) -> None:
    """Raises FieldError where units whose gradients are shared out are too many to be passed one by one."""
    if units * microbatches > _MOST_UNITS:
        message = f"{units * microbatches} passes over layers that share their gradients out are too many to simulate"
        raise FieldError(("strategy", "microbatches"), f"{message}; give at most {_MOST_UNITS // units}, or training.zero=1")


def check_size(plan: Plan, replicas: int = 1) -> None:
    """Raises FieldError where a step has more passes than can be simulated one by one."""
    passes = replicas * plan.stages * plan.chunks * plan.microbatches
    if passes > _MOST_PASSES:
        most = _MOST_PASSES // (replicas * plan.stages * plan.chunks)
        message = f"{passes} passes in a step are too many to simulate; give at most {most}"
        raise FieldError(("strategy", "microbatches"), message)
