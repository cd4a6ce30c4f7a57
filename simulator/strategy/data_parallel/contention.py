"""Contention: how much collectives of replicas slow down the passes that they run next to.

A collective occupies one processor per channel, moves two to three bytes of memory per byte on the bus, and draws power for
both. Meanwhile kernels get the rest. If a share t is taken for C seconds, work W takes W + t·C if it outlasts the collective,
and W / (1 − t) otherwise.

Collectives within the passes are on the same links. While both move, each gets half of them. Passes of P seconds contain
collectives for X of them, so collectives of replicas that would take S seconds lose X / P of the time that they run next to
passes, and passes lose as much for what they wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster.collectives.cost import DurationBySize, concurrent_collective, processors_taken
from scaleproof.simulator.cluster.collectives.groups import Group, LinkLevel, Op, bus_factor
from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.parameters import at_power_limit, power_constants
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.parallelism.mesh import DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.strategy.job import Job

Times = NDArray[np.float64]

# Bytes of memory read and written per byte that a ring moves: received data are read, added to local data, and written.
# Two for gathers, three for sums; an assumption.
MEMORY_BYTES_PER_BUS_BYTE: Final[dict[Op, float]] = {"all_gather": 2.0, "reduce_scatter": 3.0, "all_reduce": 2.5}
# Smallest duration of a pass, against divisions by zero.
_LEAST_S: Final = 1e-12
# Maximum share of memory bandwidth that collectives take.
_MAX_MEMORY: Final = 0.9
_BITS: Final = 8
_PICO: Final = 1e-12


def completes_early(gradient_bytes: Times | float, limit_bytes: Times | float) -> NDArray[np.bool_]:
    """Whether a bucket of gradients is complete before the last pass ends, so that its sum runs next to passes: a bucket of
    all gradients is not. limit_bytes: at which the first bucket closes."""
    return np.asarray(gradient_bytes >= limit_bytes)


class _Collective(NamedTuple):
    """A collective of replicas next to passes over a layer.

    of_experts: whether it moves the parameters of experts, or all others. moves_frozen: whether frozen ones as well. direction:
    0 next to forward passes, 1 next to backward passes. place: of its seconds, by links and direction. passes: that it is
    distributed over. seconds: by its size. bus_factor: bytes on the bus per byte of its size. memory_bytes, joules: per byte on
    the bus.
    """

    of_experts: int
    moves_frozen: bool
    direction: int
    place: int
    element_bytes: int
    passes: int
    seconds: DurationBySize
    bus_factor: float
    memory_bytes: float
    joules: float


class _Moved(NamedTuple):
    """What the collectives of replicas next to each layer's forward and backward pass take.

    seconds: by links, shape (levels, 2, layers). memory_bytes: read and written; joules: of moving them; shape (2, layers).
    """

    seconds: Times
    memory_bytes: Times
    joules: Times


@dataclass(frozen=True)
class Contention:
    """Slowdown of passes by the collectives of replicas next to them, and of these by the passes' own collectives.

    group: ranks with the same parameters; experts: ranks with the same experts, if different. gathers: whether parameters are
    gathered next to the forward and the backward pass of each microbatch, as in ZeRO's stage 3. first_gather: whether they are
    gathered next to the first forward pass of a step only. sums: collective that sums gradients next to backward passes, None
    if passes do not overlap with it. passes: number of microbatches whose passes one sum runs next to: 1 if each microbatch
    sums; all if ranks have several chunks, whose sums run next to passes over other chunks; 0 if a sum runs next to the last
    backward pass only. stages: number of parts of the model whose passes the sums of a rank run next to.
    """

    group: Group
    experts: Group | None
    gathers: tuple[bool, bool]
    first_gather: bool
    sums: Op | None
    passes: int
    stages: int

    @classmethod
    def of_replicas(cls, plan: Plan, mesh: DeviceMesh, job: Job) -> Self | None:
        """Contention with the collectives of a plan's replicas; None without such collectives."""
        if not plan.averages or plan.servers:
            return None
        zero = 0 if job.owns_tensors else job.zero
        gathering = plan.gathering(zero)
        gradient_bytes = job.reduced_bytes * sum(layer.trained_parameters for layer in job.layers)
        early = plan.overlap and not job.sums_whole and completes_early(gradient_bytes, plan.bucket_limits_bytes[0])
        overlaps = bool(early) or zero >= 2
        experts = mesh.expert_replicas(0)[0] if plan.divides_experts else None
        return cls(
            group=mesh.replicas_of(0, 0, plan.sharing if zero else None),
            experts=None if experts is None else mesh.group(experts),
            gathers=(gathering in ("every pass", "every forward pass"), gathering == "every pass"),
            first_gather=gathering in ("next forward pass", "once a step"),
            sums=("reduce_scatter" if zero else "all_reduce") if overlaps else None,
            passes=1 if zero >= 2 and plan.scatter == "microbatch" else plan.microbatches if plan.chunks > 1 else 0,
            stages=plan.stages if plan.chunks == 1 else 1,
        )

    def delays(self, computing_s: Times, within_s: Times, samples: float, job: Job) -> tuple[Times, Times, Times]:
        """Additional seconds of each layer's passes of every microbatch, and further ones of the first forward and the last
        backward pass of a step, and the share by which the collectives of replicas next to forward and to backward passes take
        longer; each of shape (2, layers).

        computing_s: seconds of passes without contention, shape (2, layers). within_s: collectives within passes, as in
        `Job.with_again`.
        """
        resources, nothing = ContendedResources.of_job(job), np.zeros_like(computing_s)
        shares_links = job.framework.link_contention and bool(np.any(within_s))
        if resources is None and not shares_links:
            return nothing, nothing, nothing
        bound = nothing if resources is None else job.memory_shares(samples)
        forward, backward = self.gathers
        every_microbatch = self._moved(job, forward, backward, self.passes)
        once_per_step = self._moved(job, self.first_gather, False, 0 if self.passes else 1)
        passes_s, shares = [], []
        for moved in (every_microbatch, once_per_step):
            moves = moved.seconds.any()
            on_device_s = resources.delays_s(moved, computing_s, bound) if moves and resources is not None else nothing
            on_links_s, share = self._on_links_s(moved, computing_s, within_s) if moves and shares_links else (nothing, nothing)
            passes_s.append(on_device_s + on_links_s)
            shares.append(share)
        return passes_s[0], passes_s[1], shares[0] + shares[1]

    def _on_links_s(self, moved: _Moved, computing_s: Times, within_s: Times) -> tuple[Times, Times]:
        """Additional seconds of passes whose collectives share links with those of replicas, shape (2, layers), and the share
        by which the latter take longer, shape (2, layers)."""
        passes_s: Times = computing_s + within_s[:, 1].sum(axis=0)
        stages = np.array_split(np.arange(computing_s.shape[-1]), self.stages)
        next_s = np.concatenate([together_s(moved.seconds[..., layers], passes_s[:, layers]) for layers in stages], axis=-1)
        within_s, exposed_s = within_s.sum(axis=-1).swapaxes(0, 1)
        longer_s, delayed_s = delays_s(next_s.sum(axis=-1), within_s, exposed_s, passes_s.sum(axis=-1))
        slowed = np.divide(delayed_s, next_s.sum(axis=-1), out=np.zeros_like(delayed_s), where=delayed_s > 0)
        layers_s = slowed[..., None] * next_s
        share = np.divide(layers_s, moved.seconds, out=np.zeros_like(layers_s), where=layers_s > 0).sum(axis=0)
        # nothing moves next to the first layer of a pass: its gradients are the first, or the next layer's parameters
        passes_s[[0, 1], [0, -1]] = 0.0
        longer = longer_s.sum(axis=0) / np.maximum(passes_s.sum(axis=-1), _LEAST_S)
        return longer[:, None] * passes_s, share

    def _moved(self, job: Job, forward: bool, backward: bool, passes: int) -> _Moved:
        """Collectives next to the passes over each layer: gathers next to the forward and the backward pass, and sums, which
        are distributed over a number of passes, 0 for no sums."""
        collectives = self._collectives(job, forward, backward, passes)
        if not collectives:
            nothing = np.zeros((2, len(job.layers)))
            return _Moved(np.zeros((2, 2, len(job.layers))), nothing, nothing)
        columns = job.of_layers(lambda layer: self._moved_by_layer(layer, collectives, job))
        return _Moved(columns[:4].reshape(2, 2, -1), columns[4:6], columns[6:])

    def _collectives(self, job: Job, forward: bool, backward: bool, passes: int) -> list[_Collective]:
        """The collectives next to passes; arguments as in `_moved`."""
        calls: list[tuple[int, Op, int, int]] = [
            (direction, "all_gather", job.gathered_bytes, 1) for direction, gathers in enumerate((forward, backward)) if gathers
        ]
        if self.sums is not None and passes:
            calls.append((1, self.sums, job.reduced_bytes, passes))
        result = []
        for of_experts, group in enumerate((self.group, self.experts)):
            if group is None or group.size == 1:
                continue
            for direction, op, element_bytes, pass_count in calls:
                moves_frozen = op == "all_gather" and job.zero == 3 and not of_experts
                place, memory_bytes = 2 * LinkLevel.of(group) + direction, MEMORY_BYTES_PER_BUS_BYTE[op]
                seconds, factor = concurrent_collective(op, group, job.cluster), bus_factor(op, group.size)
                joules = joules_per_bus_byte(memory_bytes)
                result.append(
                    _Collective(
                        of_experts, moves_frozen, direction, place, element_bytes, pass_count, seconds, factor,
                        memory_bytes, joules,
                    )
                )  # fmt: skip
        return result

    def _moved_by_layer(self, layer: Layer, collectives: Sequence[_Collective], job: Job) -> Sequence[float]:
        """Seconds by links, bytes of memory and joules of a layer's collectives, each by pass; eight numbers."""
        experts = 0 if self.experts is None else layer.expert_parameters
        trained = layer.trained_parameters - experts, experts
        moved_s, memory_bytes, moved_J = [0.0] * 4, [0.0, 0.0], [0.0, 0.0]
        for collective in collectives:
            parameters = trained[collective.of_experts]
            if collective.moves_frozen:
                parameters += layer.gathered_elements(collective.element_bytes) - layer.trained_parameters
            passes_back = job.is_gathered_again(layer) if collective.moves_frozen else layer.has_backward
            if not parameters or (collective.direction and not passes_back):
                continue
            size_bytes = float(parameters * collective.element_bytes)
            moved_s[collective.place] += collective.seconds(size_bytes) / collective.passes
            bus_bytes = size_bytes * collective.bus_factor / collective.passes
            memory_bytes[collective.direction] += collective.memory_bytes * bus_bytes
            moved_J[collective.direction] += collective.joules * bus_bytes
        return *moved_s, *memory_bytes, *moved_J


