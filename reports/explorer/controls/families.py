"""Strategy families as the page names them, and the layout with which one begins on the scenario's GPUs and global batch."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scaleproof.reports.explorer.controls.layouts import micro_batch_size
from scaleproof.simulator.parallelism import (
    DataParallel,
    GatherAverage,
    Hybrid,
    LocalSgd,
    ModelParallel,
    ParameterServer,
    Pipeline,
    Strategy,
)
from scaleproof.simulator.scenario.schema import Scenario


class Family(NamedTuple):
    """A strategy family: its name, and what it does."""

    label: str
    help: str


FAMILIES: Final = {
    "data_parallel": Family("Data parallel (DDP, ZeRO, FSDP)", "every GPU trains on its own samples; gradients are averaged"),
    "hybrid": Family("Hybrid (DP × TP × PP × CP × EP)", "degrees multiply to the number of GPUs; how large models are trained"),
    "pipeline": Family("Pipeline (PP)", "one stage per GPU; microbatches pass through all of them"),
    "parameter_server": Family("Parameter servers", "workers push gradients to servers, which store the parameters"),
    "local_sgd": Family("Local SGD", "workers take several steps alone, then average their parameters"),
    "gather_average": Family("Gather and average", "one worker gathers all gradients and broadcasts the parameters"),
    "model_parallel": Family("Model parallel (naive)", "layers on different GPUs that compute one after another"),
}
_WORKERS_PER_SERVER: Final = 8
_PERIOD: Final = 16


def blocks(scenario: Scenario) -> int:
    """Number of blocks between which a model can be cut into stages."""
    layers = scenario.model.build_layers()
    return sum(not layer.pinned_to_end for layer in layers) or len(layers)


def beginning(kind: str, scenario: Scenario, gpus: int) -> Strategy:
    """The strategy with which a family begins on N GPUs; its workers and microbatches are to follow from the global batch."""
    own: Any = scenario.strategy
    if kind == "hybrid":
        plan = own.plan
        given: dict[str, Any] = {"stages": plan.stages, "schedule": plan.schedule, "chunks": plan.chunks}
        given = given if plan.stages > 1 else {}
        return Hybrid(workers=max(1, gpus // plan.stages), microbatches=own.microbatches, **given)
    if kind == "pipeline":
        size = micro_batch_size(scenario)
        return Pipeline(stages=gpus, microbatches=max(1, scenario.total_samples // size))
    if kind == "parameter_server":
        # on the workers' nodes, so that strategies are compared on the same machines
        nodes = -(-gpus // scenario.cluster.node.devices)
        return ParameterServer(workers=gpus, servers=max(1, min(nodes, gpus // _WORKERS_PER_SERVER)), placement="colocated")
    if kind == "local_sgd":
        return LocalSgd(workers=gpus, period=_PERIOD)
    if kind == "gather_average":
        return GatherAverage(workers=gpus)
    if kind == "model_parallel":
        return ModelParallel(stages=gpus)
    return DataParallel(workers=gpus, microbatches=own.microbatches if "microbatches" in type(own).model_fields else 1)
