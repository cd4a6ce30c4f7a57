"""Training data: the global batch of a step depends only on the seed and the step, and each worker takes its slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Gpt, Mlp, ResNet
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.emulated_compute import small_width


class Batch(NamedTuple):
    """inputs: (samples, sequence) tokens, (samples, inputs) numbers or (samples, 3, height, width) images; targets: (samples,
    sequence) or (samples,) classes."""

    inputs: Tensor
    targets: Tensor


def whole_batches(scenario: Scenario, steps: Iterable[int], device: torch.device, dtype: torch.dtype) -> Iterator[Batch]:
    """The global batch of each step, generated lazily."""
    for step in steps:
        yield _batch(*_global_batch(scenario, step), device, dtype)


def worker_batches(
    scenario: Scenario, worker: int, steps: Iterable[int], device: torch.device, dtype: torch.dtype
) -> list[Batch]:
    """The worker's share of each step's batch, generated before the measurement. steps: numbers from 0."""
    share = share_of(scenario, worker)
    batches = []
    for step in steps:
        inputs, targets = _global_batch(scenario, step)
        # copies, so that the other workers' samples can be freed
        batches.append(_batch(inputs[share].copy(), targets[share].copy(), device, dtype))
    return batches


def share_of(scenario: Scenario, worker: int) -> slice:
    """The slice of a step's samples that the worker trains on."""
    shares = scenario.strategy.plan.shares
    if shares is None:
        return slice(worker * scenario.samples_per_worker, (worker + 1) * scenario.samples_per_worker)
    return slice(sum(shares[:worker]), sum(shares[: worker + 1]))


def _batch(inputs: NDArray[Any], targets: NDArray[np.int64], device: torch.device, dtype: torch.dtype) -> Batch:
    on_device = torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
    return Batch(on_device[0].to(dtype) if on_device[0].is_floating_point() else on_device[0], on_device[1])


def _global_batch(scenario: Scenario, step: int) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Inputs and targets of all workers."""
    generator = np.random.default_rng([scenario.training.seed, step])
    samples, model = scenario.total_samples, scenario.model
    if scenario.compute == "paced":
        width = small_width(model.build_layers(scenario.strategy.plan.shard))
        return generator.standard_normal((samples, width)), generator.integers(width, size=samples)
    if isinstance(model, Mlp):
        return generator.standard_normal((samples, model.inputs)), generator.integers(model.outputs, size=samples)
    if isinstance(model, ResNet):
        images = generator.standard_normal((samples, 3, model.image, model.image), dtype=np.float32)
        return images, generator.integers(model.classes, size=samples)
    if not isinstance(model, Gpt):
        raise InputError(f"model: there is no data for a {model.kind}; give a gpt, an mlp or a resnet")
    if scenario.training.data is None:
        tokens = generator.integers(model.vocabulary, size=(samples, model.sequence + 1))
    else:
        tokens = _tokens_of(Path(scenario.training.data), samples, model, generator)
    # the target of each token is the next one
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def _tokens_of(path: Path, samples: int, model: Gpt, generator: np.random.Generator) -> NDArray[np.int64]:
    """Bytes of a file from random positions, modulo the vocabulary: (samples, sequence + 1)."""
    text = np.memmap(path, dtype=np.uint8, mode="r")
    starts = generator.integers(len(text) - model.sequence, size=samples)
    tokens: NDArray[np.int64] = text[starts[:, None] + np.arange(model.sequence + 1)].astype(np.int64)
    return tokens % model.vocabulary