@dataclass(frozen=True)
class ContendedResources:
    """Resources of a device that collectives and kernels share.

    processors: share that a collective's channels occupy. memory_Bps: bytes per second that kernels reach. power: None if power
    is not shared.
    """

    processors: float
    memory_Bps: float
    power: PowerBudget | None = None

    @classmethod
    def of_job(cls, job: Job) -> Self | None:
        """The resources of a job's device; None if collectives take nothing from kernels."""
        device, framework = job.cluster.device, job.framework
        processors = processors_taken(job.cluster)
        if not framework.contention or processors == 0 or device.kernels is None:
            return None
        power = PowerBudget.of_device(device, processors) if framework.power else None
        return cls(processors, device.memory_bandwidth_Bps * device.kernels.memory_share, power)

    def delays_s(self, moved: _Moved, computing_s: Times, bound: Times) -> Times:
        """Additional seconds of passes that share the device with collectives, shape (2, layers). bound: as in `taken`."""
        moved_s: Times = moved.seconds.sum(axis=0)
        share = self.taken(*per_second(moved.memory_bytes, moved.joules, moved_s), bound)
        # collectives of a layer run next to passes over its neighbours, so the limit applies to the whole pass
        layer_s, limit_s = share * moved_s, (share / (1 - share) * computing_s).sum(axis=1)
        total_s = layer_s.sum(axis=1)
        bounded = np.divide(np.minimum(total_s, limit_s), total_s, out=np.zeros_like(total_s), where=total_s > 0)
        result: Times = layer_s * bounded[:, None]
        return result

    def taken(self, memory_Bps: Times, moved_W: Times, bound: Times) -> Times:
        """Share of a device that collectives take from kernels, of the resource of which kernels lose most.

        memory_Bps, moved_W: bytes of memory per second that collectives move, and watts of moving them. bound: share of kernel
        time that is bound by memory.
        """
        by_products = np.full_like(moved_W, self.processors)
        by_memory = np.clip(memory_Bps / self.memory_Bps, self.processors, _MAX_MEMORY)
        if self.power is not None:
            lost = self.power.lost(moved_W)
            by_products, by_memory = np.maximum(by_products, lost[0]), np.maximum(by_memory, lost[1])
        result: Times = by_products * (1 - bound) + by_memory * bound
        return result


