"""GPU probes, run on the CPU: all points exist, with plausible times."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from scaleproof.simulator.model import Gpt, Mlp, ResNet
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.probe import device_timer, gpu

GPT = Gpt(layers=2, hidden=16, heads=2, vocabulary=32, sequence=8)


def on_ranks(function: Any, *arguments: Any, ranks: int = 1) -> Any:
    return run_on_ranks(function, ranks, *arguments)[0]


def test_a_step_takes_at_least_its_sleep_and_about_its_budget() -> None:
    clock = device_timer.DeviceTimer(torch.device("cpu"))
    begin_s = time.perf_counter()
    seconds = clock.median_s(lambda: time.sleep(0.002), 0.05)
    assert seconds >= 0.002
    assert time.perf_counter() - begin_s >= 0.05


def test_short_steps_are_repeated_within_a_round() -> None:
    calls: list[None] = []
    device_timer.DeviceTimer(torch.device("cpu")).median_s(lambda: calls.append(None), 0.0)
    assert len(calls) > 100


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
    steps: list[int] = []

    assert device_timer.DeviceTimer(torch.device("cuda")).median_s(lambda: steps.append(len(waits)), 0.0) == pytest.approx(1e-3)
    assert len(steps) == len(set(steps)) + 1, "after the warm-up nothing waits within a round, of which each has a step"


def test_products_are_timed_by_shape_and_precision() -> None:
    shapes, precisions = [(16, 16, 16), (512, 512, 512)], ["fp32", "tf32", "bf16"]
    timings = on_ranks(gpu.matmuls, shapes, precisions, 0.05)
    assert [(t["precision"], (t["m"], t["n"], t["k"])) for t in timings] == [(p, s) for p in precisions for s in shapes]
    small, large = (t["seconds"] for t in timings[:2])
    assert large > small > 0


def test_memory_bandwidth_counts_bytes_read_and_written() -> None:
    timings = on_ranks(gpu.memory, [2**12, 2**20], 0.02)
    assert [(t["what"], t["moved_bytes"]) for t in timings] == [
        ("copy", 2 * 2**12), ("add", 3 * 2**12), ("copy", 2 * 2**20), ("add", 3 * 2**20),
    ]  # fmt: skip
    assert all(t["seconds"] > 0 for t in timings)


def test_a_cpu_has_no_kernel_launches_and_no_peer_device() -> None:
    launches = on_ranks(gpu.launches)
    assert launches["launch_s"] == launches["issue_s"] > 0
    assert launches["module_s"] > launches["issue_s"], "modules, and their backward pass, take the host longer"
    assert on_ranks(gpu.device_copies, [2**12], 0.01) == []
    assert [t["what"] for t in on_ranks(gpu.host_copies, [2**12], 0.01)] == ["host to device", "device to host"]
    assert on_ranks(gpu.facts)["name"] == gpu.CPU


@pytest.mark.parametrize("probe", [gpu.point_to_point, gpu.allreduces])
def test_exchanges_are_timed_with_their_bytes(probe: Any) -> None:
    timings = on_ranks(probe, [4, 2**22], 3, ranks=2)
    assert [t["moved_bytes"] for t in timings] == [4, 2**22]
    assert all(t["seconds"] > 0 for t in timings)


@pytest.mark.parametrize(
    "model", [GPT, Mlp(layers=2, inputs=4, hidden=8, outputs=3), ResNet(image=32, classes=10)], ids=lambda model: model.kind
)
def test_every_kind_of_layer_is_timed_for_every_number_of_samples(model: Gpt | Mlp | ResNet) -> None:
    timings = on_ranks(gpu.layers, model, "fp32", [2, 3], 0.0)
    signatures = list(dict.fromkeys(layer.signature for layer in model.build_layers()))
    assert [(t["signature"], t["samples"]) for t in timings] == [(s, count) for count in (2, 3) for s in signatures]
    assert all(t["forward_s"] > 0 and t["backward_s"] > 0 for t in timings)


def test_optimizers_take_longer_the_more_parameters_they_have() -> None:
    timings = on_ranks(gpu.optimizers, [2**10, 2**21], "fp32", ["sgd", "adam"], 0.05)
    seconds = {(t["optimizer"], t["parameters"]): t["seconds"] for t in timings}
    assert set(seconds) == {(name, size) for name in ("sgd", "adam") for size in (2**10, 2**21)}
    assert all(seconds[name, 2**21] > seconds[name, 2**10] for name in ("sgd", "adam"))
