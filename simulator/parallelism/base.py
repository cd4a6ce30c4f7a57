"""Base class of strategies: fields that users set, and checks of these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.layers import Layer, cut_into_stages
from scaleproof.simulator.parallelism.plan import Plan


class Strategy(Spec):
    """A way to train on several ranks.

    A worker is one replica of the model. It consists of `stages` pipeline stages, each of one or several ranks that share its
    layers. Servers are additional ranks. A strategy with one of these numbers as a field adds an underscore to its name, which
    YAML omits (`workers_`: workers).
    """

    kind: str

    @property
    def workers(self) -> int:
        """Number of replicas of the model, which train on different samples."""
        return 1

    @property
    def stages(self) -> int:
        """Number of pipeline stages of each replica."""
        return 1

    @property
    def servers(self) -> int:
        """Number of ranks that store parameters and do not train."""
        return 0

    @property
    def microbatches(self) -> int:
        """Number of parts into which a worker's samples are divided."""
        return 1

    @property
    def fixed_samples(self) -> int | None:
        """Samples of a step and worker where the strategy decides them, else None."""
        return None

    @property
    def program_steps(self) -> int:
        """Optimizer steps of a worker in one step of the Program."""
        return 1

    def for_samples(self, samples_per_worker: int) -> Self:
        """The strategy with what depends on the samples of a step and worker. Raises FieldError where they do not suit it."""
        return self

    @cached_property
    def plan(self) -> Plan:
        """Division and schedule of the replicas."""
        return Plan(workers=self.workers, stages=self.stages, microbatches=self.microbatches)

    @property
    def training_ranks(self) -> int:
        """Number of ranks without the servers."""
        return self.plan.ranks

    @property
    def ranks(self) -> int:
        """Number of ranks, servers included."""
        return self.training_ranks + self.servers

    @property
    def waiting_ranks(self) -> int:
        """Number of ranks that wait for each other in each step, so that the slowest determines its duration."""
        return self.training_ranks

    def nodes_needed(self, cluster: Cluster) -> int:
        """Number of nodes of `cluster` that the ranks occupy."""
        return -(-self.training_ranks // cluster.node.devices)

    def communicates_in_nodes(self, cluster: Cluster) -> bool:
        """Whether ranks on the same node communicate."""
        return cluster.node.devices > 1

    def parts(self, layers: Sequence[Layer]) -> list[list[Layer]]:
        """Layers of a worker's model on each of its stages."""
        return [[layers[i] for i in part] for part in self.stage_layers(layers)]

    def stage_layers(self, layers: Sequence[Layer]) -> Sequence[Sequence[int]]:
        """Indices of the layers of each stage of the model."""
        return cut_into_stages(layers, self.stages)

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Checks that the strategy fits the model and the batch; raises FieldError."""
        if samples_per_worker % self.microbatches:
            nearest = nearest_divisor(samples_per_worker, self.microbatches)
            message = f"{self.microbatches} microbatches do not divide {samples_per_worker} samples; give {nearest}"
            raise FieldError(("strategy", "microbatches"), message)


def nearest_divisor(number: int, target: int) -> int:
    """The divisor of `number` closest to `target`; the smaller of two equally close ones."""
    candidates = (target + sign * distance for distance in range(target) for sign in (-1, 1))
    return next(divisor for divisor in candidates if number % divisor == 0)
