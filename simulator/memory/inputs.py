"""Inputs of the memory model that all ranks of a scenario have in common."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any, Final

from scaleproof.simulator.cluster.collectives.settings import facts_of
from scaleproof.simulator.cluster.device.device import Device, is_narrow
from scaleproof.simulator.cluster.device.kernels.products import narrow_products
from scaleproof.simulator.memory.result import HOLDERS, TEMPORARY
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import gradient_sizes
from scaleproof.simulator.strategy.pipeline.passes import PassTimes
from scaleproof.simulator.strategy.plan_costs import pass_times
from scaleproof.simulator.strategy.scenario_job import job_of

# A number, or an array with one for each of many ranks.
Amount = Any
# Assumption: share of memory that is allocated and freed within a step.
_FRAGMENTATION: Final = 0.05


def is_gpu(device: Device) -> bool:
    """Whether a device is a GPU, by its kernels or else by its name."""
    return device.kernels.generation not in ("cpu", "tpu") if device.kernels else facts_of(device.name) is not None


class MemoryInputs:
    """A scenario with its framework, whose memory behaviour is `software`.

    samples: per microbatch, on the worker with the most. size, parameter_size, gradient_size, reduced_size: bytes per element
    of activations, of parameters, of accumulated gradients and of reduced gradients. makes_gradients: whether a step begins
    without allocated gradients.
    """

    def __init__(self, scenario: Scenario) -> None:
        strategy, software = scenario.strategy, scenario.framework.memory
        self.scenario, self.software, self.strategy = scenario, software, strategy
        self.training, self.job, self.plan, self.servers = scenario.training, job_of(scenario), strategy.plan, strategy.servers
        plan = self.plan
        self.size, self.parameter_size = self.job.element_bytes, self.job.parameter_bytes
        sizes = gradient_sizes(scenario.training, strategy, scenario.framework)
        self.gradient_size, self.reduced_size = sizes.accumulated, sizes.reduced
        self.samples_per_worker = max(plan.shares) if plan.shares else scenario.samples_per_worker
        self.samples = self.samples_per_worker / plan.microbatches
        self.workers, self.bucket_bytes = plan.workers, plan.bucket_bytes
        # caches of evaluated layers by identity of their parts; `passed`: values that do not depend on the training
        self.evaluated: dict[tuple[object, ...], Any] = {}
        self.passed: dict[tuple[object, ...], Any] = {}
        self.makes_gradients = software.gradients == "made" and self.servers == 0

    @cached_property
    def pass_times(self) -> PassTimes:
        """Times of a chunk's passes, on which the order of some schedules depends."""
        return pass_times(self.plan, self.job)

    @property
    def makes(self) -> bool:
        """Whether the first backward pass over a chunk allocates its gradients."""
        return self.makes_gradients and not self.splits

    @property
    def input_bytes(self) -> float:
        """Bytes per element of what matrix products save: their inputs, and outputs' gradients until those of weights."""
        if not is_narrow(self.training.precision) or self.software.fp8_input_bytes > 1:
            return self.size
        return narrow_products().element_bytes[self.scenario.recipe]

    @property
    def splits(self) -> bool:
        """Whether gradients of weights are computed in separate passes."""
        return self.plan.schedule not in WHOLE

    @cached_property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return is_gpu(self.scenario.cluster.device)

    @property
    def has_both(self) -> bool:
        """Whether there are gradients of two precisions."""
        return self.software.gradients == "both" and self.gradient_size > self.parameter_size

    @property
    def gradient_copies(self) -> float:
        """Bytes of gradients in all precisions, as a multiple of the bytes of accumulated gradients."""
        return 1 + self.parameter_size / self.gradient_size if self.has_both else 1.0

    @property
    def fragmentation(self) -> float:
        """Unused bytes of the caching allocator, as a share of memory that is allocated and freed within a step."""
        return _FRAGMENTATION if self.is_gpu else 0.0

    @cached_property
    def weights(self) -> dict[str, float]:
        """Reserved bytes for each byte that is allocated and freed within a step, by holder."""
        weights = dict.fromkeys(HOLDERS, 1.0) | dict.fromkeys(TEMPORARY, 1 + self.fragmentation)
        # gradients are allocated in each step, or once
        return weights | {"gradients": 1 + (self.fragmentation if self.software.gradients == "made" else 0.0)}

    @property
    def sharing(self) -> tuple[int, int]:
        """Number of ranks over which states are sharded, and over which states of experts are."""
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
        """Whether ranks accumulate unsharded gradients over microbatches, and reduce-scatter them at the end of a step."""
        return self.plan.scatter == "step" and self.plan.microbatches > 1

    @property
    def gathers(self) -> Amount:
        """Whether parameters of layers are all-gathered before each pass."""
        return (self.training.zero == 3) & ((self.sharing[0] > 1) | self._averages_experts)

    def trained(self, **changes: Any) -> MemoryInputs:
        """A copy with changed fields of `training`."""
        other = copy(self)
        other.training, other.evaluated = self.training.model_copy(update=changes), {}
        return other

    def over(self, workers: Amount, bucket_bytes: Amount) -> MemoryInputs:
        """A copy with arrays of numbers of workers and of bucket bytes; properties that depend on them become arrays."""
        many = copy(self)
        many.workers, many.bucket_bytes = workers, bucket_bytes
        many.samples_per_worker = self.scenario.total_samples // workers
        return many
