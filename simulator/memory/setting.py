"""Setting: what all ranks of a scenario have in common."""

from __future__ import annotations

from functools import cached_property

from simulator.cluster.nccl import facts_of
from simulator.memory.flight import Flights, flights
from simulator.memory.software import Software
from simulator.scenario import Scenario


class Setting:
    """A scenario trained with some software. samples: of a microbatch, of the worker with the most. size, gradient_size: bytes
    of an element. gathers: whether layers are gathered before they are passed. makes_gradients: whether a step begins without.
    """

    def __init__(self, scenario: Scenario, software: Software) -> None:
        strategy = scenario.strategy
        self.scenario, self.software, self.strategy = scenario, software, strategy
        self.training, self.job, self.plan = scenario.training, scenario.job(), strategy.plan
        plan = self.plan
        self.size = self.job.element_bytes
        self.gradient_size = plan.gradient_bytes or self.size
        self.samples_per_worker = max(plan.shares) if plan.shares else scenario.samples_per_worker
        self.samples = self.samples_per_worker / plan.microbatches
        self.gathers = self.training.zero == 3 and plan.sharing * plan.context > 1
        self.makes_gradients = software.gradients == "made" and strategy.servers == 0

    @cached_property
    def flights(self) -> Flights:
        plan = self.plan
        return flights(plan.schedule, plan.stages, plan.microbatches, plan.chunks, plan.pass_times(self.job))

    @property
    def splits(self) -> bool:
        return self.flights.splits

    @cached_property
    def is_gpu(self) -> bool:
        """By the device's kernels; where it has none, by its name."""
        device = self.scenario.cluster.device
        return device.kernels.generation not in ("cpu", "tpu") if device.kernels else facts_of(device.name) is not None

    @property
    def sharing(self) -> tuple[int, int]:
        """Ranks among which states are shared out, where they are, and those of experts."""
        plan = self.plan
        return plan.sharing * plan.context, max(1, plan.sharing // plan.expert) * plan.context
