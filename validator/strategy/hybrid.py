"""Hybrid: pipelines as workers, their gradients averaged over the workers after the last microbatch."""

from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh

from simulator.strategy import Hybrid
from validator.strategy.base import Context, Trainer
from validator.strategy.buckets import BucketedAllreduce
from validator.strategy.pipeline import StageTrainer
from validator.strategy.team import Team


def create(context: Context, strategy: Hybrid) -> Trainer:
    """The trainer of this rank's stage: the workers of a stage have neighbouring ranks."""
    return HybridTrainer(context, strategy)


class HybridTrainer(StageTrainer):
    """One stage of one worker, and its peers of the same stage in the other workers."""

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        names = ("stage", "worker")
        mesh = init_device_mesh(context.device.type, (strategy.stages, strategy.workers), mesh_dim_names=names)
        stage, worker = divmod(context.rank, strategy.workers)
        super().__init__(context, strategy, worker, stage, mesh.get_group("stage"))
        size_bytes = strategy.bucket_bytes
        peers = Team.along(mesh, "worker")
        self.buckets = BucketedAllreduce(self.module.parameters(), self.recorder, size_bytes, size_bytes, peers, stage)
        self.workers = strategy.workers

    def average(self) -> None:
        if self.workers > 1:
            self.buckets.average()
