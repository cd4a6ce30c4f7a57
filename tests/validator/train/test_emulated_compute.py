"""Emulated compute: passes take the predicted time, messages have the scenario's sizes, gradients are real."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.perturbations import Perturbations
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import COMPUTE_PHASES, Stream
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import MeasureOptions, measure, train_here
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.record import emulation_lateness
from scaleproof.validator.record.emulation_lateness import MOST_LATE_S
from scaleproof.validator.strategy import train
from scaleproof.validator.train import emulated_compute
from scaleproof.validator.train.emulated_compute import EmulatedLayerTimes, Pace
from scaleproof.validator.train.perturbed import RankPerturbations
from tests.validator.conftest import CLUSTER, GPT
from tests.validator.verdicts import in_bulk

# A pass of its layers takes milliseconds, next to which waking up late is little.
SLOW = {
    "nodes": 4,
    "node": {"devices": 1},
    "network": {"bandwidth": "20 Gbit/s", "latency": "50 us"},
    "device": CLUSTER["device"] | {"peak": {"fp32": "2 GFLOP/s", "fp64": "1 GFLOP/s"}},  # type: ignore[operator]
}
FAST = CLUSTER["device"] | {"peak": {"fp32": "50 TFLOP/s", "fp64": "1 TFLOP/s"}}  # type: ignore[operator]
RING = {"kind": "data_parallel", "workers": 2}
EITHER = [RING, {"kind": "pipeline", "stages": 2, "microbatches": 2}]


def scenario(
    strategy: dict[str, Any] = RING, model: Any = GPT, steps: int = 4, device: Any = SLOW["device"],
    framework: str = "gloo-cpu", **training: Any,
) -> Scenario:  # fmt: skip
    plain = {
        "name": "paced",
        "model": model,
        "cluster": SLOW | {"device": device},
        "framework": shipped(framework),
        "strategy": strategy,
        "batch": {"total": 4},
        "steps": steps,
    }
    return Scenario.model_validate(plain | {"compute": "paced", "training": {"warmup_steps": 2, **training}})


def predicted_s(one: Scenario) -> float:
    """Predicted seconds of compute of a rank per step, without the host's work between passes, which is not emulated."""
    reported = predict(one.model_copy(update={"framework": one.framework.ablated("host")})).phase_s
    return sum(reported[phase.label] for phase in COMPUTE_PHASES)


def waited_s(run: Run) -> float:
    """Seconds per step in which a rank waits for its emulated compute: the mean, where a run reports its median step."""
    assert run.spans is not None
    waits = run.spans.where(np.isin(run.spans.phase, COMPUTE_PHASES))
    return float((waits.end_s - waits.arrival_s).sum()) / run.ranks / len(run.step_times_s)


@pytest.mark.parametrize("strategy", EITHER)
def test_passes_take_at_least_the_predicted_time(strategy: dict[str, Any]) -> None:
    one = scenario(strategy)
    run = measure(one)

    assert run.compute == "paced"
    # what was late before the first step is made up for in some phase of it; a loaded machine wakes sleepers late, never early
    assert waited_s(run) > predicted_s(one) - MOST_LATE_S / one.steps


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", EITHER)
def test_passes_take_the_predicted_time_on_a_quiet_machine(strategy: dict[str, Any]) -> None:
    one = scenario(strategy, steps=20)
    assert waited_s(measure(one)) < 1.2 * predicted_s(one)


