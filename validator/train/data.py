"""Training data: the global batch of a step depends only on the seed and the step, and each worker takes its slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from scaleproof.simulator.scenario.lengths import step_lengths
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.capabilities import has_documents, is_padded
from scaleproof.validator.train.emulated_compute import small_width
from scaleproof.validator.train.layer_graph import data_name
from scaleproof.validator.train.models.transformer import IGNORED
from scaleproof.validator.train.models.wiring import DATA, Wire
from scaleproof.validator.train.samples import Samples, arrays


class Batch(NamedTuple):
    """Samples, in the first dimension of all tensors. others: further tensors that layers read, by `layer_graph.data_name`.
    lengths: tokens of each sample, behind which there is padding; none if all are as long."""

    inputs: Tensor
    targets: Tensor
    others: Mapping[str, Tensor] = MappingProxyType({})
    lengths: Sequence[int] = ()

    def part(self, samples: slice) -> Batch:
        """Some of the samples, padded to the longest of them."""
        others, own = {name: tensor[samples] for name, tensor in self.others.items()}, self.lengths[samples]
        if not own:
            return Batch(self.inputs[samples], self.targets[samples], others)
        return Batch(self.inputs[samples, : max(own)], self.targets[samples, : max(own)], others, own)


def whole_batches(scenario: Scenario, steps: Iterable[int], device: torch.device, dtype: torch.dtype) -> Iterator[Batch]:
    """The global batch of each step, generated lazily."""
    for step in steps:
        yield _batch(scenario, step, slice(None), device, dtype)


def worker_batches(
    scenario: Scenario, worker: int, steps: Iterable[int], device: torch.device, dtype: torch.dtype
) -> list[Batch]:
    """The worker's share of each step's batch, generated before the measurement. steps: numbers from 0."""
    share = share_of(scenario, worker)
    return [_batch(scenario, step, share, device, dtype) for step in steps]


def share_of(scenario: Scenario, worker: int) -> slice:
    """The slice of a step's samples that the worker trains on."""
    plan = scenario.strategy.plan
    samples = [plan.samples_of(number, scenario.samples_per_worker) for number in range(worker + 1)]
    return slice(sum(samples[:worker]), sum(samples))


def _batch(scenario: Scenario, step: int, share: slice, device: torch.device, dtype: torch.dtype) -> Batch:
    def placed(array: NDArray[Any]) -> Tensor:
        # a copy, so that the other workers' samples can be freed
        tensor = torch.from_numpy(array[share].copy()).to(device)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    lengths = _lengths(scenario, step)
    inputs, targets = _global_batch(scenario, step)
    if has_documents(scenario):
        inputs = (*inputs, np.stack([np.repeat(np.arange(len(own)), own) for own in lengths]))
    first, *others = map(placed, inputs)
    named = {data_name(Wire(DATA, number)): tensor for number, tensor in enumerate(others, start=1)}
    if not is_padded(scenario):
        return Batch(first, placed(targets), named)
    for own, (tokens,) in zip(targets, lengths, strict=True):
        own[tokens:] = IGNORED
    return Batch(first, placed(targets), named, [tokens for (tokens,) in lengths[share]])


def _lengths(scenario: Scenario, step: int) -> list[tuple[int, ...]]:
    """Tokens of what is in each sample of a step; empty where real samples all have the same length."""
    lengths, plan = scenario.batch.lengths, scenario.strategy.plan
    if lengths is None or scenario.compute == "paced":
        return []
    assert isinstance(scenario.model, Transformer), "other models have no samples of different lengths"
    samples = scenario.samples_per_worker // plan.microbatches
    return step_lengths(lengths, scenario.model.sequence, samples, plan.microbatches, plan.workers, step)


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
