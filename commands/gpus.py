"""The option --gpus: scenarios on another number of GPUs, and what that changes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scaleproof.commands.arguments import Command, listed, positive

if TYPE_CHECKING:
    from scaleproof.simulator.cluster import Cluster
    from scaleproof.simulator.scenario.schema import Scenario


def add_gpus(command: Command, words: str = "train on N GPUs: keeps batch and degrees, changes the workers") -> None:
    """Adds `--gpus N` to a command. words: what it does, for the help text."""
    command.add("--gpus N", words, type=positive)


def add_gpu_counts(command: Command, words: str) -> None:
    """Adds `--gpus N,...` to a command. words: what it does, for the help text."""
    command.add("--gpus N,...", words, type=_counts, default=())


def _counts(text: str) -> tuple[int, ...]:
    """Parses whole numbers separated by commas. Raises ArgumentTypeError."""
    counts = tuple(positive(word) for word in listed(text))
    if not counts:
        raise argparse.ArgumentTypeError(f"expected numbers of GPUs such as 64,128,256, got {text!r}")
    return counts


def loaded(
    reference: str, overrides: Sequence[str], gpus: int | None, label: str = "", with_it: Sequence[str] = ()
) -> Scenario:
    """Loads a scenario, on `gpus` GPUs if that is not None, and says on stderr what that changes, after the label.

    with_it: further overrides that come with the number of GPUs. Raises InputError.
    """
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.scenario.gpus import gpus_note
    from scaleproof.simulator.scenario.load import load

    if gpus is None:
        return load(reference, overrides)
    if other := [one for one in overrides if one.startswith("gpus=") and one != f"gpus={gpus}"]:
        raise InputError(f"{label}--gpus {gpus} and --set {other[-1]} contradict each other; leave out one of both")
    try:
        scenario = load(reference, [*overrides, *with_it, f"gpus={gpus}"])
    except InputError as error:
        raise InputError(f"{label}{error}") from None
    try:
        before = load(reference, overrides)
    except InputError:
        # valid only on these GPUs
        before = None
    say(label + note if (note := gpus_note(before, scenario)) else "")
    return scenario


def say_added(cluster: Cluster, counts: Sequence[int]) -> None:
    """Says on stderr for which numbers of GPUs nodes are added to a cluster."""
    larger = [f"{count:,}" for count in counts if count > cluster.devices]
    name = cluster.name or "the cluster"
    say(f"{name} has {cluster.devices:,} GPUs; nodes are added for {' and '.join(larger)} GPUs" if larger else "")


def say_precision(scenario: Scenario) -> None:
    """Says on stderr that a scenario is trained in fp32 because it names no precision, where the GPU has bf16."""
    if "precision" not in scenario.training.model_fields_set and "bf16" in scenario.cluster.device.peak_flops:
        say("the scenario names no precision: fp32; for mixed precision, add --set precision=bf16")


def say(note: str) -> None:
    """Prints a note on stderr, unless it is empty."""
    if note:
        print(f"note: {note}", file=sys.stderr)
