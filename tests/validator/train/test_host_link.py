"""Emulated links send gradients next to passes, hold updates up until these have arrived, and copy parameters back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.train.host_link import HostLink
from tests.validator.conftest import CLUSTER, MakeScenario
from tests.validator.verdicts import deviation, in_bulk, paced

# one rank of two: 0.1 s for the gradients of 10,000 parameters, or for the parameters
ELEMENTS, COPY_S = 10_000, 0.1
NODE = CLUSTER["node"] | {"host": {"link": "0.4 MB/s", "adam_rate": 1e9}}  # type: ignore[operator]
WORKERS = {"kind": "data_parallel", "workers": 2}


@pytest.fixture
def offloaded(make_scenario: MakeScenario) -> Callable[..., Scenario]:
    def make(strategy: dict[str, Any] = WORKERS, **fields: Any) -> Scenario:
        training = {"offload": ["optimizer"], "optimizer": "adam"} | fields
        return make_scenario(strategy, cluster=CLUSTER | {"node": NODE}, **training)

    return make


@pytest.mark.parametrize("sent_before_s", [0.0, 2 * COPY_S])
def test_an_update_waits_for_gradients_that_have_not_arrived(sent_before_s: float, offloaded: Callable[..., Scenario]) -> None:
    parameter = nn.Parameter(torch.zeros(ELEMENTS))
    optimizer, link = torch.optim.SGD([parameter], lr=0.1), HostLink(job_of(offloaded()))
    link.begin_updates(optimizer, ELEMENTS)
    updated: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: updated.append(time.perf_counter()))
    link.end_updates(optimizer, ELEMENTS)
    began_s = time.perf_counter()

    if sent_before_s:
        link.send(ELEMENTS // 2)
        link.send(ELEMENTS // 2)
        time.sleep(sent_before_s)
    optimizer.step()

    # a loaded machine wakes sleepers late, never early
    late_s = updated[0] - began_s - max(COPY_S, sent_before_s)
    assert -1e-6 <= late_s < COPY_S
    assert time.perf_counter() - updated[0] >= COPY_S


@pytest.mark.parametrize(
    ("strategy", "training"),
    [(WORKERS, {}), *in_bulk((WORKERS, {"zero": 2}), (WORKERS, {"zero": 3}), (WORKERS | {"workers": 1}, {}))],
)
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], training: dict[str, Any], offloaded: Callable[..., Scenario]
) -> None:
    assert deviation(paced(offloaded(strategy, precision="fp64", **training))) < 1e-8
