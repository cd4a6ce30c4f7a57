"""The machine that is checked, as a rank on its first GPU describes it. Imports torch, which only ranks should do."""

from __future__ import annotations

from typing import TypedDict

from scaleproof.validator.launch.rank import here
from scaleproof.validator.probe import gpu
from scaleproof.validator.probe.gpu import DeviceFacts
from scaleproof.validator.record import provenance


class Machine(TypedDict):
    """device: what its GPUs report. provenance: hardware, software and settings, as those of a measured run."""

    device: DeviceFacts
    provenance: dict[str, str]


def described() -> Machine:
    """The machine of this rank."""
    return {"device": gpu.facts(), "provenance": provenance.of_rank(here().device)}
