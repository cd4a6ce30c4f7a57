"""Training: what a rank does in a measured run."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from simulator.scenario import Scenario
from validator import rank
from validator.recorder import Recorder
from validator.strategy import create
from validator.strategy.base import Context

# In the first step buffers are sized and pipeline stages exchange shapes, in the second buckets are cut anew.
_MIN_WARMUP_STEPS: Final = 2


def train(
    scenario: Scenario, sink: Callable[[bytes], Any], parameters_folder: Path | None, clock_offset_s: float = 0.0
) -> dict[str, str]:
    """Trains for the scenario's warm-up steps and steps, handing the spans of each step to `sink`.

    parameters_folder: where the rank saves the parameters it ends with, as `rank<number>.pt`. clock_offset_s: added to
    all times. Returns what the rank ran on.
    """
    me = rank.here()
    warmup_steps = max(_MIN_WARMUP_STEPS, scenario.training.warmup_steps)
    total_steps = warmup_steps + scenario.steps
    recorder = Recorder(me.status, sink, _clock(me.device, clock_offset_s))
    trainer = create(Context(scenario, me.rank, me.device, recorder, total_steps), scenario.strategy)
    # what was built so far is not searched for garbage again in the middle of a step
    gc.freeze()
    for index in range(total_steps):
        recorder.begin_step(index - warmup_steps + 1)
        trainer.step(index)
        recorder.end_step()
    if parameters_folder is not None:
        parameters = {name: value.detach().clone() for name, value in trainer.parameters().items()}
        torch.save(parameters, parameters_folder / f"rank{me.rank}.pt")
    return {"torch": torch.__version__, "backend": dist.get_backend(), "device": _device_name(me.device)}


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
