"""Room: how many ranks a machine can hold, told before any is started."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.errors import InputError
from simulator.memory import memory
from simulator.scenario import Scenario
from simulator.units import format_bytes

# Every rank talks to every other, and shares the machine's cores with all of them: more measure its scheduler.
MOST_RANKS: Final = 128
# Of a rank beside what it trains, not shared with others: 35 to 40 MB for gloo's threads and buffers and Python's objects, with
# four ranks and a GPT of 3.3 M parameters.
_PROCESS_BYTES: Final = 40e6
# What ranks hold whether layers compute or are paced.
_STATES: Final = ("parameters", "gradients", "optimizer_states")
_MEMORY: Final = Path("/proc/meminfo")


def check_room(scenario: Scenario) -> None:
    """Raises InputError where this machine alone cannot hold the scenario's ranks."""
    ranks = scenario.strategy.ranks
    elsewhere = "start them on several machines (--on cluster)"
    if ranks > MOST_RANKS:
        raise InputError(f"{scenario.name}: {ranks} ranks; one machine is given at most {MOST_RANKS}, {elsewhere}")
    needed, available = _needed_bytes(scenario), _available_bytes()
    if available is not None and needed > available:
        sizes = f"{ranks} ranks need about {format_bytes(needed)}, and {format_bytes(available)} of memory are free here"
        raise InputError(f"{scenario.name}: {sizes}; give a smaller model or fewer ranks, or {elsewhere}")


def _needed_bytes(scenario: Scenario) -> float:
    """What the ranks take for certain: more is held within a step."""
    kinds = memory(scenario).ranks
    states = sum(kind.holders_bytes.get(name, 0.0) for kind in kinds for name in _STATES) / len(kinds)
    return scenario.strategy.ranks * _PROCESS_BYTES + scenario.strategy.training_ranks * states


def _available_bytes() -> float | None:
    """What the kernel could give without swapping; None where it does not say."""
    if not _MEMORY.exists():
        return None
    for line in _MEMORY.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return None
