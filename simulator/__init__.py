"""Forecasts how fast distributed training runs: a Scenario in, a predicted Run out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.collective.time import collective_time

__all__ = ["collective_time"]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, so that `import simulator` stays light."""
    if name not in __all__:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    from scaleproof.simulator.analysis.collective.time import collective_time

    return collective_time
