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

from scaleproof.simulator.model import Dlrm, Hstu, Traced
from scaleproof.simulator.model.layers import inputs_of
from scaleproof.simulator.model.recommender.parts import Recommender
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.parallelism.parameter_server import touched_rows
from scaleproof.simulator.scenario.lengths import step_lengths
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.record.steps import total_steps
from scaleproof.validator.train.capabilities import has_documents, is_padded, sent_tables
from scaleproof.validator.train.emulated_compute import small_width
from scaleproof.validator.train.layer_graph import data_name
from scaleproof.validator.train.models import traced
from scaleproof.validator.train.models.models import DTYPES
from scaleproof.validator.train.models.transformer import IGNORED
from scaleproof.validator.train.models.wiring import DATA, Wire
from scaleproof.validator.train.samples import Samples, arrays, poolings
from scaleproof.validator.train.trained_model import TrainedModel, distinct_parameters


class Batch(NamedTuple):
    """Samples, in the first dimension of all tensors. others: further tensors that layers read, by `layer_graph.data_name`.
    lengths: tokens of each sample, behind which there is padding; none if all are as long."""

    inputs: Tensor
    targets: Tensor
    others: Mapping[str, Tensor] = MappingProxyType({})
    lengths: Sequence[int] = ()

    def part(self, samples: slice) -> Batch:
        """Some of the samples, padded to the longest of them."""
        own = self.lengths[samples]
        if not own:
            others = {name: tensor[samples] for name, tensor in self.others.items()}
            return Batch(self.inputs[samples], self.targets[samples], others)
        others = {name: tensor[samples, : max(own)] for name, tensor in self.others.items()}
        return Batch(self.inputs[samples, : max(own)], self.targets[samples, : max(own)], others, own)


def joined(parts: Sequence[Batch]) -> Batch:
    """Samples of the same lengths of several batches as one."""
    others = {name: torch.cat([part.others[name] for part in parts]) for name in parts[0].others}
    return Batch(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]), others)


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
    assert isinstance(scenario.model, Transformer | Hstu), "other models have no samples of different lengths"
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
    tables = [] if data or isinstance(model, Traced) else sparse_tables(scenario)
    if tables:
        _keep_to_rows(drawn, scenario, tables, generator)
    return drawn


def _keep_to_rows(drawn: Samples, scenario: Scenario, tables: Sequence[SparseTable], generator: np.random.Generator) -> None:
    """Replaces random numbers of rows in place: those of each worker are from drawn rows of each table, as many as a
    worker may touch."""
    inputs, targets = drawn
    numbers: list[tuple[NDArray[Any], ...]] = [(inputs[0], targets)]
    if isinstance(scenario.model, Recommender):
        rows = inputs[_rows_place(scenario.model)]
        numbers = [(own,) for own in np.split(rows, np.cumsum(poolings(scenario.model))[:-1], axis=-1)]
    for worker in range(scenario.strategy.workers):
        share = share_of(scenario, worker)
        for table, of_table in zip(tables, numbers, strict=True):
            rows = generator.choice(table.rows, table.touched, replace=False)
            for own in of_table:
                own[share] = rows[own[share] % table.touched]


class SparseTable(NamedTuple):
    """A table of which workers push and pull rows. number: of its tensor in the model. width: of a row. touched: most rows that
    a worker's samples of a step touch, the number in each message."""

    number: int
    rows: int
    width: int
    touched: int


def sparse_tables(scenario: Scenario) -> list[SparseTable]:
    """The tables of which workers of parameter servers push and pull rows, in the order of `looked_up`."""
    return scenario.cached(_sparse_tables)


def _sparse_tables(scenario: Scenario) -> list[SparseTable]:
    strategy, model, tables = scenario.strategy, scenario.model, sent_tables(scenario)
    sparse, touched, numbers = getattr(strategy, "sparse", None), list[int](), list(tables)
    if tables and isinstance(model, Traced) and scenario.compute == "real":
        names = [name for _, name, _ in distinct_parameters(TrainedModel(scenario).shapes())]
        numbers = [names.index(f"model.{table.name}") for table in tables.values()]
        if sparse is None or sparse.rows is None:
            # workers exchange no sizes: all messages have the rows of the batch with the most
            steps = range(total_steps(scenario))
            whole = whole_batches(scenario, steps, torch.device("cpu"), DTYPES[scenario.training.precision])
            parts = (batch.part(share_of(scenario, worker)) for batch in whole for worker in range(strategy.workers))
            counts = ([len(torch.unique(rows)) for rows in own] for own in looked_up(scenario, parts))
            touched = [max(own) for own in zip(*counts, strict=True)]
    expected = (touched_rows(table, sparse, scenario.samples_per_worker) for table in tables.values())
    touched = touched or [max(1, round(rows)) for rows in expected]
    if isinstance(model, Transformer) and tables:
        return [SparseTable(numbers[0], model.vocabulary, model.hidden, touched[0])]
    shapes = [(table.looked.distribution.rows, table.looked.width) for table in tables.values()]
    return [SparseTable(number, *shape, rows) for number, shape, rows in zip(numbers, shapes, touched, strict=True)]


def looked_up(scenario: Scenario, batches: Iterable[Batch]) -> Iterator[Sequence[Tensor]]:
    """For each batch, the numbers of the rows that its samples look up, by sparse table."""
    model = scenario.model
    if isinstance(model, Traced):
        names = [table.name for table in sent_tables(scenario).values()]
        tensors = ((batch.inputs, *batch.others.values()) for batch in batches)
        yield from traced.looked_up(model.source, DTYPES[scenario.training.precision], names, tensors)
        return
    for batch in batches:
        if not isinstance(model, Recommender):
            yield [batch.inputs]
            continue
        place = _rows_place(model)
        yield torch.split(batch.others[data_name(Wire(DATA, place))] if place else batch.inputs, poolings(model), -1)


def _rows_place(model: Recommender) -> int:
    """Place of the numbers of rows among the tensors of a batch."""
    return 1 if isinstance(model, Dlrm) and model.dense else 0
