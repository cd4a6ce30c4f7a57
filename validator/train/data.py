"""Training data: the global batch of a step depends only on the seed and the step, and each worker takes its slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scaleproof.simulator.model.layers import inputs_of
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.emulated_compute import small_width
from scaleproof.validator.train.layer_graph import data_name
from scaleproof.validator.train.models.wiring import DATA, Wire
from scaleproof.validator.train.samples import Samples, arrays


class Batch(NamedTuple):
    """Samples, in the first dimension of all tensors. others: further tensors that layers read, by `layer_graph.data_name`."""

    inputs: Tensor
    targets: Tensor
    others: Mapping[str, Tensor] = MappingProxyType({})

    def part(self, samples: slice) -> Batch:
        """Some of the samples."""
        others = {name: tensor[samples] for name, tensor in self.others.items()}
        return Batch(self.inputs[samples], self.targets[samples], others)


def whole_batches(scenario: Scenario, steps: Iterable[int], device: torch.device, dtype: torch.dtype) -> Iterator[Batch]:
    """The global batch of each step, generated lazily."""
    for step in steps:
        yield _batch(_global_batch(scenario, step), slice(None), device, dtype)


def worker_batches(
    scenario: Scenario, worker: int, steps: Iterable[int], device: torch.device, dtype: torch.dtype
) -> list[Batch]:
    """The worker's share of each step's batch, generated before the measurement. steps: numbers from 0."""
    share = share_of(scenario, worker)
    return [_batch(_global_batch(scenario, step), share, device, dtype) for step in steps]


def share_of(scenario: Scenario, worker: int) -> slice:
    """The slice of a step's samples that the worker trains on."""
    plan = scenario.strategy.plan
    samples = [plan.samples_of(number, scenario.samples_per_worker) for number in range(worker + 1)]
    return slice(sum(samples[:worker]), sum(samples))


def _batch(samples: Samples, share: slice, device: torch.device, dtype: torch.dtype) -> Batch:
    def placed(array: NDArray[Any]) -> Tensor:
        # a copy, so that the other workers' samples can be freed
        tensor = torch.from_numpy(array[share].copy()).to(device)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    inputs, targets = samples
    first, *others = map(placed, inputs)
    named = {data_name(Wire(DATA, number)): tensor for number, tensor in enumerate(others, start=1)}
    return Batch(first, placed(targets), named)


def _global_batch(scenario: Scenario, step: int) -> Samples:
    """Inputs and targets of all workers."""
    generator = np.random.default_rng([scenario.training.seed, step])
    samples, model = scenario.total_samples, scenario.model
    if scenario.compute == "paced":
        layers = model.build_layers(scenario.strategy.plan.shard)
        width = small_width(layers)
        inputs = [generator.standard_normal((samples, width)) for read in inputs_of(layers) if not read]
        return tuple(inputs), generator.integers(width, size=samples)
    data = scenario.training.data
    drawn = arrays(model, samples, generator, None if data is None else Path(data))
    count = touched_rows(scenario)
    if count is not None and data is None:
        _keep_to_rows(drawn, scenario, count, generator)
    return drawn


def _keep_to_rows(drawn: Samples, scenario: Scenario, count: int, generator: np.random.Generator) -> None:
    """Replaces random tokens in place, so that those of each worker are from `count` rows of the embedding that are drawn."""
    assert isinstance(scenario.model, Transformer), "other models have no sparse gradients"
    (inputs, *_), targets = drawn
    for worker in range(scenario.strategy.workers):
        share = share_of(scenario, worker)
        rows = generator.choice(scenario.model.vocabulary, count, replace=False)
        for tokens in (inputs[share], targets[share]):
            tokens[...] = rows[tokens % count]


def touched_rows(scenario: Scenario) -> int | None:
    """Number of rows of the embedding that a worker's random tokens of a step touch; None where gradients are not sparse."""
    strategy, model = scenario.strategy, scenario.model
    if not isinstance(strategy, ParameterServer) or strategy.sparse is None or not isinstance(model, Transformer):
        return None
    return max(1, round(strategy.sparse.rows * model.vocabulary))