def per_second(memory_bytes: Times, moved_J: Times, moved_s: Times) -> tuple[Times, Times]:
    """Bytes of memory per second and watts during `moved_s` seconds; 0 where `moved_s` is 0."""
    memory_Bps, moved_W = (
        np.divide(moved, moved_s, out=np.zeros_like(moved_s), where=moved_s > 0) for moved in (memory_bytes, moved_J)
    )
    return memory_Bps, moved_W


def slowed_by(share: Times, moved_s: Times, computing_s: Times) -> Times:
    """Additional seconds of work next to collectives that take a share of the device for `moved_s` seconds."""
    result: Times = np.minimum(share * moved_s, share / (1 - share) * computing_s)
    return result


@dataclass(frozen=True)
class PowerBudget:
    """Power of kernels and collectives, as shares of the device's power limit minus its idle power.

    products, memory: kernels alone that are bound by matrix products or by memory bandwidth. channels: processors of all
    channels of collectives. budget_W: power limit minus idle power, watts.
    """

    products: float
    memory: float
    channels: float
    budget_W: float

    @classmethod
    def of_device(cls, device: Device, processors: float) -> Self | None:
        """The budget of a device on which channels occupy the share `processors`; None if no limit is known."""
        if device.power_limit_W is None or device.kernels is None:
            return None
        known = power_constants()
        idle = known["idle_share"]
        kernels = at_power_limit(device.kernels, device.power_limit_W)
        products = min(1.0, kernels.tile_share / kernels.sustained_share)
        return cls(
            products=(products - idle) / (1 - idle),
            memory=(known["memory_bound_share"] - idle) / (1 - idle),
            channels=processors * known["channel_share"],
            budget_W=(1 - idle) * device.power_limit_W,
        )

    def lost(self, moved_W: Times) -> tuple[Times, Times]:
        """Shares of their rate that kernels bound by products, and by memory bandwidth, lose next to collectives.

        moved_W: watts that collectives draw for moving bytes. Power is shared max-min fairly: collectives get their demand, up
        to a half.
        """
        left = 1 - np.minimum(self.channels + moved_W / self.budget_W, 0.5)
        products, memory = (np.maximum(0.0, 1 - left / alone) for alone in (self.products, self.memory))
        return products, memory


