"""Strategy families as the page names them, and the settings with which one begins."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from scaleproof.simulator.scenario.schema import Scenario


class Family(NamedTuple):
    """A strategy family, described for newcomers."""

    label: str
    help: str


FAMILIES: Final = {
    "data_parallel": Family("data parallelism", "every device holds the whole model; gradients are averaged by an allreduce"),
    "parameter_server": Family("parameter servers", "workers push gradients to servers, which hold the weights"),
    "pipeline": Family("pipeline", "each device has some layers; microbatches pass through like on an assembly line"),
    "hybrid": Family("hybrid (3-D)", "pipelines, divided layers and replicas at once: how very large models are trained"),
    "model_parallel": Family("model parallelism (naive)", "layers on different devices that take turns, without microbatches"),
    "local_sgd": Family("local SGD", "workers train alone for a while, then average their weights"),
    "gather_average": Family("gather and average", "one worker collects all gradients and hands the weights out"),
}
_MICROBATCHES_PER_STAGE: Final = 4
_WORKERS_PER_SERVER: Final = 8
_PERIOD: Final = 16
# stages with which a pipeline begins
_STAGES: Final = 8


class Room(NamedTuple):
    """Room for a strategy: nodes, devices per node, and consecutive blocks of the model."""

    nodes: int
    devices: int
    blocks: int

    @property
    def all(self) -> int:
        """Number of devices of all nodes."""
        return self.nodes * self.devices


def room(scenario: Scenario) -> Room:
    """The room of a scenario's cluster and model."""
    layers = scenario.model.build_layers()
    blocks = sum(not layer.pinned_to_end for layer in layers) or len(layers)
    return Room(scenario.cluster.nodes, scenario.cluster.node.devices, blocks)


def usual(kind: str, ranks: int, room: Room, samples: int) -> tuple[str, ...]:
    """The settings with which a family begins, for an approximate number of ranks and samples per step."""
    ranks = max(1, min(ranks, room.all))
    strategy = _degrees(kind, ranks, room)
    multiple = strategy.get("workers", 1) * strategy.get("microbatches", 1)
    total = max(1, round(samples / multiple)) * multiple
    sets = (f"strategy={_flow(kind, strategy)}", f"batch={{total: {total}}}")
    # servers get nodes of their own, where there are several
    nodes = math.ceil(ranks / room.devices) + strategy.get("servers", 0)
    return (*sets, f"cluster.nodes={nodes}") if 1 < room.nodes < nodes else sets


def _degrees(kind: str, ranks: int, room: Room) -> dict[str, Any]:
    if kind in ("pipeline", "model_parallel", "hybrid"):
        stages = _power(min(ranks, room.blocks, room.all if kind == "pipeline" else _STAGES))
        if kind == "model_parallel":
            return {"stages": stages}
        microbatches = _MICROBATCHES_PER_STAGE * stages
        staged = {"stages": stages, "microbatches": microbatches, "schedule": "1f1b"}
        return staged if kind == "pipeline" else {"workers": max(1, ranks // stages), **staged}
    if kind == "parameter_server":
        return _served(ranks, room)
    if kind == "local_sgd":
        return {"workers": ranks, "period": _PERIOD}
    return {"workers": ranks}


def _served(ranks: int, room: Room) -> dict[str, Any]:
    nodes = math.ceil(ranks / room.devices)
    return {"workers": ranks, "servers": max(1, min(nodes, ranks // _WORKERS_PER_SERVER))}


def _power(number: int) -> int:
    """The largest power of two that is not above it."""
    return 1 << (max(1, number).bit_length() - 1)


def _flow(kind: str, fields: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in {"kind": kind, **fields}.items()) + "}"
