"""Prediction of a training run, from top to bottom: scenario -> costs -> program -> timeline -> run -> interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster.host import assumptions
from scaleproof.simulator.cluster.network.links import one_card_warning
from scaleproof.simulator.cluster.network.reached import state_note
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.engine import Timeline, simulate_steady
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.memory import HostUse, RankMemory, memory
from scaleproof.simulator.model.fine_tuning import parameter_counts, trained_words
from scaleproof.simulator.model.layers import Layer, Shard
from scaleproof.simulator.model.operators import Convolution
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.parallelism.used_devices import placement_warnings
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.prediction.background_traffic import with_background_traffic
from scaleproof.simulator.prediction.capture_facts import with_capture_facts
from scaleproof.simulator.prediction.loading import loading_rates
from scaleproof.simulator.prediction.scaling import compared
from scaleproof.simulator.prediction.staleness import asynchronous_times, counted_samples, summary
from scaleproof.simulator.prediction.steps import Simulate, disturbed, realisation, warnings, with_transient_jitter
from scaleproof.simulator.run.bottleneck import WAITING_FOR_INPUT
from scaleproof.simulator.run.breakdown import StepBreakdown, from_spans
from scaleproof.simulator.run.records import LoadingRates, StageMemory
from scaleproof.simulator.run.run import DISTURBED, Run
from scaleproof.simulator.scenario.framework_choice import software_words
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import compile_step
from scaleproof.simulator.strategy.data_parallel.tables import lookup_words
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.parameter_server.shards import row_words
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of, program_of
from scaleproof.simulator.uncertainty.error_model import ErrorModel, memory_error
from scaleproof.simulator.uncertainty.prediction_interval import of_response
from scaleproof.simulator.uncertainty.response import response_of_scenario
from scaleproof.simulator.uncertainty.step_distribution import step_distribution
from scaleproof.simulator.uncertainty.unmodelled import most_s, unmodelled

if TYPE_CHECKING:
    from scaleproof.simulator.memory.remedies import SettingsChange


def predict(scenario: Scenario, interval: bool = True, remedy: bool = True, errors: ErrorModel | None = None) -> Run:
    """Predicts step time, throughput, breakdown, communication, FLOPs, memory, energy and cost of a scenario, and its weak and
    strong scaling efficiency against the smallest baseline.

    interval: also compute the 90 % prediction interval of the step time, which takes one to three times as long as the rest.
    remedy: also search for settings with which the memory suffices, where it does not; this takes as long again.
    errors: the shipped error model if None.
    Raises FieldError for more steps than can be simulated.
    """
    run = timed(scenario, interval, errors=errors)
    run = compared(run, scenario)
    run = accounted(run, scenario)
    if isinstance(scenario.strategy, CapturedStrategy):
        run = with_capture_facts(run, scenario.strategy, scenario)
    run = replace(
        run,
        loading=loading(scenario, run),
        host_share=_host_share(scenario),
        host_update_share=run.phase_s["optimizer"] / run.step_time_s if "optimizer" in scenario.training.offload else None,
        textbook_bubble=_textbook_bubble(scenario),
    )
    return _with_memory(run, scenario, remedy, errors)


def timed(
    scenario: Scenario,
    interval: bool = False,
    simulate: Simulate = simulate_steady,
    shares_links: bool = True,
    errors: ErrorModel | None = None,
    draws: bool = True,
) -> Run:
    """Predicts the step time of a scenario and its breakdown, without scaling efficiency, FLOPs, energy, cost and memory.

    simulate: times the program. shares_links: whether it models that messages share links. errors: the shipped error model if
    None. draws: whether messages vary in short runs of asynchronous ranks, also where the scenario has no jitter.

    Raises FieldError for more steps than can be simulated.
    """
    scenario = with_transient_jitter(scenario) if draws else scenario
    job = job_of(scenario) if shares_links else replace(job_of(scenario), shares_links=False)
    program = program_of(scenario) if shares_links else compile_step(scenario.strategy, job)
    program = with_background_traffic(program, scenario) if scenario.unevenness.tenants else program
    timelines, deviation = realisation(scenario, program, simulate)
    run = _run(scenario, job, timelines)
    return _with_interval(run, scenario, deviation, errors) if interval else run


def _run(scenario: Scenario, costs: Job, timelines: Sequence[Timeline]) -> Run:
    """The run of timelines: mean times of one training step, with the names of the scenario and warnings."""
    cluster = scenario.cluster
    calibration, notes = disturbed(cluster), [one.note for one in unmodelled(scenario)]
    if scenario.uses_host:
        notes.append(assumptions(cluster))
    state = state_note(cluster.network.state) if cluster.network is not None and cluster.nodes > 1 else ""
    described = (one_card_warning(cluster), *placement_warnings(scenario.strategy.plan, cluster), state, calibration)
    found = (*described, *warnings(scenario, timelines[0]), *notes)
    text = "\n".join(filter(None, found))
    return predicted_run(
        *timelines,
        samples=scenario.total_samples,
        mean=scenario.unevenness.wants_mean,
        program_steps=scenario.strategy.program_steps,
        slowest=(costs.slowest_pass, costs.slowest),
        scenario=scenario.name,
        strategy=scenario.strategy.kind,
        framework=scenario.framework.name,
        framework_is_default=scenario.framework_is_default,
        provenance={
            name: text
            for name, text in (
                ("warnings", text),
                (DISTURBED, calibration),
                ("notes", _notes(scenario, costs.layers, timelines[0])),
            )
            if text
        },
    )


def predicted_run(
    *timelines: Timeline,
    samples: int,
    mean: bool = False,
    program_steps: int = 1,
    slowest: tuple[float, float] = (1.0, 1.0),
    **fields: Any,
) -> Run:
    """A predicted Run of the steps of a timeline after the first, or of several timelines of one asynchronous program.

    samples: per training step, including those that backup workers drop. mean: see `from_spans`. program_steps: training steps
    in a step of the program. slowest: of passes and updates, see `StepBreakdown.with_slowest`. fields: fields that a timeline
    does not have, such as the scenario.
    """
    program = timelines[0].program
    if program.is_static:
        times = _static_times(timelines[0], mean)
    else:
        times, samples = asynchronous_times(timelines), counted_samples(program, samples)
    return Run(
        **vars(times.divided(program_steps).with_slowest(*slowest)),
        origin="predicted",
        rank_names=program.ranks.names,
        samples=samples,
        servers=summary(timelines) if program.has_servers else None,
        **fields,
    )


def _static_times(timeline: Timeline, mean: bool) -> StepBreakdown:
    """Times of a step of ranks that all take the same steps."""
    ranks = timeline.program.ranks
    times = from_spans(
        timeline.spans(), timeline.step_ends_s(), servers=ranks.is_server, multiplicity=ranks.multiplicity, mean=mean
    )
    return times.scaled_to_step()


def _notes(scenario: Scenario, layers: Sequence[Layer], timeline: Timeline) -> str:
    """What the scenario's framework takes words for, and what it does by default, and the compute time of ranks where devices
    differ; a line each."""
    recompute, framework, kernels = scenario.training.recompute, scenario.framework, scenario.cluster.device.kernels
    whole = layers if scenario.strategy.plan.shard == Shard() else scenario.layers(Shard())
    trained, total = parameter_counts(whole)
    notes = [] if trained == total else [f"{trained_words(whole)} are trained"]
    devices, name = scenario.cluster.devices, scenario.cluster.name or "the cluster"
    if scenario.strategy.training_ranks == 1 < devices:
        notes.append(f"1 of the {devices:,} devices of {name} is used; for all, add --set gpus={devices}")
    if (found := scenario.length_statistics) is not None and scenario.batch.lengths is not None:
        slower = (job_of(scenario).imbalance - 1) * 100
        notes.append(
            f"{scenario.batch.lengths.batches} samples: {found.mean:,.0f} of {found.padded:,.0f} computed tokens are real "
            f"({found.mean / found.padded:.0%}); the rank with the longest takes {slower:.0f} % more time than the mean"
        )
    notes += [words] if (words := software_words(scenario)) else []
    notes += [words] if (words := lookup_words(scenario.model, scenario.strategy.plan, job_of(scenario))) else []
    notes += [words] if (words := row_words(scenario.strategy, layers, scenario.samples_per_worker)) else []
    notes += [f"recompute: selective is {recompute.meaning} with {framework.name}"] if recompute.is_named else []
    convolves = any(isinstance(one, Convolution) for layer in layers for one in layer.operators)
    transposes = kernels is not None and framework.transposes_images(kernels.generation, scenario.training.precision)
    # the other framework stores images so in TF32, too
    if convolves and transposes and framework.name == "pytorch-ddp" and scenario.training.precision != "tf32":
        notes.append(
            "images are stored channel by channel, PyTorch's default; for a script that sets channels_last, add "
            "--set framework=pytorch-ddp-channels-last"
        )
    if scenario.cluster.kinds:
        notes.append(_compute_of_kinds(scenario, timeline))
    return "\n".join(notes)


def _compute_of_kinds(scenario: Scenario, timeline: Timeline) -> str:
    """'compute of a step: 2 workers (A100-40GB-PCIe) 181 ms, …; samples of the workers: 18, 18, 12'."""
    spans, names, shares = timeline.spans(), timeline.program.ranks.names, scenario.strategy.plan.shares
    computes = (spans.phase <= Phase.OPTIMIZER) & (spans.step == spans.step.max())
    seconds = np.bincount(spans.rank[computes], (spans.end_s - spans.start_s)[computes], len(names))
    each = ", ".join(f"{name} {format_time_s(one)}" for name, one in zip(names, seconds.tolist(), strict=True))
    return f"compute of a step: {each}" + (f"; samples of the workers: {', '.join(map(str, shares))}" if shares else "")


def loading(scenario: Scenario, run: Run) -> LoadingRates | None:
    """Rates of data loading; None where nothing is loaded."""
    if scenario.input is None:
        return None
    waits = run.breakdown_s.get(WAITING_FOR_INPUT)
    return loading_rates(scenario, (timed(scenario.model_copy(update={"input": None})) if waits else run).samples_per_s)


def _host_share(scenario: Scenario) -> float | None:
    """The share of compute in which kernels wait until the host has launched them; None for captured scripts."""
    if scenario.strategy.kind == "captured":
        return None
    plan = scenario.strategy.plan

    def passes_s(framework: Framework) -> float:
        costs = with_collectives(plan, replace(job_of(scenario), framework=framework)).costs(plan.microbatches)
        return float(costs.forward_s.sum() + costs.backward_s.sum())

    framework = scenario.framework
    with_host_s = passes_s(framework)
    return 1 - passes_s(framework.ablated("host").ablated("waits")) / with_host_s if with_host_s > 0 else 0.0


def _textbook_bubble(scenario: Scenario) -> float | None:
    """The bubble of a pipeline of equal stages, as a share of the step: (p - 1) / (v m + p - 1). None where another formula, or
    none, holds."""
    if not isinstance(scenario.strategy, ReplicaStrategy):
        return None
    plan = scenario.strategy.plan
    if plan.stages == 1 or plan.schedule not in WHOLE:
        return None
    return (plan.stages - 1) / (plan.chunks * plan.microbatches + plan.stages - 1)


def _with_interval(run: Run, scenario: Scenario, deviation: float, errors: ErrorModel | None) -> Run:
    """The run with its 90 % prediction interval in seconds, the shares of the quantities that it comes from, and the
    distribution of single steps. deviation: as in `Realisation`."""
    response = response_of_scenario(scenario, errors)
    found = of_response(response).with_draws(deviation)
    ends_s = found.low * run.step_time_s, found.high * run.step_time_s + most_s(scenario)
    steps = step_distribution(scenario, run, response)
    return replace(run, prediction_interval_s=ends_s, spread=found.shares, step_distribution=steps)


def _with_memory(run: Run, scenario: Scenario, remedy: bool, errors: ErrorModel | None) -> Run:
    """The run with the memory of its ranks, and if it does not suffice, settings with which it does."""
    use = memory(scenario)
    error = memory_error(scenario, errors)
    remedies = adapters = None
    if remedy and not use.fits and scenario.strategy.kind != "captured":
        from scaleproof.simulator.memory.remedies import fitting, fitting_adapters

        remedies = fitting(scenario)
        adapters = fitting_adapters(scenario) if remedies is None else None
    host_problem = "" if use.host is None else use.host.problem
    if host_problem and use.host is not None and use.host.fits:
        run, host_problem = run.warned(host_problem), ""
    return replace(
        run,
        memory_bytes_per_rank=use.worst.total_bytes,
        memory_bytes=use.worst.holders_bytes,
        memory_by_stage=tuple(
            StageMemory(rank.name, rank.total_bytes, rank.holders_bytes, rank.capacity_bytes) for rank in use.ranks
        ),
        server_memory=None if use.servers is None else _server_memory(use.servers, use.host),
        capacity_bytes=use.capacity_bytes,
        fits=use.fits,
        memory_interval_bytes=error and error.interval(use.worst.total_bytes),
        fits_probability=error and error.below(use.capacity_bytes / use.worst.total_bytes),
        fit_by="" if remedies is None else str(remedies),
        fit_by_note=_cost_of_offloading(run, remedies),
        adapters_fit_by="" if adapters is None else str(adapters),
        host_problem=host_problem,
    )


def _server_memory(server: RankMemory, host: HostUse | None) -> StageMemory:
    """The memory of the fullest server. host: of its node, where that is known."""
    return StageMemory(server.name, server.total_bytes, server.holders_bytes, None if host is None else host.capacity_bytes)


def _cost_of_offloading(run: Run, remedies: SettingsChange | None) -> str:
    """The step time with settings that offload something, over that of a run; empty if they do not."""
    if remedies is None or "training.offload" not in remedies.settings:
        return ""
    return f"{timed(remedies.scenario).step_time_s / run.step_time_s:.2g} × the step time"
