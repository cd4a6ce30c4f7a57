"""Reliability: how often parts of a cluster fail, what it takes to notice and to go on, and how training is saved meanwhile.

`scaleproof goodput` reads it. `predict` and `measure` tell of steps between failures, which do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, WrapValidator, model_validator

from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds, parse_time_s

COMPONENTS: Final = ("gpu", "host", "nic", "switch", "job")


# with less or more, rates are no longer numbers
_LEAST_S: Final = 1e-3
_MOST_S: Final = 1e15


def _positive(seconds: float) -> float:
    if not _LEAST_S <= seconds <= _MOST_S:
        what = "zero" if seconds == 0 else "less than a millisecond" if seconds < _LEAST_S else "more than 30 million years"
        raise ValueError(f"{what}; give a time such as '3 h', or leave it out")
    return seconds


def _optimum_or_time(value: Any, validate: Callable[[Any], Any]) -> float | str:
    """One problem in place of one for each alternative."""
    return "optimum" if value == "optimum" else _positive(parse_time_s(value))


Duration = Annotated[Seconds, AfterValidator(_positive)]
Interval = Annotated[Seconds | Literal["optimum"], WrapValidator(_optimum_or_time)]


class TimesBetween(Spec):
    """Mean time between failures of one of each, which come independently and at a constant rate. A component whose time is
    absent does not fail.

    job: of the job as a whole, however many nodes it has: software, people.
    """

    gpu_s: Duration | None = Field(None, alias="gpu")
    host_s: Duration | None = Field(None, alias="host")
    nic_s: Duration | None = Field(None, alias="nic", description="network card")
    switch_s: Duration | None = Field(None, alias="switch")
    job_s: Duration | None = Field(None, alias="job", description="of the job as a whole: software, people")

    @model_validator(mode="after")
    def _something_fails(self) -> Self:
        if all(seconds is None for seconds in self.by_component().values()):
            raise ValueError(f"nothing fails; give one of {', '.join(COMPONENTS)}")
        return self

    def by_component(self) -> dict[str, float | None]:
        return {name: getattr(self, f"{name}_s") for name in COMPONENTS}


class NodesLost(Spec):
    """Nodes that are out of work until they are repaired, with one failure of each."""

    gpu: int = Field(1, ge=0, le=100_000)
    host: int = Field(1, ge=0, le=100_000)
    nic: int = Field(1, ge=0, le=100_000)
    switch: int = Field(0, ge=0, le=100_000, description="0: messages take another way, or a cable is changed")
    job: int = Field(0, ge=0, le=100_000)


class Checkpoint(Spec):
    """How training is saved.

    size: of all nodes together; parameters, master copies and optimizer states if absent. All nodes write a part.
    Synchronous, training stops until it is written. Asynchronous, it stops until nodes have copied their part to their hosts'
    memory, and goes on more slowly, by `slowdown`, while it is written; only then does it count.
    """

    interval_s: Interval = Field("optimum", alias="interval", description="of training between two, or optimum")
    steps: Count | None = Field(None, description="between two, in place of an interval")
    size_bytes: Bytes | None = Field(None, alias="size", gt=0)
    bandwidth_Bps: PositiveBytesPerSecond | None = Field(None, alias="bandwidth", description="of the storage in all")
    node_bandwidth_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="node_bandwidth", description="of each node to the storage"
    )
    load_bandwidth_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="load_bandwidth", description="of the storage in all, when it is read; as when it is written, if absent"
    )
    asynchronous: bool = False
    copy_bandwidth_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="copy_bandwidth", description="of a node's devices to its host's memory, where asynchronous"
    )
    slowdown: float = Field(0.0, ge=0, lt=1, description="share of its speed that training loses while one is written")

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.steps is not None and self.interval_s != "optimum":
            raise ValueError("give interval or steps, not both")
        if self.bandwidth_Bps is None and self.node_bandwidth_Bps is None:
            raise ValueError("give the bandwidth of the storage, or node_bandwidth, each node's to it")
        if self.asynchronous and self.copy_bandwidth_Bps is None:
            raise ValueError("give copy_bandwidth, a node's devices' to its host's memory, for asynchronous checkpoints")
        if not self.asynchronous and (self.copy_bandwidth_Bps is not None or self.slowdown):
            raise ValueError(
                "copy_bandwidth and slowdown are of asynchronous checkpoints; give asynchronous, or leave them out"
            )
        return self


class PlannedStops(Spec):
    """Stops that are announced, such as for firmware: training is saved first, so that nothing is lost. They come independently
    and at a constant rate, as failures do, while training runs. takes: beside what a restart takes."""

    every_s: Duration = Field(alias="every", description="mean time of training between two")
    takes_s: Seconds = Field(0.0, alias="takes")


class Reliability(Spec):
    """What happens when something fails: it is noticed after `detection`; nodes that are lost go to repair, and spare ones
    replace them at once; processes start after `reschedule`, are set up after `initialise`, and load the last checkpoint.

    spares: nodes beside those that train; always one at hand if absent. shortage: what happens without: training waits for a
    repair, or goes on with fewer workers, and grows again, which takes a restart, once nodes are repaired.
    """

    mtbf: TimesBetween = Field(description="mean time between failures of one of each")
    checkpoint: Checkpoint
    detection_s: Seconds = Field(0.0, alias="detection")
    reschedule_s: Seconds = Field(0.0, alias="reschedule")
    initialise_s: Seconds = Field(0.0, alias="initialise")
    nodes_lost: NodesLost = NodesLost()
    spares: int | None = Field(None, ge=0, le=1_000_000, description="nodes beside those that train; always one if absent")
    repair_s: Duration | None = Field(None, alias="repair", description="of a node, from when its failure is noticed")
    shortage: Literal["wait", "shrink"] = Field("wait", description="what training does while there are too few nodes")
    least_workers: Count = Field(1, description="where it shrinks, with fewer it waits")
    planned: PlannedStops | None = None

    @model_validator(mode="after")
    def _nodes_come_back(self) -> Self:
        if self.spares is not None and self.repair_s is None:
            raise ValueError("spares run out; give repair, how long until a node is back")
        if self.spares is None and (self.repair_s is not None or self.shortage == "shrink"):
            raise ValueError("without spares a node is always at hand; give spares (0 for none) with repair and shortage")
        return self
