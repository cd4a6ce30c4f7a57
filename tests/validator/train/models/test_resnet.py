"""The torch ResNet has the simulator's tensors and activations, and trains on data-parallel workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from scaleproof.simulator.model import ResNet
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.train.data import worker_batches
from scaleproof.validator.train.models import models
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import deviation

pytestmark = pytest.mark.full

SMALL: dict[str, Any] = {"kind": "resnet", "image": 32, "classes": 10}


@pytest.mark.parametrize(("depth", "image", "small"), [(18, 32, True), (34, 64, False), (50, 224, False), (152, 64, False)])
def test_layers_have_the_simulators_tensors_and_outputs(depth: Literal[18, 34, 50, 152], image: int, small: bool) -> None:
    spec = ResNet(depth=depth, image=image, small_images=small)
    with torch.device("meta"):
        modules = models.build(spec, range(len(spec.build_layers())), seed=0)
        x = torch.empty(2, 3, image, image)
    for layer, module in zip(spec.build_layers(), modules, strict=True):
        x = module(x)
        assert tuple(parameter.numel() for parameter in module.parameters()) == layer.tensors, layer.name
        assert x.numel() == 2 * layer.output_elements, layer.name
        assert not list(module.buffers()), "statistics are those of the batch alone"


def test_images_have_three_channels_and_a_class(make_scenario: MakeScenario) -> None:
    whole, two = (make_scenario({"kind": "data_parallel", "workers": n}, SMALL, batch=4) for n in (1, 2))
    [batch] = worker_batches(whole, 0, [0], torch.device("cpu"), torch.float32)
    parts = [worker_batches(two, worker, [0], torch.device("cpu"), torch.float32)[0] for worker in range(2)]

    assert batch.inputs.shape == (4, 3, 32, 32)
    assert batch.targets.shape == (4,)
    assert int(batch.targets.max()) < 10
    assert torch.equal(torch.cat([part.inputs for part in parts]), batch.inputs)


def test_workers_stay_equal_to_one_another(make_scenario: MakeScenario, tmp_path: Path) -> None:
    scenario = make_scenario({"kind": "data_parallel", "workers": 2}, SMALL, steps=2, batch=8)

    run = measure(scenario, "local", MeasureOptions(parameters_folder=tmp_path))

    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    assert run.phase_s["backward"] > 0
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(value.isfinite().all() for value in first.values())


@pytest.mark.parametrize("strategy", [{"kind": "pipeline", "stages": 2, "microbatches": 2}, {"kind": "parameter_server"}])
def test_other_strategies_train_like_one_process(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    strategy = strategy if "stages" in strategy else {"workers": 2, "servers": 1, **strategy}

    assert deviation(make_scenario(strategy, SMALL, steps=2, batch=8, precision="fp64")) < 1e-9
