"""Room: how many ranks a machine can hold, told before any is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.activations import READ
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.steps import total_steps

# Every rank talks to every other, and shares the machine's cores with all of them: more measure its scheduler.
MOST_RANKS: Final = 128
# Of a rank beside what it trains, not shared with others: 35 to 40 MB for gloo's threads and buffers and Python's objects, with
# four ranks and a GPT of 3.3 M parameters.
_PROCESS_BYTES: Final = 40e6
# What ranks hold whether layers compute or are paced, and what beside it where they compute.
_HELD: Final = ("parameters", "gradients", "optimizer_states", "communication")
_COMPUTED: Final = ("activations", "logits", "recomputed", "working")
# What one paced layer hands to the next is as large as in the scenario: one that comes and one that goes.
_PACED_OUTPUTS: Final = 2
# A server builds the whole model, and a vector of it, before it takes its part.
_COPIES_TO_BEGIN: Final = 2
_MEMORY: Final = Path("/proc/meminfo")
_EVENTS: Final = Path("/proc/vmstat")


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
    """What all ranks hold at once, roughly: some of the shipped scenarios took 0.85 to 1.25 times as much."""
    strategy, told, paced = scenario.strategy, memory(scenario), scenario.compute == "paced"
    each = sum(_held_bytes(kind.holders_bytes, paced) for kind in told.ranks) / len(told.ranks)
    beside = _paced_bytes(scenario) if paced else _batches_bytes(scenario)
    servers = 0.0 if told.servers is None else max(told.servers.total_bytes, _COPIES_TO_BEGIN * _model_bytes(scenario))
    return strategy.ranks * _PROCESS_BYTES + strategy.training_ranks * (each + beside) + strategy.servers * servers


def _held_bytes(holders_bytes: Mapping[str, float], paced: bool) -> float:
    """Of a training rank. Without activations the end of a step is the fullest moment, when all gradients are there."""
    held = sum(holders_bytes.get(name, 0.0) for name in _HELD)
    if paced:
        return held + max(0.0, holders_bytes["parameters"] - holders_bytes["gradients"])
    return held + sum(holders_bytes.get(name, 0.0) for name in _COMPUTED)


def _paced_bytes(scenario: Scenario) -> float:
    """What paced layers hand on: of the largest."""
    plan = scenario.strategy.plan
    samples = scenario.samples_per_worker / plan.microbatches
    largest = max(layer.output_elements for layer in scenario.model.build_layers(plan.shard))
    return _PACED_OUTPUTS * samples * largest * _element_bytes(scenario)


def _batches_bytes(scenario: Scenario) -> float:
    """A worker's samples of all steps, which it has before time is taken."""
    read = sum(one.elements for one in scenario.model.build_layers()[0].kept if one.group == "input" or one.name == READ)
    return total_steps(scenario) * scenario.samples_per_worker * read * _element_bytes(scenario)


def _model_bytes(scenario: Scenario) -> float:
    return sum(layer.parameters for layer in scenario.model.build_layers()) * _element_bytes(scenario)


def _element_bytes(scenario: Scenario) -> int:
    return ELEMENT_BYTES[scenario.training.precision]


def ended_for_memory() -> int:
    """How many processes this machine's kernel has killed until now because there was no memory left, as far as it says."""
    lines = _EVENTS.read_text().splitlines() if _EVENTS.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _available_bytes() -> float | None:
    """What the kernel could give without swapping; None where it does not say."""
    if not _MEMORY.exists():
        return None
    for line in _MEMORY.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return None
