"""Events of single hosts at known times: failures, spot interruptions with notice, and hosts that join.

`scaleproof goodput` predicts training along them, and `scaleproof faults` makes them happen.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import Seconds, format_time_s


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


AnyHostEvent = Annotated[HostFailure | SpotInterruption | HostJoin, Field(discriminator="kind")]
