"""Space: what the planner chooses from for a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simulator.errors import FieldError
from simulator.estimate import Space
from simulator.estimate.pipelines import CLOSED
from simulator.estimate.servers import PLACEMENTS, ServerSpace
from simulator.model.layers import Layer, Shard, glued_ends
from simulator.recompute import Recompute
from simulator.scenario import Scenario
from simulator.strategy import Hybrid, ParameterServer
from simulator.strategy.grid import ORDER
from simulator.strategy.schedule import ScheduleName

_CHUNKS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24)
# Kinds of strategies that are planned.
STRATEGIES: Final = ("hybrid", "parameter_server")
_BUCKETS_BYTES: Final = (25 * 2.0**20, 100 * 2.0**20, 400 * 2.0**20)
# Pipelines inside nodes and replicas across them, where tensor-parallel ranks leave room.
_STAGES_FIRST: Final = ("tensor", "context", "stages", "workers")
# More samples in a microbatch than this, or ranks that share a layer across nodes, are looked at by nobody.
_MOST_SAMPLES: Final = 1024
_MOST_EXPERT: Final = 256
# Tokens of a sample from which on ranks may share them.
_LONG: Final = 16_384
_MOST_CONTEXT: Final = 16


def space(scenario: Scenario, ranks: int, schedules: Sequence[ScheduleName] = CLOSED) -> Space:
    """All degrees that divide `ranks`, microbatches of all sizes, schedules, ZeRO's stages, recomputation, buckets, and orders
    of axes. Raises FieldError where the model's layers, or so many ranks, are too few or too many."""
    cluster = scenario.cluster
    if ranks > cluster.devices:
        nodes = -(-ranks // cluster.node.devices)
        message = f"{ranks} ranks for {cluster.devices} devices; give at most {cluster.devices}, or set cluster.nodes={nodes}"
        raise FieldError(("strategy",), message)
    layers = scenario.model.build_layers()
    first, last = glued_ends(layers)
    total = scenario.total_samples
    long = getattr(scenario.model, "sequence", 0) >= _LONG
    mixed = any(layer.expert_parameters for layer in layers)
    own = scenario.strategy.bucket_bytes if isinstance(scenario.strategy, Hybrid) else _BUCKETS_BYTES[0]
    whole = Space(
        scenario,
        (ranks,),
        tensor=tuple(degree for degree in _powers(cluster.node.devices) if _divides(scenario, degree)),
        context=_powers(_MOST_CONTEXT) if long else (1,),
        expert=_powers(_MOST_EXPERT) if mixed else (1,),
        expert_tensor=tuple(dict.fromkeys((None, 1, scenario.strategy.plan.expert_tensor))) if mixed else (None,),
        stages=tuple(stages for stages in range(1, last - first + 1) if ranks % stages == 0),
        chunks=_CHUNKS,
        samples=tuple(samples for samples in range(1, min(total, _MOST_SAMPLES) + 1) if total % samples == 0),
        # the one that ranks have which are alone in their pipelines comes with all
        schedules=tuple(dict.fromkeys((*schedules, *CLOSED[:1]))),
        zero=(0, 1, 2, 3),
        recompute=tuple(Recompute(kind=kind) for kind in ("none", "selective", "full")),
        sequence_parallel=(False, True),
        buckets_bytes=tuple(sorted({own, *_BUCKETS_BYTES})),
        orders=(ORDER, _STAGES_FIRST),
    )
    return whole if _keeps(layers) else replace(whole, recompute=whole.recompute[:1])


def server_space(scenario: Scenario, workers: int, most: int | None) -> ServerSpace:
    """Servers from one up to as many as the cluster has machines for, or `most`; where they stand, whether gradients are summed
    inside machines first, recomputation and buckets."""
    cluster, own = scenario.cluster, scenario.strategy
    taken = -(-workers // cluster.node.devices)
    machines = max(cluster.nodes - taken, taken, min(workers, cluster.node.devices))
    most = machines if most is None else min(most, machines)
    servers = {*_powers(most), *(3 * power for power in _powers(most // 3)), taken, most, own.servers}
    bucket_bytes = own.bucket_bytes if isinstance(own, ParameterServer) else _BUCKETS_BYTES[0]
    recompute = tuple(Recompute(kind=kind) for kind in ("none", "selective", "full"))
    return ServerSpace(
        scenario,
        (workers,),
        tuple(sorted(number for number in servers if 0 < number <= most)),
        PLACEMENTS,
        recompute=recompute if _keeps(scenario.model.build_layers()) else recompute[:1],
        buckets_bytes=tuple(sorted({bucket_bytes, *_BUCKETS_BYTES})),
    )


def _powers(most: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(most.bit_length()) if 2**power <= most)


def _divides(scenario: Scenario, tensor: int) -> bool:
    try:
        scenario.model.build_layers(Shard(tensor=tensor))
    except FieldError:
        return False
    return True


def _keeps(layers: list[Layer]) -> bool:
    """Whether anything is kept for the backward pass that could be made again."""
    return any(layer.kept for layer in layers if not layer.glued)
