"""Parallel replicas: replicas that train with others, and the sets of parameters that they have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from torch import nn

from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.data_parallel.threaded_sum import SumThread
from scaleproof.validator.strategy.hybrid.replica import Replica
from scaleproof.validator.strategy.layout.mesh import divided, expert_teams, teams
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.model_parallel.expert import ShardedExperts
from scaleproof.validator.train.emulated_compute import EmulatedLayer
from scaleproof.validator.train.models.fine_tuning import trained_parameters

# Limits of the buckets of gradients that are summed whole.
_WHOLE: Final = (math.inf, math.inf)


def parameter_numbers(scenario: Scenario, layers: Mapping[int, nn.Module]) -> dict[nn.Parameter, int]:
    """The number of each trained parameter of some layers among those of the whole model."""
    first = [*accumulate((len(layer.tensors) for layer in scenario.layers(WHOLE)), initial=0)]
    return {p: first[number] + place for number, layer in layers.items() for place, p in enumerate(trained_parameters(layer))}


def experts_of(module: nn.Module) -> set[nn.Parameter]:
    """The parameters of a module's experts of which other ranks have others."""
    sharded = {p for part in module.modules() if isinstance(part, ShardedExperts) for p in part.parameters()}
    layers = (part for part in module.modules() if isinstance(part, EmulatedLayer))
    return sharded | {parameter for layer in layers for parameter in layer.expert_parameters()}


class ParameterSet(NamedTuple):
    """Parameters with identical copies on the same ranks, by stage. teams: the ranks with copies, for all parts of the model.

    names: of the team of these ranks, and of teams with the same shard. is_divided: whether `shard_over` divides the team.
    limits_bytes: sizes at which the first and the other buckets of their gradients close.
    """

    stages: Sequence[Sequence[nn.Parameter]]
    teams: Sequence[Sequence[int]]
    names: tuple[str, str]
    is_divided: bool
    limits_bytes: tuple[float, float]


class ParallelReplica(Replica):
    """A replica that trains with others. Its gradients are means over workers and tokens."""

    def __init__(self, context: Context, strategy: Hybrid) -> None:
        super().__init__(context, strategy)
        self.weight = 1 / (self.plan.workers * self.plan.context)
        # one thread, so that all ranks sum the buckets of all teams in the same order
        self.thread = SumThread(context.device)

    def parameter_sets(self) -> Iterator[ParameterSet]:
        """The sets of parameters of this rank, which may be empty; equal in number and axes on all ranks.

        Gradients of which each tensor-parallel rank computes a part are summed over these ranks as well.
        """
        parts, experts = self.summands(self.module), experts_of(self.module)
        stages = [trained_parameters(stage.submod) for stage in self.stages]
        for kind, one in enumerate(self.kinds()):
            yield one._replace(stages=[[p for p in stage if (p in parts) + 2 * (p in experts) == kind] for stage in stages])

    def kinds(self) -> tuple[ParameterSet, ParameterSet, ParameterSet]:
        """The sets without their parameters: those of workers, those that tensor-parallel ranks sum as well, and experts."""
        workers, limits = ("replica", "expert", "context"), self.plan.bucket_limits_bytes
        return (
            ParameterSet((), teams(self.mesh, *workers), ("worker", "shards of a worker"), True, limits),
            ParameterSet((), teams(self.mesh, *workers, "tensor"), ("all", "shards of all"), True, _WHOLE),
            ParameterSet((), expert_teams(self.plan)[1], ("replica", "shard"), False, _WHOLE),
        )

    def summands(self, module: nn.Module) -> set[nn.Parameter]:
        """The parameters of a module of whose gradients each tensor-parallel rank computes a part."""
        tensor = self.division.tensor
        return set(tensor.of_parts(module) if tensor else []) - experts_of(module)

    def sharing_teams(self, one: ParameterSet) -> list[Team]:
        """The ranks that shard the states of a set of parameters, and the ranks with the same shard."""
        ranks = len(one.teams[0])
        size = ranks * self.plan.sharing // self.plan.workers if one.is_divided else ranks
        return [Team.of(parts, name) for parts, name in zip(divided(one.teams, size), one.names, strict=True)]

    def close(self) -> None:
        """Ends the thread that sums buckets."""
        self.thread.close()
        super().close()
