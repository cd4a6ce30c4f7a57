"""Scenarios of described GPUs for tests of frameworks."""

from __future__ import annotations

from pathlib import Path

from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.scenario.framework_choice import DECIDED
from scaleproof.simulator.scenario.load import build
from scaleproof.simulator.scenario.schema import Scenario

TEXT = """\
model: {kind: gpt, layers: 4, hidden: 2048, heads: 16, vocabulary: 51200, sequence: 1024, flash: true}
cluster: dgx-h100
strategy: {kind: data_parallel, workers: 8}
batch: 64
training: {precision: bf16, optimizer: adam}
"""
# Scenarios that frameworks run in different ways: what each changes of TEXT.
VARIED = {
    "data parallel": (),
    "ZeRO 1": ("training.zero=1",),
    "ZeRO 3": ("training.zero=3",),
    "microbatches": ("strategy.microbatches=8",),
    "tiny layers": ("model.hidden=64", "model.heads=4", "model.vocabulary=256", "model.sequence=64"),
    "recomputation": ("training.recompute=full",),
    "scores in memory": ("model.flash=false", "cluster=dgx-a100"),
    "pipeline": ("strategy={kind: hybrid, workers: 2, stages: 4, microbatches: 8}",),
    "tensor": ("strategy={kind: hybrid, workers: 2, tensor: 4, sequence_parallel: true}", "training.zero=1"),
    "8-bit products": ("training.precision=fp8", "strategy={kind: hybrid, workers: 4, tensor: 2}"),
    "A100": ("cluster=dgx-a100",),
    "V100": ("cluster=dgx1-v100", "training.precision=fp16"),
}


def scenario(*overrides: str) -> Scenario:
    """The scenario of TEXT with overrides."""
    return build(yaml_file.parse(TEXT, "text.yaml"), Path("text.yaml"), overrides)


def as_given(strategy: Strategy) -> Strategy:
    """The strategy with a framework's defaults as given fields, so that another framework does not change them."""
    fields = type(strategy).model_fields
    return strategy.model_copy(update={name: getattr(strategy, name) for name in DECIDED if name in fields})


def trained_by(one: Scenario, framework: Framework) -> Scenario:
    """The scenario with the same strategy, run by another framework."""
    return one.copied(framework=framework, strategy=as_given(one.strategy))
