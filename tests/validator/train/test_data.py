"""The global batch of a step depends only on seed and step; workers take slices of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.data import Batch, worker_batches
from tests.validator.conftest import MakeScenario


def batches(scenario: Scenario, worker: int, steps: int = 3) -> list[Batch]:
    return worker_batches(scenario, worker, range(steps), torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("kind", ["gpt", "mlp"])
def test_workers_divide_the_batch_of_one_worker(
    kind: str, make_scenario: MakeScenario, models: dict[str, dict[str, Any]]
) -> None:
    alone, four = (make_scenario({"kind": "data_parallel", "workers": n}, models[kind]) for n in (1, 4))

    for step, whole in enumerate(batches(alone, 0)):
        parts = [batches(four, worker)[step] for worker in range(4)]
        assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
        assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


def test_batches_differ_by_step_and_seed(make_scenario: MakeScenario) -> None:
    first, second, _ = batches(make_scenario({"kind": "data_parallel", "workers": 1}), 0)
    other, *_ = batches(make_scenario({"kind": "data_parallel", "workers": 1}, seed=1), 0)

    assert not torch.equal(first.inputs, second.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_the_target_of_a_token_is_the_next_byte_of_the_file(make_scenario: MakeScenario, tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(100, 140)))

    batch, *_ = batches(make_scenario({"kind": "data_parallel", "workers": 1}, data=str(path)), 0)

    assert batch.inputs.shape == batch.targets.shape == (16, 8)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert torch.equal((batch.inputs + 1) % 32, batch.targets), "bytes count up in this file, modulo the vocabulary"
    assert batch.inputs.max() < 32


def test_a_file_of_one_sequence_and_one_byte_is_enough(make_scenario: MakeScenario, tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(9)))

    batch, *_ = batches(make_scenario({"kind": "data_parallel", "workers": 1}, data=str(path)), 0)

    assert batch.targets[0].tolist() == list(range(1, 9))
