"""The job that a scenario describes, and its program."""

from __future__ import annotations

from dataclasses import replace

from scaleproof.simulator.cluster.perturbations import Perturbations
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.replicas import peers_of
from scaleproof.simulator.parallelism.used_devices import placed
from scaleproof.simulator.program import Program
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import gradient_sizes
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.plan_costs import stage_layers


def job_of(
    scenario: Scenario,
    samples_per_worker: int | None = None,
    unevenness: Perturbations | None = None,
    strategy: Strategy | None = None,
) -> Job:
    """The job that a strategy compiles: layers with their costs on the cluster, and perturbations of ranks.

    Each argument is that of the scenario if it is None. The scenario's own job is made once.
    """
    if samples_per_worker is None and strategy is None and unevenness in (None, scenario.unevenness):
        return scenario.cached(_own_job)
    return _job(
        scenario,
        strategy or scenario.strategy,
        scenario.samples_per_worker if samples_per_worker is None else samples_per_worker,
        scenario.unevenness if unevenness is None else unevenness,
    )


def job_of_rank(scenario: Scenario, rank: int) -> Job:
    """The job of a scenario on the kind of nodes that a rank is on."""
    job = job_of(scenario)
    own = job.cluster.with_device_of(job.cluster.kind_of(job.cluster.place(rank)[0]))
    return job if own is job.cluster else replace(job, cluster=own)


def program_of(scenario: Scenario) -> Program:
    """The program of a scenario's strategy, without the background traffic of its cluster; compiled once."""
    return scenario.cached(_own_program)


def _own_program(scenario: Scenario) -> Program:
    return compile_step(scenario.strategy, job_of(scenario))


def _own_job(scenario: Scenario) -> Job:
    return _job(scenario, scenario.strategy, scenario.samples_per_worker, scenario.unevenness)


def _job(scenario: Scenario, strategy: Strategy, samples_per_worker: int, unevenness: Perturbations) -> Job:
    training, plan = scenario.training, strategy.plan
    cluster = scenario.cluster if strategy is scenario.strategy else placed(scenario.cluster, plan)
    layers, lengths = scenario.layers(plan.shard, peers_of(strategy, samples_per_worker)), scenario.length_statistics
    job = Job(
        layers=strategy.worker_layers(layers, samples_per_worker),
        imbalance=1.0 if lengths is None else lengths.imbalance(layers),
        cluster=scenario.framework.reached(cluster),
        samples_per_worker=samples_per_worker,
        precision=training.precision,
        optimizer=training.optimizer,
        unevenness=unevenness,
        recompute=training.recompute,
        gradients=gradient_sizes(training, strategy, scenario.framework),
        scatter=plan.scatter,
        zero=training.zero,
        input=scenario.input,
        reading_nodes=cluster.nodes_of(strategy.training_ranks),
        measured_step=training.measured_step,
        framework=scenario.framework,
        recipe=scenario.recipe,
        autocast=training.has_wide_stream,
        trained_bytes=training.parameter_bytes,
        master=training.master,
        state_bits=training.state_bits,
        ema=training.ema,
        clips=training.clip_gradients,
        offload=training.offload,
        uses_drives=training.offload_to == "nvme",
        delays_update=training.delay_update,
        ranks=strategy.waiting_ranks,
        group=plan.waiting_within,
        pipelined_ranks=plan.pipelined_ranks(cluster),
        is_emulated=scenario.compute == "paced",
    )
    return job.recomputing(stage_layers(strategy, job)) if training.recompute.depends_on_stage else job
