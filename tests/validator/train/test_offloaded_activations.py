"""Blocks wait for emulated copies of their activations: to the host two blocks later, and back before their backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.record.status_board import Board, Status
from scaleproof.validator.train.models import models
from scaleproof.validator.train.offloaded_activations import OffloadedActivations
from tests.validator.conftest import CLUSTER, MakeScenario

COPY_S = 0.2


class Clock:
    """A clock that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("compute", ["real", "paced"])
def test_passes_wait_for_copies(compute: str, make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """With copies that last longer than passes, of four blocks two wait to be sent, and all are fetched one after the other."""
    clock = Clock()
    monkeypatch.setattr("scaleproof.validator.train.offloaded_activations.time", clock)
    node = CLUSTER["node"] | {"host": {"link": "1 MB/s"}}  # type: ignore[operator]
    scenario = make_scenario({"kind": "data_parallel", "workers": 1}, cluster=CLUSTER | {"node": node}, offload=["activations"])
    job = job_of(scenario.model_copy(update={"compute": compute}))
    samples = round(COPY_S * 1e6 / float(job.kept_bytes(1)[1]))
    layers = models.build(scenario.model, range(6), seed=0)
    copies = OffloadedActivations(job, Recorder(Status(Board.private(), 0), lambda _: None), torch.device("cpu"))
    for number, layer in enumerate(layers):
        copies.attach(number, layer)

    loss = nn.Sequential(*layers)(torch.zeros(samples, 8, dtype=torch.int64)).sum()
    forward_s = clock.now_s
    loss.backward()

    # the third block waits for the first, the fourth for the second
    assert forward_s == pytest.approx(2 * COPY_S, rel=0.1)
    # two copies are still under way, and all four come back
    assert clock.now_s - forward_s == pytest.approx(6 * COPY_S, rel=0.1)
