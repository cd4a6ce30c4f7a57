"""Setting: what all ranks of a scenario have in common."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any, Final

from scaleproof.simulator.cluster.collectives.nccl import facts_of
from scaleproof.simulator.cluster.device.device import is_narrow
from scaleproof.simulator.memory.in_flight import WHOLE, Flights, flights
from scaleproof.simulator.memory.states import Amount
from scaleproof.simulator.scenario.gradient_precision import gradient_sizes
from scaleproof.simulator.scenario.schema import Scenario

# Assumption.
_FRAGMENTATION: Final = 0.05


class MemoryInputs:
    """A scenario trained with its framework, whose memory behaviour is `software`.

    samples: of a microbatch, of the worker with the most. size, gradient_size, reduced_size: bytes of an element, of gradients
    that are accumulated and of those that ranks sum. makes_gradients: whether a
    step begins without.
    """

    def __init__(self, scenario: Scenario) -> None:
        strategy, software = scenario.strategy, scenario.framework.memory
        self.scenario, self.software, self.strategy = scenario, software, strategy
        self.training, self.job, self.plan, self.servers = scenario.training, scenario.job(), strategy.plan, strategy.servers
        plan = self.plan
        self.size = self.job.element_bytes
        sizes = gradient_sizes(scenario.training, strategy, scenario.framework)
        self.gradient_size, self.reduced_size = sizes.accumulated, sizes.reduced
        self.samples_per_worker = max(plan.shares) if plan.shares else scenario.samples_per_worker
        self.samples = self.samples_per_worker / plan.microbatches
        self.workers, self.bucket_bytes = plan.workers, plan.bucket_bytes
        # layers that have been asked, by what they are made of; of these, what does not depend on how they are trained
        self.alike: dict[tuple[object, ...], Any] = {}
        self.passed: dict[tuple[object, ...], Any] = {}
        self.makes_gradients = software.gradients == "made" and self.servers == 0

    @cached_property
    def flights(self) -> Flights:
        plan = self.plan
        return flights(plan.schedule, plan.stages, plan.microbatches, plan.chunks, plan.pass_times(self.job))

    @property
    def input_bytes(self) -> int:
        """Bytes of an element of what matrix products keep of their inputs."""
        return self.software.fp8_input_bytes if is_narrow(self.training.precision) else self.size

    @property
    def splits(self) -> bool:
        """Whether gradients of weights are made apart."""
        return self.plan.schedule not in WHOLE

    @cached_property
    def is_gpu(self) -> bool:
        """By the device's kernels; where it has none, by its name."""
        device = self.scenario.cluster.device
        return device.kernels.generation not in ("cpu", "tpu") if device.kernels else facts_of(device.name) is not None

    @property
    def has_both(self) -> bool:
        """Whether there are gradients of two precisions."""
        return self.software.gradients == "both" and self.gradient_size > self.size

    @property
    def gradient_copies(self) -> float:
        """Bytes of gradients for each that is there, with those of the other precision."""
        return 1 + self.size / self.gradient_size if self.has_both else 1.0

    @property
    def fragmentation(self) -> float:
        """What the caching allocator holds beyond what is in use, as a share of what comes and goes within a step."""
        return _FRAGMENTATION if self.is_gpu else 0.0

    @property
    def fragmentation_of_gradients(self) -> float:
        """The same of gradients, which come and go where a step makes them."""
        return self.fragmentation if self.software.gradients == "made" else 0.0

    @property
    def sharing(self) -> tuple[int, int]:
        """Ranks among which states are shared out, where they are, and those of experts."""
        workers, context = self.plan.shard_over or self.workers, self.plan.context
        return workers * context, self.plan.expert_replicas(workers)

    @property
    def _averages_experts(self) -> Amount:
        """Whether tensor-parallel ranks with different tokens have the same experts."""
        return (self.plan.folds > 1) & (self.sharing[1] > 1)

    @property
    def averages(self) -> Amount:
        """Whether other ranks have the same parameters."""
        return (self.workers * self.plan.context > 1) | self._averages_experts

    @property
    def whole_gradients(self) -> bool:
        """Whether ranks keep whole gradients from microbatch to microbatch that they share out at the end of a step."""
        return self.plan.scatter == "step" and self.plan.microbatches > 1

    @property
    def gathers(self) -> Amount:
        """Whether layers are gathered before they are passed."""
        return (self.training.zero == 3) & ((self.sharing[0] > 1) | self._averages_experts)

    def trained(self, **changes: Any) -> MemoryInputs:
        """The same with changes to how it is trained."""
        other = copy(self)
        other.training, other.alike = self.training.model_copy(update=changes), {}
        return other

    def over(self, workers: Amount, bucket_bytes: Amount) -> MemoryInputs:
        """The same for arrays of numbers of workers and of bytes of a bucket; what depends on them is an array as well."""
        many = copy(self)
        many.workers, many.bucket_bytes = workers, bucket_bytes
        many.samples_per_worker = self.scenario.total_samples // workers
        return many
