"""Emulated pipelines take the time of their schedules: weight gradients have separate passes, which fill bubbles."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.plan_costs import stage_layers
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.measure import measure
from scaleproof.validator.record.emulation_lateness import MOST_LATE_S
from scaleproof.validator.train import emulated_compute
from tests.validator.conftest import CLUSTER, GPT

pytestmark = pytest.mark.full

# a pass of a stage takes 14 ms or more, next to which messages and waking up take little
SLOW = CLUSTER["device"] | {"peak": {"fp32": "1 GFLOP/s"}}  # type: ignore[operator]
NODE = {"devices": 64, "link": {"bandwidth": "2 GB/s", "latency": "50 us"}}
CHUNKS = {"zb_v": 2, "interleaved_zero_bubble": 2}
IN_TURN = ("gpipe", "1f1b")
# At most, in a step, that a rank's pass waits for another rank's.
BUBBLES = 5
SCHEDULES = ["gpipe", "1f1b", "interleaved_zero_bubble", "zb_h1", "zb_v"]


def scenario(schedule: str) -> Scenario:
    strategy = {"kind": "pipeline", "schedule": schedule, "stages": 2, "chunks": CHUNKS.get(schedule, 1), "microbatches": 3}
    plain = {
        "name": "paced",
        "model": {**GPT, "layers": 8},
        "cluster": {"node": NODE, "device": SLOW},
        "strategy": strategy | {"overlap_sends": schedule not in IN_TURN},
        "batch": {"total": 3},
        "steps": 6,
    }
    return Scenario.model_validate(plain | {"compute": "paced", "training": {"warmup_steps": 2}})


@cache
def run_of(schedule: str) -> Run:
    return measure(scenario(schedule))


def passes_s(run: Run, microbatch: int) -> np.ndarray:
    """What the second rank's passes of a microbatch take in turn: medians over the steps."""
    assert run.spans is not None
    own = run.spans.where((run.spans.rank == 1) & (run.spans.microbatch == microbatch))
    done = own.where(np.isin(own.phase, (Phase.FORWARD, Phase.BACKWARD)))
    return np.median((done.end_s - done.start_s).reshape(len(run.step_times_s), -1), axis=0)


def test_input_and_weight_gradient_passes_take_separate_times() -> None:
    one = scenario("zb_h1")
    job, microbatches, stage = job_of(one), one.strategy.microbatches, stage_layers(one.strategy, job_of(one))[1]  # type: ignore[attr-defined]
    costs, weights_s = job.costs(microbatches), job.weights_s(microbatches)
    theirs_s = [float(values[stage.start : stage.stop].sum()) for values in (costs.forward_s, costs.backward_s, weights_s)]

    took_s = passes_s(run_of("zb_h1"), 0)

    # a loaded machine wakes sleepers late; what was late before is made up for
    expected_s = np.array([theirs_s[0], theirs_s[1] - theirs_s[2], theirs_s[2]])
    assert expected_s.min() > 2 * MOST_LATE_S
    assert (took_s > expected_s - MOST_LATE_S).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steps_take_at_least_the_simulated_time(schedule: str) -> None:
    predicted_s = predict(scenario(schedule)).step_time_s

    # a loaded machine wakes sleepers late, never early: what a rank was late in a bubble, it makes up for after it
    assert min(run_of(schedule).step_times_s) > predicted_s - BUBBLES * MOST_LATE_S


@pytest.mark.nightly
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_steps_take_the_simulated_time_on_a_quiet_machine(schedule: str) -> None:
    assert min(run_of(schedule).step_times_s) < 1.2 * predict(scenario(schedule)).step_time_s


@pytest.mark.nightly
def test_zero_bubble_schedules_remove_the_bubble() -> None:
    """Of 1F1B's 3 + 1 turns one is a bubble; ZB-V has next to none."""
    one = predict(scenario("1f1b")).step_time_s

    assert min(run_of("zb_v").step_times_s) < one


def test_gradients_are_those_of_the_forward_pass() -> None:
    """As central differences have them, for inputs and for each tensor."""
    layer = emulated_compute.build(scenario("1f1b"), [2], None)[0].double()
    tensors = [parameter.detach().requires_grad_() for parameter in layer.parameters()]
    x = torch.randn(2, 2048, dtype=torch.float64)
    narrow = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

    def outputs(columns: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        whole = [torch.cat([part, tensor.detach()[16:]]) for part, tensor in zip(parts, tensors, strict=True)]
        names = [name for name, _ in layer.named_parameters()]
        given = torch.cat([columns, x[:, 4:]], dim=1)
        return torch.func.functional_call(layer, dict(zip(names, whole, strict=True)), (given,))[:, :4]

    parts = [tensor.detach()[:16].clone().requires_grad_() for tensor in tensors]
    assert torch.autograd.gradcheck(outputs, (narrow, *parts))
