"""GPU probes, run on the CPU: all points exist, with plausible times."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scaleproof.simulator.model import ResNet
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.probe import adaptive, compute, gpu
from tests.validator.probe.onranks import least_s, probed


def test_gpu_events_are_read_in_milliseconds_after_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of a device on which a millisecond passes with each."""
    recorded: list[Any] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            assert stream == "the stream"
            recorded.append(self)

        def elapsed_time(self, other: Any) -> float:
            assert waits, "events are read after the device was waited for"
            return float(recorded.index(other) - recorded.index(self))

    waits: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "the stream")
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)

    clock = adaptive.DeviceTimer(torch.device("cuda"))
    begin, end = clock.mark(), clock.mark()
    clock.wait()
    assert clock.seconds(begin, end) == pytest.approx(1e-3)


def test_a_cpu_has_no_kernel_launches_and_no_peer_device() -> None:
    points = probed(gpu.launches, 1, 0.3)
    assert [point.what for point in points] == ["issue", "module"]
    assert least_s(points, "module", 1) > least_s(points, "issue", 1), "modules, and their backward pass, take the host longer"
    assert probed(gpu.device_copies, 1, [2**12], 0.01) == []
    assert run_on_ranks(gpu.facts, 1)[0]["name"] == gpu.CPU


@pytest.mark.full
def test_convolutions_are_timed_for_every_number_of_samples() -> None:
    model = ResNet(image=32, classes=10)
    points = probed(compute.layers, 1, [model], "fp32", [2, 3], 0.0, "fp32")
    assert {(point.what.rpartition(" ")[0], point.size, point.group) for point in points} == {
        (layer.signature, count, "fp32") for layer in model.build_layers() for count in (2, 3)
    }


def test_optimizers_take_longer_the_more_parameters_they_have() -> None:
    points = probed(gpu.optimizers, 1, [2**10, 2**21], "fp32", ["sgd", "adam"], 0.5)
    assert {(point.what, point.size, point.group) for point in points} == {
        (name, size, "fp32") for name in ("sgd", "adam") for size in (2**10, 2**21)
    }
    assert all(least_s(points, name, 2**21) > least_s(points, name, 2**10) for name in ("sgd", "adam"))
