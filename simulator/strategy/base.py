"""What every strategy is: fields users set, rules they must keep, and a Program it compiles to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.layers import Layer, cut_into_stages
from scaleproof.simulator.program import Program
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.plan import Plan


class Strategy(Spec, ABC):
    """A way to train on several ranks.

    A worker is one replica of the model; it takes `stages` pipeline ranks, each of as many ranks as share its layers. Servers
    are ranks of their own. Families that let users set such a number have a field with a trailing underscore for it, which
    YAML writes without (`workers_`: workers).
    """

    kind: str

    @property
    def workers(self) -> int:
        """Replicas of the model that train on different samples."""
        return 1

    @property
    def stages(self) -> int:
        """Pipeline stages of each replica."""
        return 1

    @property
    def servers(self) -> int:
        """Ranks that hold parameters and do not train."""
        return 0

    @property
    def microbatches(self) -> int:
        """Parts in which a worker's samples pass through it."""
        return 1

    @property
    def program_steps(self) -> int:
        """Optimizer steps of a worker in one step of the Program."""
        return 1

    @property
    def plan(self) -> Plan:
        """How replicas are divided and scheduled."""
        return Plan(workers=self.workers, stages=self.stages, microbatches=self.microbatches)

    @property
    def training_ranks(self) -> int:
        """All but the servers."""
        return self.plan.ranks

    @property
    def ranks(self) -> int:
        return self.training_ranks + self.servers

    @property
    def waiting_ranks(self) -> int:
        """Ranks that wait for each other in each step, so that the slowest of them sets the pace."""
        return self.training_ranks

    def nodes_needed(self, cluster: Cluster) -> int:
        """Nodes of `cluster` that the ranks take."""
        return -(-self.training_ranks // cluster.node.devices)

    def talks_in_nodes(self, cluster: Cluster) -> bool:
        """Whether ranks on one node send to one another."""
        return cluster.node.devices > 1

    def parts(self, job: Job) -> list[list[Layer]]:
        """What of a worker's model each of its stages has."""
        return [[job.layers[i] for i in part] for part in self.stage_layers(job)]

    def stage_layers(self, job: Job) -> Sequence[Sequence[int]]:
        """Numbers of the layers of each stage of the model."""
        return cut_into_stages(job.layers, self.stages)

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Raises FieldError when the model or the batch does not fit the strategy's numbers."""
        if samples_per_worker % self.microbatches:
            nearest = _nearest_divisor(samples_per_worker, self.microbatches)
            message = f"{self.microbatches} microbatches do not divide {samples_per_worker} samples; give {nearest}"
            raise FieldError(("strategy", "microbatches"), message)

    @abstractmethod
    def compile(self, job: Job) -> Program:
        """One training step of `job` as a Program."""


def _nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` that is closest to `wanted`; of two as close, the smaller."""
    near = (wanted + sign * distance for distance in range(wanted) for sign in (-1, 1))
    return next(divisor for divisor in near if number % divisor == 0)
