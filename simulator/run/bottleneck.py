"""The bottleneck of a run, in a sentence: its share of the step, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.run.run import Run

# Exposed communication below this share of a step is no reason for a faster network.
_LITTLE: Final = 0.02
WAITING_FOR_INPUT: Final = "waiting_for_input"
INPUT_BOUND: Final = "Input-bound"
_UPDATES: Final = "updates"
# Causes other than compute, with what they are called, what they bind, and what helps.
_LIMITS: Final = {
    "exposed_communication": ("exposed communication", "Network-bound", "a faster network helps most"),
    "bubble": ("pipeline bubble", "Pipeline-bound", "more microbatches, or several chunks per stage, help"),
    "waiting_for_server": ("waiting for servers", "Server-bound", "more or faster servers help"),
    "waiting_for_ranks": ("waiting for other ranks", "Imbalanced", "equal work and equal speed of all ranks help"),
    WAITING_FOR_INPUT: ("waiting for input", INPUT_BOUND, "faster data loading helps most"),
    _UPDATES: ("updates on hosts", "Host-bound", "faster memory of hosts, training.delay_update or less offloading help"),
}
_COMPUTE: Final = "Compute-bound"
_HOST: Final = "Host-bound"
# What helps if the optimizer's step on hosts limits the step.
_UPDATE_HELPS: Final = "more samples per step, training.delay_update, or hosts with more memory bandwidth help"
# Shares of compute for which kernels wait for the host, from which on it is mentioned, and limits the step.
_NOTICEABLE: Final = 0.1
_HOST_LIMITS: Final = 0.5

# What helps a part of data loading, where it is not a faster one.
_FASTER: Final = {
    "decoding": "faster decoding, or more cores for it,", "parsing": "more cores for parsing",
    "augmentation": "faster augmentation, or more cores for it,", "reads in flight": "a larger number of reads in flight",
}  # fmt: skip


def limit(run: Run) -> Iterator[str]:
    """'12.6 % exposed communication. Compute-bound: faster GPUs help, a faster network saves at most that.'"""
    shares = _shares(run)
    if not shares:
        return
    updates = run.host_update_share or 0.0
    also = f" {format_percent(updates)} the optimizer's step on hosts: {_UPDATE_HELPS}." if updates >= _NOTICEABLE else ""
    if limiting := _limiting(shares):
        name, words, remedy = _LIMITS[limiting]
        mostly = ""
        if limiting == WAITING_FOR_INPUT and run.loading is not None:
            slowest = run.loading.parts[0].name
            remedy = f"{_FASTER.get(slowest, f'faster {slowest}')} helps most"
        if limiting == "exposed_communication" and run.communication:
            most = run.communication[0]
            mostly = f", {format_percent(most.exposed_s / run.step_time_s)} {most.label}"
        yield f"{format_percent(shares[limiting])} {name}{mostly}. {words}: {remedy}.{also}"
        return
    exposed, host_share = shares["exposed_communication"], run.host_share or 0.0
    if updates >= _HOST_LIMITS:
        yield f"{format_percent(updates)} the optimizer's step on hosts. {_HOST}: {_UPDATE_HELPS}."
        return
    network = "a faster network does not" if exposed < _LITTLE else "a faster network saves at most that"
    helps = "larger microbatches, or fewer and larger kernels, help, faster GPUs do not"
    words = f"{_HOST}: {helps}." if bound(run) == _HOST else f"{_COMPUTE}: faster GPUs help, {network}."
    host = f" GPUs wait for the host to launch kernels in {format_percent(host_share)} of compute."
    text = f"{format_percent(exposed)} exposed communication. {words}{host if host_share >= _NOTICEABLE else ''}{also}"
    # the largest other cause, if it is noticeable
    cause = max(shares, key=shares.__getitem__)
    if cause != "exposed_communication" and shares[cause] >= _LITTLE:
        name, _, remedy = _LIMITS[cause]
        text += f" {format_percent(shares[cause])} {name}: {remedy}."
    yield text


def bound(run: Run) -> str:
    """What binds a run: 'Input-bound', 'Compute-bound'; "" where it is not known."""
    shares = _shares(run)
    if limiting := _limiting(shares) if shares else "":
        return _LIMITS[limiting][1]
    computes = _HOST if max(run.host_share or 0.0, run.host_update_share or 0.0) >= _HOST_LIMITS else _COMPUTE
    return computes if shares else ""


def _shares(run: Run) -> dict[str, float]:
    """Share of the step of each cause other than compute; empty where they are not known."""
    if run.step_time_s <= 0 or "compute" not in run.breakdown_s:
        return {}
    is_on_host = any(part.dimension == Dimension.TO_HOST.label for part in run.communication)
    updates_s = run.phase_s.get(Phase.OPTIMIZER.label, 0.0) if is_on_host else 0.0
    return {cause: run.breakdown_s.get(cause, 0.0) / run.step_time_s for cause in _LIMITS} | {
        _UPDATES: updates_s / run.step_time_s
    }


def _limiting(shares: dict[str, float]) -> str:
    """The cause that limits a step; "" if compute does."""
    # samples that are loaded ahead arrive late only if loading takes longer than all the rest
    if shares[WAITING_FOR_INPUT] >= _LITTLE:
        return WAITING_FOR_INPUT
    cause = max(shares, key=shares.__getitem__)
    return cause if shares[cause] > 1 - sum(shares.values()) else ""
