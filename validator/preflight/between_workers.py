"""Refusals of rows of tables and of features that workers exchange."""

from __future__ import annotations

from collections.abc import Iterator

from scaleproof.simulator.model import Dlrm, Hstu, Traced
from scaleproof.simulator.model.contrastive import TwoTowers
from scaleproof.simulator.model.recommender.parts import Recommender
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.replicas import compared_workers
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.refusal import UNMEASURED, Refusal
from scaleproof.validator.train.capabilities import sent_tables, trains_by_layers


def sparse_rows(scenario: Scenario) -> Iterator[Refusal]:
    """Sparse gradients of parameter servers."""
    strategy, training, model, found = scenario.strategy, scenario.training, scenario.model, sent_tables(scenario)
    if not isinstance(strategy, ParameterServer) or not found:
        return
    refused = f"with {'strategy.sparse' if strategy.sparse else 'sparse=True'} is {UNMEASURED}"
    tables = model.build_layers()[0].tensors
    unforeseen = [table.name for table in found.values() if not table.is_foreseen]
    yield from [
        (not isinstance(model, Recommender | Traced)
         and (not isinstance(model, Transformer) or model.tied or tables[0] < max(tables)),
         f"model {refused}",
         "only tables of a dlrm or hstu, of a module of your own, and the token embedding of a gpt or llama with an output "
         "head of its own are pushed by rows",
         "give a dlrm or hstu, or a gpt or llama that is not tied, with fewer positions than tokens"),
        (unforeseen, f"model.source {refused}",
         f"rows of {', '.join(unforeseen)} depend on parameters or random numbers, so that workers cannot request them before "
         "their forward pass", "build it with sparse=False"),
        (training.optimizer != "sgd", f"training.optimizer: {training.optimizer} {refused}",
         "other optimizers change rows that have no gradient too", "give sgd"),
        (strategy.shard == "bytes" and strategy.servers > 1, f"strategy.shard: bytes {refused}",
         "the rows of a table are on one server", "give shard: tensor, or one server"),
        (strategy.two_level, f"strategy.two_level {refused}", "workers of a node touch different rows", "leave either out"),
    ]  # fmt: skip


def recommenders(scenario: Scenario) -> Iterator[Refusal]:
    """Recommenders, and embedding tables that workers divide."""
    training, plan, model = scenario.training, scenario.strategy.plan, scenario.model
    if not isinstance(model, Recommender):
        return
    is_paced, how = scenario.compute == "paced", plan.tables
    if not is_paced:
        yield from [
            (any(table.pooling != round(table.pooling) for table in model.tables), f"model.tables: pooling is {UNMEASURED}",
             "real samples look up a whole number of rows", "give integers, or set compute=paced"),
            (isinstance(model, Dlrm) and model.top[-1:] not in ((), (1,)), f"model.top: more than one output is {UNMEASURED}",
             "the loss reads one logit of a click", "give 1 as the last width"),
            (isinstance(model, Hstu) and model.interleaved and scenario.batch.lengths is not None,
             f"batch.lengths with model.interleaved is {UNMEASURED}", "lengths may end in the middle of a turn of the tables",
             "leave either out"),
        ]  # fmt: skip
    if how is None or how.shard == "data":
        return
    refused = f"with strategy.tables: {{shard: {how.shard}}} is {UNMEASURED}"
    together = "the owner of rows updates them in its backward pass"
    yield from [
        (how.on == "host", f"strategy.tables.on: host is {UNMEASURED}",
         "ranks have no cache of rows that are in the memory of hosts", "give workers"),
        (is_paced, f"compute: paced {refused}", "emulated layers exchange no rows", "give real"),
        (scenario.strategy.kind != "data_parallel", f"strategy: {scenario.strategy.kind} {refused}", "",
         "give data_parallel"),
        (how.overlap_input, f"strategy.tables.overlap_input is {UNMEASURED}",
         "ranks exchange the rows' numbers of a batch in its forward pass", "set it to false"),
        (how.optimizer == "adam", f"strategy.tables.optimizer: adam is {UNMEASURED}",
         "torch's Adam also changes rows that are not looked up", "give rowwise_adagrad, adagrad or sgd"),
        (how.optimizer == "rowwise_adagrad" and how.shard == "column",
         f"strategy.tables.optimizer: rowwise_adagrad of columns is {UNMEASURED}",
         "each range of columns has states of its own, other than in one process", "give adagrad or sgd, or another shard"),
        (how.optimizer != training.optimizer and plan.workers == 1,
         f"strategy.tables.optimizer of one worker is {UNMEASURED}", "it updates all parameters by training.optimizer",
         "give several workers, or sgd and training.optimizer=sgd"),
        (how.precision != training.precision and (how.precision, training.precision) != ("fp32", "fp64"),
         f"strategy.tables.precision: {how.precision} with training.precision={training.precision} is {UNMEASURED}",
         "ranks keep rows in the training precision", f"give {training.precision}"),
        (plan.microbatches > 1, f"strategy.microbatches {refused}", together, "give 1"),
        (plan.shares is not None, f"strategy.shares {refused}", "workers exchange as many outputs each", "leave it out"),
        (plan.compression is not None, f"strategy.compression {refused}", "", "leave it out"),
        (training.recompute.kind != "none", f"training.recompute {refused}", "", "leave it out"),
        *((getattr(training, field), f"training.{field} {refused}", together, "leave it out")
          for field in ("zero", "clip_gradients", "ema", "delay_update", "offload")),
        (training.precision == "fp16", f"training.precision: fp16 {refused}", "no scale of the loss is applied to rows",
         "give fp32"),
    ]  # fmt: skip


def contrast(scenario: Scenario) -> Iterator[Refusal]:
    """Losses that compare the features of workers."""
    model, plan, compares = scenario.model, scenario.strategy.plan, compared_workers(scenario.model, scenario.strategy) > 1
    if not isinstance(model, TwoTowers) or model.contrast is None:
        return
    refused = f"with model.contrast: {model.contrast} is {UNMEASURED}"
    yield from [
        (compares and scenario.compute == "paced", f"compute: paced {refused}", "emulated layers exchange no features",
         "give real"),
        (trains_by_layers(scenario) and scenario.strategy.kind != "data_parallel",
         f"strategy: {scenario.strategy.kind} {refused}", "stages would have to pass features of earlier layers on",
         "give data_parallel"),
        (compares and scenario.training.recompute.kind != "none", f"training.recompute {refused}",
         "a loss that is computed again would exchange features again", "leave it out"),
        (compares and plan.shares is not None, f"strategy.shares {refused}", "workers exchange equal parts", "leave it out"),
    ]  # fmt: skip
