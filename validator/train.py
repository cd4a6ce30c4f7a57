"""Training: what a rank does in a measured run."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import torch
import torch.distributed as dist

from simulator.scenario import Scenario
from validator import rank
from validator.paced import Pace
from validator.recorder import Recorder
from validator.steps import total_steps, warmup_steps
from validator.strategy import create
from validator.strategy.base import Context


class Outcome(TypedDict):
    """What a rank tells beside its spans, as plain data for JSON. losses: of each steady step what its samples add to the mean
    over all, by the step's number from 1 on. notes: what else the strategy's twin has to tell of it."""

    provenance: dict[str, str]
    losses: dict[str, float]
    notes: dict[str, Any]


def train(
    scenario: Scenario, sink: Callable[[bytes], Any], parameters_folder: Path | None, clock_offset_s: float = 0.0
) -> Outcome:
    """Trains for the scenario's warm-up steps and steps, handing the spans of each step to `sink`.

    parameters_folder: where the rank saves the parameters it ends with, as `rank<number>.pt`. clock_offset_s: added to
    all times.
    """
    me = rank.here()
    first, total = warmup_steps(scenario), total_steps(scenario)
    recorder = Recorder(me.status, sink, _clock(me.device, clock_offset_s))
    pace = Pace(scenario) if scenario.compute == "paced" else None
    trainer = create(Context(scenario, me.rank, me.device, recorder, total, pace), scenario.strategy)
    # what was built so far is not searched for garbage again in the middle of a step
    gc.freeze()
    for index in range(total):
        recorder.begin_step(index - first + 1)
        trainer.take(index)
        recorder.end_step()
    if parameters_folder is not None:
        parameters = {name: value.detach().clone() for name, value in trainer.parameters().items()}
        torch.save(parameters, parameters_folder / f"rank{me.rank}.pt")
    provenance = {"torch": torch.__version__, "backend": dist.get_backend(), "device": _device_name(me.device)}
    if me.device.type == "cuda":
        # what torch's allocator had handed out at the fullest moment
        provenance["peak_memory_bytes"] = str(torch.cuda.max_memory_allocated(me.device))
    losses = {str(index - first + 1): loss for index, loss in trainer.losses().items() if index >= first}
    return Outcome(provenance=provenance, losses=losses, notes=trainer.notes() | (pace.note() if pace else {}))


def _clock(device: torch.device, offset_s: float) -> Callable[[], float]:
    """Seconds, once the device has done what it was told."""
    if device.type == "cpu":
        return (lambda: time.perf_counter() + offset_s) if offset_s else time.perf_counter

    def synchronised() -> float:
        torch.cuda.current_stream(device).synchronize()
        return time.perf_counter() + offset_s

    return synchronised


def _device_name(device: torch.device) -> str:
    return "cpu, 1 thread per rank" if device.type == "cpu" else torch.cuda.get_device_name(device)
