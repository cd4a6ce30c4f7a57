"""Model parallelism: branches on ranks of their own, or the stages of a chain, which run one after another."""

from __future__ import annotations

from scaleproof.simulator.model.graph import branches
from scaleproof.simulator.parallelism import ModelParallel, Pipeline
from scaleproof.validator.strategy.base import Context, Trainer
from scaleproof.validator.strategy.model_parallel.branches import BranchTrainer
from scaleproof.validator.strategy.pipeline.strategy import StageTrainer


def create(context: Context, strategy: ModelParallel) -> Trainer:
    """The trainer of this rank's branches, or of its stage: of a pipeline through which all samples pass as one microbatch."""
    if branches(context.scenario.model.build_layers()):
        return BranchTrainer(context, strategy)
    chain = Pipeline.model_validate({"stages": strategy.stages, "schedule": "gpipe"})
    return StageTrainer(context, chain, worker=0, stage=context.rank)
