"""Reliability: failure rates of a cluster's components, times of detection and restart, checkpoints, and events of hosts.

`scaleproof goodput` uses it, with random failures (`mtbf`) or along events of hosts at known times (`events`), which
`scaleproof faults` makes happen. `predict` and `measure` cover steps between failures, which do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, WrapValidator, model_validator

from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Bytes, PositiveBytesPerSecond, Seconds, format_Bps, format_time_s, parse_time_s


class _HostEvent(Spec):
    """A change of one host. It occurs once its time or step is reached and all events before it have occurred."""

    host: int = Field(ge=0, le=1_000_000, description="number of the host; the job begins on the first ones, from 0")
    at_s: Seconds | None = Field(None, alias="at", description="time since the first step began")
    step: Count | None = Field(None, description="occurs when this many steps have been taken, instead of at a time")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.at_s is None) == (self.step is None):
            raise ValueError("give at, such as 30 s, or step" + ("" if self.at_s is None else ", not both"))
        return self

    @property
    def when(self) -> str:
        """The time or step in words."""
        return f"after step {self.step}" if self.step is not None else f"at {format_time_s(self.at_s or 0.0)}"


class HostFailure(_HostEvent):
    """A host that is gone at once: work since the last checkpoint is lost."""

    kind: Literal["failure"] = "failure"

    @property
    def words(self) -> str:
        """The event in words."""
        return f"host {self.host} fails {self.when}"


class SpotInterruption(_HostEvent):
    """A host that is announced to go after `notice`: ranks save at the end of their step if that is early enough."""

    kind: Literal["interruption"] = "interruption"
    notice_s: Seconds = Field(alias="notice", description="from the announcement until the host is gone")

    @property
    def words(self) -> str:
        """The event in words."""
        notice = f"{format_time_s(self.notice_s)} notice" if self.notice_s else "no notice"
        return f"host {self.host} has {notice} {self.when}"


class HostJoin(_HostEvent):
    """A host that becomes available, added or back after it went: ranks save at the end of their step, and go on with it."""

    kind: Literal["join"] = "join"

    @property
    def words(self) -> str:
        """The event in words."""
        return f"host {self.host} joins {self.when}"


class ProcessCrash(_HostEvent):
    """The process of a rank that ends at once, and that its host starts again: work since the last checkpoint is lost."""

    kind: Literal["crash"] = "crash"

    @property
    def words(self) -> str:
        """The event in words."""
        return f"the process on host {self.host} crashes {self.when}"


class LinkChange(_HostEvent):
    """A host's link to the network that has another bandwidth, from the end of the step on: nothing is lost."""

    kind: Literal["link"] = "link"
    bandwidth_Bps: PositiveBytesPerSecond = Field(alias="bandwidth", description="of the host's link from then on")

    @property
    def words(self) -> str:
        """The event in words."""
        return f"the link of host {self.host} has {format_Bps(self.bandwidth_Bps)} {self.when}"


AnyHostEvent = Annotated[HostFailure | SpotInterruption | HostJoin | ProcessCrash | LinkChange, Field(discriminator="kind")]


COMPONENTS: Final = ("gpu", "host", "nic", "switch", "job")
# What sites see, for times that are not given. Ranks wait in a collective for one that is gone until NCCL's time-out in
# PyTorch, by default 10 minutes (pull request 110947 of pytorch/pytorch). A restart, without loading: MegaScale resumes within
# 15 minutes (arXiv 2402.15627, section 6.3); assumed is the middle of 5 to 15 minutes, half for new nodes and half for
# processes, libraries, communicators and data loaders.
USUAL_DETECTION_S: Final = 600.0
USUAL_RESTART_S: Final = 600.0
_USUAL: Final = ("detection_s", "reschedule_s", "initialise_s")
# beyond these limits, failure rates overflow or underflow
_LEAST_S: Final = 1e-3
_MOST_S: Final = 1e15


def _positive(seconds: float) -> float:
    if not _LEAST_S <= seconds <= _MOST_S:
        size = "zero" if seconds == 0 else "less than a millisecond" if seconds < _LEAST_S else "more than 30 million years"
        raise ValueError(f"{size}; give a time such as '3 h', or leave it out")
    return seconds


def _optimum_or_time(value: Any, validate: Callable[[Any], Any]) -> float | str:
    """Validates both alternatives at once, so that there is one error instead of one for each."""
    return "optimum" if value == "optimum" else _positive(parse_time_s(value))


Duration = Annotated[Seconds, AfterValidator(_positive)]
Interval = Annotated[Seconds | Literal["optimum"], WrapValidator(_optimum_or_time)]


class TimesBetween(Spec):
    """Mean time between failures of each component, which are independent with constant rates.

    A component without a time does not fail. job: of the job as a whole, independent of its size: software, people.
    """

    gpu_s: Duration | None = Field(None, alias="gpu")
    host_s: Duration | None = Field(None, alias="host")
    nic_s: Duration | None = Field(None, alias="nic", description="network card")
    switch_s: Duration | None = Field(None, alias="switch")
    job_s: Duration | None = Field(None, alias="job", description="failures of the job as a whole: software, people")

    @model_validator(mode="after")
    def _something_fails(self) -> Self:
        if all(seconds is None for seconds in self.by_component().values()):
            raise ValueError(f"nothing fails; give at least one of {', '.join(COMPONENTS)}")
        return self

    def by_component(self) -> dict[str, float | None]:
        """Mean time between failures in seconds by component; None if it does not fail."""
        return {name: getattr(self, f"{name}_s") for name in COMPONENTS}


