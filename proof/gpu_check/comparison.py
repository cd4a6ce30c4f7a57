"""Measured runs of the GPU check against predictions for the shipped device, without calibration, and predicted memory."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Device
from scaleproof.simulator.common.units import format_bytes, format_change, format_time_s
from scaleproof.simulator.memory.result import OUTSIDE
from scaleproof.simulator.model import ResNet
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.steps import total_steps

# Memory that measured peaks do not contain.
_OUTSIDE: Final = (*OUTSIDE, "fragmentation")
_LABEL_BYTES: Final = 8


def compared(scenario: Scenario, measured: Run, predicted: Run, device: Device | None) -> dict[str, float]:
    """Step time in seconds and peak memory in bytes, measured and predicted, as far as known.

    uncalibrated_s: predicted for the shipped device.
    """
    numbers: dict[str, float] = {}
    if device is not None:
        cluster = scenario.cluster.model_copy(update={"device": device})
        uncalibrated = predict(scenario.model_copy(update={"cluster": cluster}))
        numbers |= {"measured_s": measured.step_time_s, "uncalibrated_s": uncalibrated.step_time_s}
    if measured.memory_bytes_per_rank:
        bytes_by_holder = predicted.memory_bytes or {}
        numbers["measured_bytes"] = measured.memory_bytes_per_rank - ahead_bytes(scenario)
        numbers["predicted_bytes"] = sum(size for holder, size in bytes_by_holder.items() if holder not in _OUTSIDE)
    return numbers


def describe(numbers: dict[str, float]) -> str:
    """The result of `compared` as text."""
    parts = []
    if "uncalibrated_s" in numbers:
        error = numbers["uncalibrated_s"] / numbers["measured_s"] - 1
        times = format_time_s(numbers["measured_s"]), format_time_s(numbers["uncalibrated_s"])
        parts.append(f"measured {times[0]}, uncalibrated {times[1]} ({format_change(error)})")
    if "measured_bytes" in numbers:
        error = numbers["predicted_bytes"] / numbers["measured_bytes"] - 1
        parts.append(f"memory {format_bytes(numbers['measured_bytes'])}, predicted {format_change(error)}")
    return "; ".join(parts)


def ahead_bytes(scenario: Scenario) -> float:
    """Bytes of the samples of later steps, which are on the device before the first step begins."""
    model = scenario.model
    if isinstance(model, ResNet):
        sample_bytes = 3 * model.image**2 * ELEMENT_BYTES[scenario.training.precision] + _LABEL_BYTES
    else:
        sample_bytes = 2 * _LABEL_BYTES * getattr(model, "sequence", 1)
    return float(scenario.samples_per_worker * sample_bytes * (total_steps(scenario) - 1))
