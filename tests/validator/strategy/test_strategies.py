"""Each strategy computes what one process computes that sees the whole batch.

Theory: every strategy applies the gradient of the mean loss over the global batch, so that after any number of steps its
parameters are those of plain training on one process; in fp64 the order of sums leaves differences of about 1e-15.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.strategy.base import name_parameters
from scaleproof.validator.train.data import worker_batches
from scaleproof.validator.train.models import models as model
from scaleproof.validator.train.models.transformer import cross_entropy
from scaleproof.validator.train.optimizers import build_optimizer
from tests.validator import faults
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import in_bulk

WARMUP_STEPS = 2
TOLERANCE = 1e-9

PARAMETER_SERVER = {"kind": "parameter_server", "workers": 2}
RING = {"kind": "data_parallel", "workers": 2, "bucket": "4 KiB", "first_bucket": "1 KiB"}
PIPELINE = {"kind": "pipeline", "microbatches": 4}
HYBRID = {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2, "bucket": "4 KiB"}

CASES = [
    ({**PARAMETER_SERVER, "servers": 2, "placement": "colocated"}, "gpt", "adam"),
    (RING, "gpt", "sgd"),
    ({**HYBRID, "schedule": "1f1b"}, "gpt", "adam"),
]
MORE_CASES = [
    ({**RING, "overlap": False}, "mlp", "sgd"),
    ({**PIPELINE, "stages": 2, "schedule": "1f1b"}, "mlp", "adam"),
    ({**PARAMETER_SERVER, "servers": 1}, "gpt", "sgd"),
    ({**PARAMETER_SERVER, "workers": 4, "servers": 2}, "mlp", "momentum"),
    ({**RING, "workers": 4}, "gpt", "adam"),
    ({**PIPELINE, "stages": 3, "schedule": "gpipe"}, "mlp", "sgd"),
    ({**PIPELINE, "stages": 4, "schedule": "1f1b"}, "gpt", "sgd"),
    (RING, "gpt", "lamb"),
    ({**PIPELINE, "stages": 2, "schedule": "1f1b"}, "mlp", "adafactor"),
]


def plainly_trained(scenario: Scenario) -> dict[str, Tensor]:
    """The parameters after training on the same batches in this process scenario."""
    numbers = range(len(scenario.model.build_layers()))
    modules = model.build(scenario.model, numbers, scenario.training.seed)
    layers = {number: module.double() for number, module in zip(numbers, modules, strict=True)}
    whole = nn.Sequential(*layers.values())
    optimizer = build_optimizer(scenario.training.optimizer, whole.parameters(), scenario.training.learning_rate)
    steps = range(WARMUP_STEPS + scenario.steps)
    shares = [worker_batches(scenario, w, steps, torch.device("cpu"), torch.float64) for w in range(scenario.strategy.workers)]
    for parts in zip(*shares, strict=True):
        inputs, targets = (torch.cat(column) for column in zip(*(part[:2] for part in parts), strict=True))
        optimizer.zero_grad()
        cross_entropy(whole(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.detach() for name, value in name_parameters(layers).items()}


def largest_difference(scenario: Scenario, folder: Path) -> float:
    """Over all parameters on all ranks: norm of the difference to plain training, relative to the norm."""
    measure(scenario, watch=MeasureOptions(parameters_folder=folder))
    expected = plainly_trained(scenario)
    seen: set[str] = set()
    worst = 0.0
    for rank in range(scenario.strategy.workers * scenario.strategy.stages):
        for name, value in torch.load(folder / f"rank{rank}.pt").items():
            seen.add(name)
            worst = max(worst, float((value - expected[name]).norm() / expected[name].norm()))
    assert seen == set(expected), "every parameter is trained by some rank"
    return worst


@pytest.mark.parametrize(("strategy", "kind", "optimizer"), [*CASES, *in_bulk(*MORE_CASES)])
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any],
    kind: str,
    optimizer: str,
    make_scenario: MakeScenario,
    models: dict[str, dict[str, Any]],
    tmp_path: Path,
) -> None:
    scenario = make_scenario(strategy, models[kind], precision="fp64", optimizer=optimizer)

    assert largest_difference(scenario, tmp_path) < TOLERANCE


@pytest.mark.parametrize("fault", [faults.train_without_averaging, *in_bulk(faults.train_with_sums)])
@pytest.mark.parametrize("strategy", [{**RING, "overlap": False}, *in_bulk(HYBRID)])
def test_verification_detects_gradients_that_are_not_averaged(
    fault: Any, strategy: dict[str, Any], make_scenario: MakeScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    assert largest_difference(make_scenario(strategy, precision="fp64"), tmp_path) > 1e-6


def test_server_parameters_equal_those_of_workers(make_scenario: MakeScenario, tmp_path: Path) -> None:
    scenario = make_scenario({**PARAMETER_SERVER, "servers": 2}, precision="fp64")

    measure(scenario, watch=MeasureOptions(parameters_folder=tmp_path))

    worker = torch.load(tmp_path / "rank0.pt")
    shards = [torch.load(tmp_path / f"rank{2 + server}.pt")[f"shard{server}"] for server in range(2)]
    assert abs(len(shards[0]) - len(shards[1])) <= 1
    assert torch.equal(torch.cat(shards), torch.cat([value.flatten() for value in worker.values()]))