class NodesLost(Spec):
    """Nodes that one failure of each component takes out of service until they are repaired."""

    gpu: int = Field(1, ge=0, le=100_000)
    host: int = Field(1, ge=0, le=100_000)
    nic: int = Field(1, ge=0, le=100_000)
    switch: int = Field(0, ge=0, le=100_000, description="0: traffic takes another route, or a cable is replaced")
    job: int = Field(0, ge=0, le=100_000)


class Checkpoint(Spec):
    """Checkpoints of the training state.

    size: total over all nodes, of which each writes a part; parameters, master copies and optimizer states if absent.
    Synchronous: training stops until the checkpoint is written. Asynchronous: training stops until the nodes have copied their
    parts to host memory, and continues slower, by `slowdown`, while the checkpoint is written; only then is it usable.
    """

    interval_s: Interval = Field("optimum", alias="interval", description="training time between two checkpoints, or optimum")
    steps: Count | None = Field(None, description="steps between two checkpoints, instead of an interval")
    size_bytes: Bytes | None = Field(None, alias="size", gt=0)
    bandwidth_Bps: PositiveBytesPerSecond | None = Field(None, alias="bandwidth", description="total bandwidth of the storage")
    node_bandwidth_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="node_bandwidth", description="from each node to the storage"
    )
    load_bandwidth_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="load_bandwidth", description="total read bandwidth of the storage; the write bandwidth if absent"
    )
    asynchronous: bool = False
    copy_bandwidth_Bps: PositiveBytesPerSecond | None = Field(
        None, alias="copy_bandwidth", description="from a node's devices to host memory, for asynchronous checkpoints"
    )
    slowdown: float = Field(0.0, ge=0, lt=1, description="share of its speed that training loses during an asynchronous write")

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.steps is not None and self.interval_s != "optimum":
            raise ValueError("give interval or steps, not both")
        if self.bandwidth_Bps is None and self.node_bandwidth_Bps is None:
            raise ValueError("give bandwidth of the storage, or node_bandwidth from each node to it")
        if self.asynchronous and self.copy_bandwidth_Bps is None:
            raise ValueError("give copy_bandwidth, from a node's devices to host memory, for asynchronous checkpoints")
        if not self.asynchronous and (self.copy_bandwidth_Bps is not None or self.slowdown):
            raise ValueError("copy_bandwidth and slowdown need asynchronous checkpoints; set asynchronous, or leave them out")
        return self


class PlannedStops(Spec):
    """Planned stops, such as for firmware updates: a checkpoint is written first, so that no work is lost.

    They are independent with a constant rate while training runs, as failures are. takes: in addition to the restart time.
    """

    every_s: Duration = Field(alias="every", description="mean training time between two stops")
    takes_s: Seconds = Field(0.0, alias="takes")


class Reliability(Spec):
    """Failures and recovery: a failure is noticed after `detection`; lost nodes go to repair, and spare nodes replace them at
    once; processes start after `reschedule`, are set up after `initialise`, and load the last checkpoint.

    spares: nodes in addition to those that train; unlimited if absent. shortage: without a spare node, training waits for a
    repair, or continues with fewer workers, and grows again, with another restart, once nodes are repaired.
    """

    description: str = ""
    mtbf: TimesBetween | None = Field(None, description="mean time between failures of each component")
    events: tuple[AnyHostEvent, ...] = Field((), description="what happens to single hosts and when, instead of mtbf")
    checkpoint: Checkpoint
    detection_s: Seconds = Field(
        USUAL_DETECTION_S,
        alias="detection",
        description="until a failure is noticed; 10 min if absent, NCCL's time-out",
    )
    reschedule_s: Seconds = Field(
        USUAL_RESTART_S / 2, alias="reschedule", description="until processes start on their nodes; 5 min if absent"
    )
    initialise_s: Seconds = Field(
        USUAL_RESTART_S / 2, alias="initialise", description="until processes are set up; 5 min if absent"
    )
    nodes_lost: NodesLost = NodesLost()
    spares: int | None = Field(
        None, ge=0, le=1_000_000, description="nodes in addition to those that train; unlimited if absent"
    )
    repair_s: Duration | None = Field(None, alias="repair", description="of a node, from the detection of its failure")
    shortage: Literal["wait", "shrink"] = Field("wait", description="what training does while there are too few nodes")
    least_workers: Count = Field(1, description="if training shrinks: with fewer workers it waits; events may not leave fewer")
    most_workers: Count | None = Field(
        None, description="workers that events may lead to at most; the number they lead to if absent"
    )
    planned: PlannedStops | None = None

    @model_validator(mode="after")
    def _something_happens(self) -> Self:
        if (self.mtbf is None) == (not self.events):
            raise ValueError("give mtbf for random failures, or events" + ("" if self.mtbf is None else ", not both"))
        if self.events and (self.spares is not None or self.planned is not None):
            raise ValueError("spares and planned are for random failures; leave them out, or events")
        if not self.events and self.most_workers is not None:
            raise ValueError("most_workers is for events; leave it out")
        return self

    @model_validator(mode="after")
    def _nodes_come_back(self) -> Self:
        if self.spares is not None and self.repair_s is None:
            raise ValueError("spares run out; give repair, the time until a node is back")
        if self.spares is None and (self.repair_s is not None or self.shortage == "shrink"):
            raise ValueError("spare nodes are unlimited without spares; give spares (0 for none) with repair and shortage")
        return self

    @property
    def assumed_s(self) -> dict[str, float]:
        """Seconds of the times of detection and restart that are not given, by field."""
        fields = type(self).model_fields
        return {str(fields[name].alias): getattr(self, name) for name in _USUAL if name not in self.model_fields_set}

    def mtbf_s(self) -> dict[str, float | None]:
        """Mean time between failures in seconds by component; None if it does not fail."""
        return {} if self.mtbf is None else self.mtbf.by_component()
