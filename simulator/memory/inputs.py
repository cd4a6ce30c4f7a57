"""Inputs of the memory model that all ranks of a scenario have in common."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.settings import facts_of
from scaleproof.simulator.cluster.device.device import Device, is_narrow
from scaleproof.simulator.cluster.device.kernels.products import narrow_products
from scaleproof.simulator.memory.result import HOLDERS, TEMPORARY
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Training, gradient_sizes
from scaleproof.simulator.strategy.pipeline.schedules import PassTimes
from scaleproof.simulator.strategy.plan_costs import pass_times
from scaleproof.simulator.strategy.scenario_job import job_of

# Assumption: share of memory that is allocated and freed within a step.
_FRAGMENTATION: Final = 0.05
_T = TypeVar("_T")
# A number, or an array with one for each column of inputs.
Amount = Any


class Columns(NamedTuple):
    """Inputs that differ in these values alone, each an array with one value for each column. samples: of a microbatch."""

    zero: NDArray[np.int64]
    samples: NDArray[np.int64]
    microbatches: NDArray[np.int64]
    bucket_bytes: NDArray[np.float64]


def is_gpu(device: Device) -> bool:
    """Whether a device is a GPU, by its kernels or else by its name."""
    return device.kernels.generation not in ("cpu", "tpu") if device.kernels else facts_of(device.name) is not None


class MemoryInputs:
    """A scenario with its framework, whose memory behaviour is `software`; or many that have the same layers on each rank, with
    arrays in place of numbers where they differ.

    size, parameter_size, gradient_size, reduced_size: bytes per element of activations, of parameters, of accumulated gradients
    and of reduced gradients. zero: ZeRO's stage. samples_per_worker, samples: of a step and of a microbatch, on the worker with
    the most. sharing: number of ranks over which states are sharded, and over which states of experts are. splits: whether
    gradients of weights are computed in separate passes. makes_gradients: whether a step begins without allocated gradients;
    makes: and the first backward pass over a chunk allocates its own. whole_gradients: whether ranks accumulate unsharded
    gradients over microbatches, and reduce-scatter them at the end of a step. gathers: whether parameters of layers are
    all-gathered before each pass, or copied from the host. sends_gradients: whether gradients are moved to the host as soon as
    they are sharded.
    """

    def __init__(self, scenario: Scenario, samples_per_worker: int | None = None) -> None:
        """samples_per_worker: the largest share of the samples of a step if None."""
        scenario = scenario.longest
        strategy = scenario.strategy
        self.scenario, self.software, self.strategy = scenario, scenario.framework.memory, strategy
        self.job, self.servers = job_of(scenario), strategy.servers
        self.size, self.parameter_size = self.job.element_bytes, self.job.parameter_bytes
        sizes = gradient_sizes(scenario.training, strategy, scenario.framework)
        self.gradient_size, self.reduced_size = sizes.accumulated, sizes.reduced
        self.makes_gradients = self.software.gradients == "made" and self.servers == 0
        self.is_gpu = is_gpu(scenario.cluster.device)
        # unused bytes of the caching allocator, as a share of memory that is allocated and freed within a step
        self.fragmentation = _FRAGMENTATION if self.is_gpu else 0.0
        self._known: dict[tuple[object, ...], Any] = {}
        plan = strategy.plan
        most = max(plan.shares) if plan.shares else scenario.total_samples // plan.workers
        self.samples_per_worker: Amount = most if samples_per_worker is None else samples_per_worker
        samples = self.samples_per_worker / plan.microbatches
        self._set(plan, scenario.training, scenario.training.zero, samples, plan.microbatches, plan.bucket_bytes)

    def varied(self, plan: Plan, training: Training, columns: Columns) -> MemoryInputs:
        """The inputs with columns, and another plan and training, which differ in no division of layers over ranks of a stage,
        and in no more of training than recomputation. The schedule must not depend on the times of passes."""
        other = copy(self)
        other.samples_per_worker = columns.samples * columns.microbatches
        other._set(plan, training, *columns)
        return other

    def _set(
        self, plan: Plan, training: Training, zero: Amount, samples: Amount, microbatches: Amount, bucket_bytes: Amount
    ) -> None:
        self.plan, self.training, self.zero = plan, training, zero
        self.samples, self.microbatches, self.bucket_bytes = samples, microbatches, bucket_bytes
        self.splits = plan.schedule not in WHOLE
        self.makes = self.makes_gradients and not self.splits
        self.whole_gradients = (plan.scatter == "step") & (microbatches > 1)
        workers = plan.shard_over or plan.workers
        self.sharing = workers * plan.context, int(plan.expert_replicas(workers))
        fetches = "parameters" in training.offload
        self.gathers = (zero == 3) & (self.sharing[0] > 1 or (plan.folds > 1 and self.sharing[1] > 1) or fetches)
        self.sends_gradients = np.asarray("optimizer" in training.offload) & (zero >= 2) & ~np.asarray(self.whole_gradients)

    def once(self, key: tuple[object, ...], value: Callable[[], _T]) -> _T:
        """A value that varied inputs with the same key have in common, which is computed once."""
        if key not in self._known:
            self._known[key] = value()
        result: _T = self._known[key]
        return result

    @cached_property
    def pass_times(self) -> PassTimes:
        """Times of a chunk's passes, on which the order of some schedules depends."""
        return pass_times(self.plan, self.job)

    @property
    def input_bytes(self) -> float:
        """Bytes per element of what matrix products save: their inputs, and outputs' gradients until those of weights."""
        if not is_narrow(self.training.precision) or self.software.fp8_input_bytes > 1:
            return self.size
        return narrow_products().element_bytes[self.scenario.recipe]

    @property
    def has_both(self) -> bool:
        """Whether there are gradients of two precisions."""
        return self.software.gradients == "both" and self.gradient_size > self.parameter_size

    @property
    def gradient_copies(self) -> float:
        """Bytes of gradients in all precisions, as a multiple of the bytes of accumulated gradients."""
        return 1 + self.parameter_size / self.gradient_size if self.has_both else 1.0

    @cached_property
    def weights(self) -> dict[str, float]:
        """Reserved bytes for each byte that is allocated and freed within a step, by holder."""
        weights = dict.fromkeys(HOLDERS, 1.0) | dict.fromkeys(TEMPORARY, 1 + self.fragmentation)
        # gradients are allocated in each step, or once
        return weights | {"gradients": 1 + (self.fragmentation if self.software.gradients == "made" else 0.0)}