class CountedPace:
    """Adds up the emulated seconds of passes, in which nothing waits."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def times(self, samples: int) -> list[EmulatedLayerTimes]:
        return [EmulatedLayerTimes(forward_s=1.0, inputs_s=2.0, weights_s=4.0)] * 3

    def wait(self, begin_s: float, duration_s: float) -> None:
        self.passed_s += duration_s

    wait_for_weights = wait


@pytest.mark.parametrize("reads_trained", [True, False])
def test_gradients_are_there_at_the_end_of_a_layers_pass(reads_trained: bool) -> None:
    """As predictions have it, sums of gradients follow the pass of the layer."""
    pace = CountedPace()
    (layer,) = emulated_compute.build(scenario(), [1], pace)  # type: ignore[arg-type]
    found: list[float] = []
    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: found.append(pace.passed_s))
    layer(torch.ones(2, 64, requires_grad=reads_trained)).sum().backward()
    assert found == [7.0] * len(list(layer.parameters()))
    assert pace.passed_s == 7.0


def test_gradients_of_weights_in_a_pass_of_their_own_take_their_part() -> None:
    pace = CountedPace()
    (layer,) = emulated_compute.build(scenario(), [1], pace)  # type: ignore[arg-type]
    x = torch.ones(2, 64, requires_grad=True)
    loss = layer(x).sum()
    torch.autograd.grad(loss, x, retain_graph=True)
    assert pace.passed_s == 3.0


@pytest.mark.parametrize(("precision", "element_bytes"), [("tf32", 4), ("fp8", 2), ("fp4", 2)])
def test_products_that_the_machine_lacks_are_emulated(precision: str, element_bytes: int) -> None:
    # stored numbers of narrow products have 16 bits
    device = SLOW["device"] | {"peak": {precision: "50 GFLOP/s", "bf16": "25 GFLOP/s"}}  # type: ignore[operator]
    one = scenario(RING, precision=precision, device=device, framework="ideal")

    spans = measure(one).spans

    assert spans is not None
    moved = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.rank == 0) & (spans.step == 2))
    assert moved.size_bytes.sum() == element_bytes * one.model.parameters()
    with pytest.raises(InputError, match=f"precision: {precision} is predicted but not measured.*or set compute=paced"):
        check_trainable(one.model_copy(update={"compute": "real"}))


def test_fused_accumulation_is_emulated() -> None:
    one = scenario({"kind": "data_parallel", "workers": 2, "microbatches": 2}, precision="fp64", fused_accumulation=True)
    verified = measure(one, watch=MeasureOptions(verify=True)).verified
    assert verified is not None
    assert verified.deviation <= verified.tolerance
    with pytest.raises(InputError, match=r"training\.fused_accumulation is predicted but not measured"):
        check_trainable(one.model_copy(update={"compute": "real"}))


@pytest.mark.parametrize(
    "strategy",
    [RING, *in_bulk({"kind": "parameter_server", "workers": 2})],
)
def test_the_small_model_passes_verification(strategy: dict[str, Any]) -> None:
    verified = measure(scenario(strategy, precision="fp64"), watch=MeasureOptions(verify=True)).verified

    assert verified is not None
    assert verified.deviation < 1e-9


@pytest.mark.full
def test_models_that_cannot_be_trained_can_be_emulated() -> None:
    assert measure(scenario(model={"kind": "alexnet", "name": "alexnet"}, steps=2, device=FAST)).losses


def test_padding_has_zero_gradients_and_the_rest_is_trained() -> None:
    layers = torch.nn.Sequential(*emulated_compute.build(scenario(), range(6), None))
    layers(torch.randn(3, 4)).square().sum().backward()

    for parameter in layers.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0
        assert not parameter.grad[16:].any()


class FakeTime:
    """Clocks and sleeps of a machine that wakes sleepers late."""

    def __init__(self, wake_up_s: float = 0.0) -> None:
        self.now_s, self.wake_up_s = 0.0, wake_up_s

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.wake_up_s


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    for module in (emulated_compute, emulation_lateness):
        monkeypatch.setattr(module, "time", fake)
    return fake


def test_passes_take_the_predicted_time(fake_time: FakeTime) -> None:
    """To the last digit, where a machine wakes sleepers in time."""
    one = scenario()
    layers = torch.nn.Sequential(*emulated_compute.build(one, range(6), Pace(one)))

    outputs = layers(torch.randn(2, 4))
    forward_s = fake_time.now_s
    outputs.square().sum().backward()

    phase_s = predict(one).phase_s
    assert forward_s == pytest.approx(phase_s["forward"])
    assert fake_time.now_s - forward_s == pytest.approx(phase_s["backward"])


@pytest.mark.parametrize("compression", [None, {"kind": "fp16"}, {"kind": "top_k", "share": 0.05}, {"kind": "power_sgd"}])
def test_the_optimizer_takes_the_predicted_time_with_compression(fake_time: FakeTime, compression: Any) -> None:
    one = scenario(RING | {"compression": compression})
    pace = Pace(one)
    layers = torch.nn.Sequential(*emulated_compute.build(one, range(6), pace))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    pace.slow_down(optimizer, sum(map(torch.numel, layers.parameters())))

    optimizer.step()

    assert fake_time.now_s == pytest.approx(predict(one).phase_s["optimizer"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(delays_s=st.lists(st.floats(0, 0.02), min_size=1, max_size=30), wake_up_s=st.floats(0, 0.002))
def test_lateness_is_made_up_in_later_waits(delays_s: list[float], wake_up_s: float, fake_time: FakeTime) -> None:
    fake_time.wake_up_s = wake_up_s
    pace, duration_s, began_s = Pace(scenario()), 0.004, fake_time.now_s
    for delay_s in delays_s:
        begin_s = fake_time.now_s
        fake_time.now_s += delay_s
        pace.wait(begin_s, duration_s)
    took_s = fake_time.now_s - began_s

    note = pace.lateness.note()
    assert note["paced_s"] == pytest.approx(len(delays_s) * duration_s)
    # late by the last wait, and by lateness that cannot be made up for, which is reported
    assert took_s == pytest.approx(note["paced_s"] + note["overrun_s"] + pace.lateness.late_s)


def test_lateness_excludes_warm_up(fake_time: FakeTime) -> None:
    pace = Pace(scenario())
    fake_time.now_s = 3.0
    pace.wait(0.0, 0.01)
    assert pace.lateness.note()["overrun_s"] > 2.9

    pace.lateness.begin()
    pace.wait(fake_time.now_s, 0.01)

    note = pace.lateness.note()
    assert (note["overrun_s"], note["paced_s"]) == (0.0, 0.01)
    assert note["took_s"] == pytest.approx(0.005), "what was late is made up for"


class SlowStart(Pace):
    """Is very late before the first pass."""

    def __init__(self, scenario: Scenario, rank: int = 0, perturbations: RankPerturbations | None = None) -> None:
        super().__init__(scenario, rank, perturbations)
        self.lateness.add(0.0, time.perf_counter() - 1e3)


def train_with_a_slow_start(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    vars(train)["Pace"] = SlowStart
    return train_here(scenario, parameters_folder)


@pytest.mark.full
def test_a_run_records_the_lateness_of_measured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", train_with_a_slow_start)

    reported = measure(scenario()).provenance

    assert float(reported["compute_overrun"].partition("%")[0]) < 1000
    assert reported["compute_lateness"].startswith("woke up ")


def test_compute_of_stragglers_lasts_longer(fake_time: FakeTime) -> None:
    uneven = scenario().model_copy(
        update={"unevenness": Perturbations.model_validate({"stragglers": [{"ranks": [1], "slowdown": 2.5}]})}
    )
    took_s = []
    for rank in (0, 1):
        pace, begin_s = Pace(uneven, rank), fake_time.now_s
        layers = torch.nn.Sequential(*emulated_compute.build(uneven, range(6), pace))
        layers(torch.randn(2, 4)).square().sum().backward()
        took_s.append(fake_time.now_s - begin_s)
    assert took_s[1] == pytest.approx(2.5 * took_s[0])


def test_ranks_on_different_devices_have_their_own_times() -> None:
    """The device of the second node is given as half as fast in everything."""
    own = SLOW["device"]
    device = own | {"peak": {"fp32": "2 GFLOP/s"}, "efficiency": 1, "memory_bandwidth": "2 GB/s", "name": "full"}
    half = device | {"peak": {"fp32": "1 GFLOP/s"}, "memory_bandwidth": "1 GB/s", "name": "half"}
    nodes = [{"count": 1}, {"count": 1, "device": half}]
    mixed = scenario().copied(cluster=Cluster.model_validate(SLOW | {"device": device, "nodes": nodes}))
    per_node = mixed.cluster.node.devices
    fast, slow = Pace(mixed, 0).times(1), Pace(mixed, per_node).times(1)
    assert [two.forward_s for two in slow] == pytest.approx([2 * two.forward_s for two in fast])
