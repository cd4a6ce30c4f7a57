"""Model parallelism of a chain: each stage on a rank of its own, all samples at once, so that stages run one after another."""

from __future__ import annotations

from scaleproof.simulator.strategy import ModelParallel, Pipeline
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.pipeline.strategy import StageTrainer


def create(context: Context, strategy: ModelParallel) -> Trainer:
    """The trainer of this rank's stage: that of a pipeline through which all samples pass as one microbatch."""
    chain = Pipeline.model_validate({"stages": strategy.stages, "schedule": "gpipe"})
    return StageTrainer(context, chain, worker=0, stage=context.rank)
