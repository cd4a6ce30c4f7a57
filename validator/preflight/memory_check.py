"""Checks that a machine has memory for the ranks before any is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model import Traced
from scaleproof.simulator.model.recompute import READ
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.uncertainty.error_model import FITS, memory_error
from scaleproof.validator.launch.refusal import Refusal, refuse
from scaleproof.validator.record.steps import total_steps

# All ranks communicate and share the machine's cores: with more of them the scheduler would dominate the measurement.
MOST_RANKS: Final = 128
# Unshared memory of a rank without its training: 35 to 40 MB for gloo's threads and buffers and Python's objects, with four
# ranks and a GPT of 3.3 M parameters.
_PROCESS_BYTES: Final = 40e6
# Memory holders with real and emulated compute, and those with real compute only.
_ALWAYS_ALLOCATED: Final = ("parameters", "gradients", "optimizer_states", "communication")
_COMPUTED: Final = ("activations", "logits", "recomputed", "working")
# Boundary activations of emulated layers have the scenario's size: one input and one output.
_EMULATED_OUTPUTS: Final = 2
_MEMORY: Final = Path("/proc/meminfo")


def check_room(scenario: Scenario, gpus_bytes: Sequence[float] = (), started: int | None = None) -> None:
    """Raises InputError where this machine cannot run its ranks of the scenario.

    gpus_bytes: memory of each GPU on which ranks train; none if they train on CPU cores. started: number of ranks that a
    launcher has started here; None if all run here.
    """
    ranks = scenario.strategy.ranks if started is None else started
    elsewhere = "start them on several machines (--on cluster)" if started is None else "start fewer of them on a machine"
    refuse(scenario, _on_this_machine(scenario, gpus_bytes, ranks, elsewhere))


def _on_this_machine(scenario: Scenario, gpus_bytes: Sequence[float], ranks: int, elsewhere: str) -> Iterator[Refusal]:
    """Ranks that this machine cannot run. elsewhere: what to do instead."""
    yield ranks > MOST_RANKS, f"{ranks} ranks", "", f"one machine runs at most {MOST_RANKS}, {elsewhere}"
    yield from gpu_memory(scenario, gpus_bytes, ranks)
    needed = (_host_bytes(scenario) if gpus_bytes else _needed_bytes(scenario)) * ranks / scenario.strategy.ranks
    available = _available_bytes()
    if available is not None:
        sizes = f"{ranks} ranks need about {format_bytes(needed)}, and {format_bytes(available)} of memory are free here"
        yield needed > available, sizes, "", f"give a smaller model or fewer ranks, or {elsewhere}"


def gpu_memory(scenario: Scenario, gpus_bytes: Sequence[float], ranks: int) -> Iterator[Refusal]:
    """Ranks that would very probably exceed the memory of their GPU, in a step or while they build their layers.

    gpus_bytes: memory of each GPU of this machine. ranks: number of ranks on them, which share GPUs if there are fewer. The
    margin is the error of predicted memory in published runs: only what would not fit even at the lower end of its interval is
    refused, which one in ten runs is below.
    """
    if not gpus_bytes:
        return
    sharing = -(-ranks // len(gpus_bytes))
    error = memory_error(scenario)
    margin = 1.0 if error is None else min(1.0, error.factor_below(1 - FITS))
    name, needed = max(_gpu_ranks_bytes(scenario).items(), key=lambda one: one[1])
    smallest = min(gpus_bytes)
    own = f" that {sharing} ranks share" if sharing > 1 else ""
    sizes = f"{name} needs about {format_bytes(needed)}, and a GPU here{own} has {format_bytes(smallest)}"
    remedy = "give a smaller model or batch, more stages or tensor-parallel ranks, or training.zero=3"
    yield sharing * needed * margin > smallest, sizes, "", remedy


def _gpu_ranks_bytes(scenario: Scenario) -> dict[str, float]:
    """Peak memory in bytes on a GPU of each kind of rank."""
    training = scenario.training
    if training.precision == "bf16":
        # ranks train in 16 bits throughout
        scenario = scenario.model_copy(update={"training": training.model_copy(update={"master": False})})
    predicted = memory(scenario)
    whole, size = scenario.model.build_layers(), _element_bytes(scenario)
    layer = size * max(layer.parameters for layer in whole)
    # workers of servers have no whole tables on their GPUs
    own = size * max(layer.parameters for layer in scenario.strategy.worker_layers(whole, scenario.samples_per_worker))
    data = _batches_bytes(scenario)
    outside = max(kind.total_bytes - kind.reserved_bytes for kind in predicted.ranks)
    needed = {
        kind.name: max(kind.total_bytes, outside + kind.holders_bytes.get("parameters", 0.0) + own) + data
        for kind in predicted.ranks
    }
    if predicted.servers is not None:
        needed["server"] = outside + max(predicted.servers.total_bytes, predicted.servers.holders_bytes["parameters"] + layer)
    return needed


def _host_bytes(scenario: Scenario) -> float:
    """Rough peak memory in bytes of the host for all ranks together, which train on GPUs."""
    offloaded = max(kind.host_bytes for kind in memory(scenario).ranks)
    return scenario.strategy.ranks * (_PROCESS_BYTES + _building_bytes(scenario)) + scenario.strategy.training_ranks * offloaded


def _building_bytes(scenario: Scenario) -> float:
    """Bytes of the host of a rank that builds its layers: one at a time and that of which it has weights, a user's module as a
    whole."""
    parameters = sorted(layer.parameters for layer in scenario.model.build_layers())
    return ELEMENT_BYTES["fp32"] * float(sum(parameters if isinstance(scenario.model, Traced) else parameters[-2:]))


def _needed_bytes(scenario: Scenario) -> float:
    """Rough peak memory in bytes of all ranks together: shipped scenarios used 0.85 to 1.25 times as much. Ranks on processors
    keep offloaded activations in the same memory."""
    training = scenario.training
    kept = tuple(one for one in training.offload if one != "activations")
    scenario = scenario.model_copy(update={"training": training.model_copy(update={"offload": kept})})
    strategy, predicted, paced = scenario.strategy, memory(scenario), scenario.compute == "paced"
    copies, building = scenario.training.precision == "fp16", _building_bytes(scenario)
    data = _emulated_outputs_bytes(scenario) if paced else _batches_bytes(scenario)
    rank = sum(
        max(
            _rank_bytes(kind.holders_bytes, paced) + copies * kind.holders_bytes.get("master_parameters", 0.0) + data,
            kind.holders_bytes["parameters"] + building,
        )
        + kind.host_bytes
        for kind in predicted.ranks
    ) / len(predicted.ranks)
    server = 0.0
    if predicted.servers is not None:
        server = max(predicted.servers.total_bytes, predicted.servers.holders_bytes["parameters"] + building)
    return strategy.ranks * _PROCESS_BYTES + strategy.training_ranks * rank + strategy.servers * server


def _rank_bytes(holders_bytes: Mapping[str, float], paced: bool) -> float:
    """Peak memory in bytes of a training rank. Without activations the peak is the end of a step, with all gradients."""
    always = sum(holders_bytes.get(name, 0.0) for name in _ALWAYS_ALLOCATED)
    if paced:
        return always + max(0.0, holders_bytes["parameters"] - holders_bytes["gradients"])
    return always + sum(holders_bytes.get(name, 0.0) for name in _COMPUTED)


def _emulated_outputs_bytes(scenario: Scenario) -> float:
    """Bytes of the largest boundary activations of emulated layers."""
    plan = scenario.strategy.plan
    samples = scenario.samples_per_worker / plan.microbatches
    largest = max(layer.output_elements for layer in scenario.model.build_layers(plan.shard))
    return _EMULATED_OUTPUTS * samples * largest * _element_bytes(scenario)


def _batches_bytes(scenario: Scenario) -> float:
    """Bytes of a worker's samples of all steps, which it generates before the measurement."""
    kept = scenario.model.build_layers()[0].kept
    read = sum(tensor.elements for tensor in kept if tensor.group == "input" or tensor.name == READ)
    return total_steps(scenario) * scenario.samples_per_worker * read * _element_bytes(scenario)


def _element_bytes(scenario: Scenario) -> int:
    return ELEMENT_BYTES[scenario.training.precision]


def _available_bytes() -> float | None:
    """Bytes of memory available without swapping; None if the kernel does not report it."""
    if not _MEMORY.exists():
        return None
    for line in _MEMORY.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return None