def joules_per_bus_byte(memory_bytes: float) -> float:
    """Joules that a device spends per byte on the bus, if `memory_bytes` bytes of memory are moved for it."""
    known = power_constants()
    energy_pJ = known["memory_pJ_per_bit"] * memory_bytes + known["link_pJ_per_bit"]
    return float(_BITS * _PICO * energy_pJ)


def together_s(moved_s: Times, passes_s: Times) -> Times:
    """Seconds for which the collectives of each layer move next to passes, if nothing slows either; layers are the last axis.

    Layers are passed from the last to the first. A layer's collectives, of `moved_s` seconds, follow its pass and the
    collectives before them. Read backwards in time, the same holds for collectives that precede passes from the first layer to
    the last.
    """
    moved_s, passes_s = moved_s[..., ::-1], passes_s[..., ::-1]
    passed_s, ends_s = np.cumsum(passes_s, axis=-1), np.cumsum(moved_s, axis=-1)
    # none ends earlier than all since one that began right after its pass
    ends_s = ends_s + np.maximum.accumulate(passed_s - (ends_s - moved_s), axis=-1)
    result: Times = np.maximum(np.minimum(ends_s, passed_s[..., -1:]) - (ends_s - moved_s), 0.0)
    return result[..., ::-1]


def delays_s(next_s: Times, within_s: Times, exposed_s: Times, passes_s: Times) -> tuple[Times, Times]:
    """Additional seconds of passes, and of the collectives of replicas next to them, that share links.

    Together both take no less than the links are busy. next_s: seconds for which collectives of replicas move next to
    passes. within_s: seconds of the collectives within the passes; exposed_s: seconds of them for which the passes wait.
    passes_s: seconds of the passes, those included.
    """
    share = np.divide(next_s, passes_s, out=np.zeros_like(next_s), where=passes_s > 0)
    # collectives hidden behind compute lengthen passes once the links have no time left
    longer_s = np.maximum(share * exposed_s, np.minimum(within_s + next_s - passes_s, next_s))
    return np.where(next_s * within_s > 0, longer_s, 0.0), share * within_s
