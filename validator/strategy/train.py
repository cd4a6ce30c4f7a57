"""Training on one rank of a measured run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed as dist

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch import rank
from scaleproof.validator.launch.clock_sync import Alignment
from scaleproof.validator.record import gpu_facts
from scaleproof.validator.record import provenance as environment
from scaleproof.validator.record.cpu_usage import Usage
from scaleproof.validator.record.device_clock import CpuClock, CudaClock, DeviceClock, DeviceEvent
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.record.steps import quota_of, total_steps, warmup_steps
from scaleproof.validator.record.torch_profiler import PROFILED_STEPS, Profiler
from scaleproof.validator.strategy import create
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.train.emulated_compute import Pace
from scaleproof.validator.train.loading import EmulatedLoading
from scaleproof.validator.train.perturbed import RankPerturbations


class RankOutcome(TypedDict):
    """A rank's results other than its spans, as plain data for JSON.

    losses: by measured step, counted from 1, the part of the rank's samples in the mean loss. notes: of the strategy's trainer.
    machine: identifier of the machine. usage: of its processors, see validator.record.cpu_usage. corrections: of the rank's
    clock, applied one after the other, see validator.record.clock_correction. memory_bytes: peak memory of a GPU, allocated and
    reserved beyond that by torch's allocator; empty on the CPU.
    """

    provenance: dict[str, str]
    losses: dict[str, float]
    notes: dict[str, Any]
    machine: str
    usage: dict[str, Any]
    corrections: list[dict[str, float]]
    memory_bytes: dict[str, float]


def train(
    scenario: Scenario, sink: Callable[[bytes], Any], parameters_folder: Path | None, traces_folder: Path | None = None
) -> RankOutcome:
    """Trains for the scenario's warm-up steps and steps, and passes the spans of each step to `sink`.

    parameters_folder: where the rank saves its final parameters, as `rank<number>.pt`. traces_folder: where it writes profiles
    of the last steps of a scenario lengthened for profiling, see validator.record.torch_profiler.
    """
    try:
        return _train(scenario, sink, parameters_folder, traces_folder)
    finally:
        gc.unfreeze()


def _train(
    scenario: Scenario, sink: Callable[[bytes], Any], parameters_folder: Path | None, traces_folder: Path | None
) -> RankOutcome:
    me = rank.here()
    machine = environment.machine()
    alignment = Alignment(machine)
    profiler = Profiler(traces_folder, me.rank, me.device) if traces_folder else None
    recorder = Recorder(me.status, profiler.noting(sink) if profiler else sink, _clock(me.device))
    perturbations = RankPerturbations(scenario, me.rank, lambda: recorder.entered, me.device)
    if scenario.compute == "real" and perturbations.slowdown > 1:
        recorder.lengthen = perturbations.lengthen
    pace = Pace(scenario, me.rank, perturbations) if scenario.compute == "paced" else None
    context = Context(scenario, me.rank, me.device, recorder, total_steps(scenario), pace, perturbations)
    loading = EmulatedLoading.of(scenario, me.rank)
    with closing(create(context, scenario.strategy)) as trainer:
        trainer.begin()
        # keeps garbage collection during steps from scanning the objects built so far
        gc.freeze()
        provenance = environment.of_rank(me.device)
        usage = _take_steps(trainer, profiler, loading)
        # before parameters are gathered and copied, and while clocks are those of training
        memory_bytes = _memory_bytes(me.device)
        if me.device.type == "cuda":
            provenance |= gpu_facts.state(gpu_facts.uuid_of(me.device))
        corrections = (recorder.finish(), alignment.finish())
        if profiler is not None:
            profiler.write_table()
        skipped = trainer.skipped()
        if parameters_folder is not None:
            trainer.complete()
            parameters = {name: value.detach().clone() for name, value in trainer.parameters().items()}
            torch.save(parameters, parameters_folder / f"rank{me.rank}.pt")
        first = warmup_steps(scenario)
        return RankOutcome(
            provenance=provenance,
            losses={str(index - first + 1): loss for index, loss in trainer.losses().items() if index >= first},
            notes=trainer.notes() | (pace.lateness.note() if pace else {}) | ({"skipped": skipped} if skipped else {}),
            machine=machine,
            usage=usage,
            corrections=[asdict(correction) for correction in corrections if correction is not None],
            memory_bytes=memory_bytes,
        )


def copy_parameters(source: Path, target: Path) -> None:
    """Copies the final parameters that each rank has saved in its folder `source` to `target` on rank 0."""
    me = rank.here()
    everyones: list[Any] | None = [None] * me.ranks if me.rank == 0 else None
    # by gloo, as files are read into the host's memory
    group = dist.new_group(backend="gloo")
    dist.gather_object((source / f"rank{me.rank}.pt").read_bytes(), everyones, 0, group)
    for number, content in enumerate(everyones or ()):
        (target / f"rank{number}.pt").write_bytes(content)


def _take_steps(trainer: Trainer, profiler: Profiler | None, loading: EmulatedLoading | None) -> dict[str, Any]:
    """Takes all steps, the last ones under the profiler if there is one; returns the processor usage of the others."""
    context = trainer.context
    first, measured = warmup_steps(context.scenario), context.total_steps - PROFILED_STEPS
    perturbations = context.perturbations
    assert perturbations is not None
    # a predicted run begins with a step that is not counted; units of work begin with the first one that is
    begins = first - 1 if perturbations.are_timed and quota_of(context.scenario) is None else None

    def take(index: int) -> None:
        if index == begins:
            context.begin_run()
        perturbations.begin_step()
        if index == first and context.pace is not None:
            context.pace.lateness.begin()
        context.recorder.begin_step(index - first + 1)
        if loading is not None:
            with context.recorder.span(Phase.INPUT):
                loading.wait()
        trainer.take(index)
        context.recorder.end_step()

    if context.device.type == "cuda":
        # what building the model has left in torch's cache is no part of training
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(context.device)
    began = Usage.now()
    for index in range(measured) if profiler else trainer.steps():
        take(index)
    used = Usage.now().since(began)
    if profiler is not None:
        profiler.trace(take, range(measured, context.total_steps))
    return used


def _clock(device: torch.device) -> DeviceClock:
    """The clock of the device's work."""
    if device.type == "cpu":
        return CpuClock()
    new_event: Callable[[], DeviceEvent] = partial(torch.cuda.Event, enable_timing=True)
    return CudaClock(new_event, partial(torch.cuda.synchronize, device), partial(torch.cuda.current_stream, device))


def _memory_bytes(device: torch.device) -> dict[str, float]:
    if device.type == "cpu":
        return {}
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return {"allocated": float(allocated), "reserved": float(reserved - allocated)}
