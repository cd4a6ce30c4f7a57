"""Refusals: conditions under which a scenario is not measured, each with the field, the reason and what to do instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario

UNMEASURED: Final = "predicted but not measured"
# Whether it applies, the field with its value, the reason if the field does not say it, and what to do instead.
Refusal = tuple[object, str, str, str]


def refuse(scenario: Scenario, refusals: Iterable[Refusal]) -> None:
    """Raises InputError where a refusal applies; the first counts."""
    for applies, subject, reason, remedy in refusals:
        if applies:
            raise InputError(f"{scenario.name}: {subject}{': ' if reason else ''}{reason}; {remedy}")
