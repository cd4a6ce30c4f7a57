"""Predictions in words for newcomers."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from scaleproof.reports.explorer.families import FAMILIES
from scaleproof.simulator.common.units import (
    format_bytes,
    format_count,
    format_energy_J,
    format_number,
    format_time_s,
    format_USD,
)
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

# from this share of a step on computing is what holds it up
_MOSTLY: Final = 0.85
# minimum share from which a part is shown
_MIN_SHARE: Final = 0.002
# and what holds memory, from this share of it on
_MIN_MEMORY_SHARE: Final = 0.02
# what each part of a step is called, and what it means
CAUSES: Final = {
    "compute": ("computing", "devices do the arithmetic of training"),
    "slowest_rank": ("waiting for the slowest device", "equal devices differ a little in speed, and all wait for the slowest"),
    "exposed_communication": ("exposed communication", "bytes move, and the device has nothing to do until they have come"),
    "bubble": ("bubble", "a stage of the pipeline waits for the one before it or after it"),
    "waiting_for_server": ("waiting for servers", "gradients are pushed, and new weights have not come yet"),
    "waiting_for_ranks": ("waiting for slower ranks", "others have not come as far"),
    "waiting_for_input": ("waiting for input", "samples are not read and decoded yet"),
    "other": ("other", "time between phases"),
}


HOLDERS: Final = {
    "parameters": "the weights themselves",
    "gradients": "how each weight should change",
    "master_parameters": "weights in 32 bits, which the optimizer works on",
    "optimizer_states": "what the optimizer remembers of each weight",
    "activations": "what the forward pass keeps for the backward pass",
    "recomputed": "activations that are being made again",
    "logits": "the last layer's outputs",
    "working": "what a layer needs while it computes",
    "communication": "buffers of what is sent and received",
    "workspace": "libraries' room to compute in",
    "library": "libraries' own",
    "context": "the device's driver and program",
    "fragmentation": "gaps between allocations",
    "rest": "all that is smaller",
}
# what a part of a step is lost to, and what would help
_LOSSES: Final = {
    "slowest_rank": (
        "waiting for the slowest of many equal devices",
        "devices that differ less in speed, or fewer that wait for each other",
    ),
    "exposed_communication": (
        "waiting for bytes to move",
        "more bandwidth, more samples a worker, or communication that overlaps",
    ),
    "bubble": ("stages that wait for one another (the bubble)", "more microbatches, or another schedule"),
    "waiting_for_server": ("waiting for servers", "more servers, or faster ones"),
    "waiting_for_ranks": ("waiting for the slowest", "equal devices, or an asynchronous strategy"),
    "waiting_for_input": ("waiting for samples to be read", "faster storage, or more processes that decode"),
    "other": ("what is none of these", "to look at the timeline"),
}


def headline(run: Run, scenario: Scenario) -> str:
    """'resnet50 on 32 × P100 by data parallelism: 6,537 samples a second'"""
    family = FAMILIES[run.strategy].label if run.strategy in FAMILIES else run.strategy.replace("_", " ")
    model = scenario.model.name or f"a {scenario.model.kind}"
    devices = f"{run.compute_ranks:,} × {scenario.cluster.device.name}"
    fits = ", if only its memory sufficed" if run.fits is False else ""
    return f"{model} on {devices} by {family}: {format_number(run.samples_per_s)} samples a second{fits}"


def bottleneck(run: Run) -> str:
    """The bottleneck of training, and a remedy."""
    if run.step_time_s <= 0:
        return "Nothing in this scenario takes any time."
    shares = {name: seconds / run.step_time_s for name, seconds in run.breakdown_s.items()}
    computing = shares.pop("compute", 0.0)
    name = max(shares, key=lambda one: shares[one])
    loss, remedy = _LOSSES[name]
    part = run.servers.bottleneck.replace("NIC", "network card") if run.servers else "compute"
    busiest = f" The busiest part is the {part}." if part != "compute" else ""
    if computing >= _MOSTLY:
        rest = f", {shares[name]:.1%} goes to {loss}" if shares[name] >= _MIN_SHARE else ""
        return f"Devices compute {computing:.0%} of the time{rest}. Faster devices help, a faster network hardly.{busiest}"
    if computing >= shares[name]:
        found = f"Devices compute {computing:.0%} of the time; {shares[name]:.0%} goes to {loss}."
    else:
        found = f"The bottleneck is {loss}: {shares[name]:.0%} of the time."
    return f"{found} What would help: {remedy}.{busiest}"


def numbers(run: Run) -> list[dict[str, Any]]:
    """The figures of a prediction: `label`, `value`, `unit`, `help`, and `detail`; None if only a full result has it."""
    low_s, high_s = run.prediction_interval_s or (0.0, 0.0)
    has_interval = run.prediction_interval_s is not None and low_s > 0
    rates = f"90 %: {format_number(run.samples / high_s)} to {format_number(run.samples / low_s)}" if has_interval else None
    times = f"90 %: {format_time_s(low_s)} to {format_time_s(high_s)}" if has_interval else None
    tokens = f"{format_number(run.tokens_per_s)} tokens/s, all devices together" if run.tokens_per_s else "all devices together"
    step, unit = format_time_s(run.step_time_s).split(" ")
    mfu = ("–", "") if run.mfu is None else (f"{100 * run.mfu:.1f}", "%")
    return [
        _number("throughput", "Throughput", (format_number(run.samples_per_s), "samples/s"), rates, tokens),
        _number("step", "Step time", (step, unit), times, f"one round of learning from {run.samples:,} samples"),
        _number("mfu", "Utilisation (MFU)", mfu, f"of {format_count(run.peak_flops or 0.0)}FLOP/s a device",
                "useful arithmetic, of what devices can do"),
        _efficiency(run),
        *_bill(run),
    ]  # fmt: skip


def _number(key: str, label: str, value: tuple[str | None, str], detail: str | None, words: str) -> dict[str, Any]:
    return {"key": key, "label": label, "value": value[0], "unit": value[1], "detail": detail, "help": words}


def _efficiency(run: Run) -> dict[str, Any]:
    words = "a device's throughput, of what it is in the smallest set-up"
    if not run.efficiency or not run.baseline:
        return _number("efficiency", "Scaling efficiency", (None, "%"), None, words)
    # '1 worker of 5 stages × 8 tensor-parallel ranks, the fewest that hold the model, …'
    devices = math.prod(map(int, re.findall(r"\d+", run.baseline["weak"].partition(",")[0])))
    against = f"against {devices} device{'s' if devices > 1 else ''}"
    return _number("efficiency", "Scaling efficiency", (f"{100 * run.efficiency['weak']:.1f}", "%"), against, words)


def _bill(run: Run) -> list[dict[str, Any]]:
    found = []
    for bill, text, label in ((run.energy_J, format_energy_J, "Energy"), (run.cost_USD, format_USD, "Cost")):
        if bill:
            unit = "per_million_tokens" if "per_million_tokens" in bill else "per_million_samples"
            number, symbol = text(bill[unit]).split(" ")
            detail = f"{text(bill['per_step'])} a step"
            found.append(_number(label.lower(), label, (number, symbol), detail, f"{unit.replace('_', ' ')}, all nodes in use"))
    return found


def breakdown(run: Run) -> list[dict[str, Any]]:
    """The parts of a step by cause: `name`, `label`, `help`, `share`, `text`."""
    found = []
    for name, seconds in run.breakdown_s.items():
        share = seconds / run.step_time_s if run.step_time_s > 0 else 0.0
        if share >= _MIN_SHARE:
            label, words = CAUSES[name]
            text = f"{format_time_s(seconds)}, {share:.1%}"
            found.append({"name": name, "label": label, "help": words, "share": share, "text": text})
    return found


def memory_parts(run: Run) -> dict[str, Any] | None:
    """The memory of the fullest rank by holder, the largest first, and its capacity."""
    if run.memory_bytes is None or run.memory_bytes_per_rank is None:
        return None
    total, has = run.memory_bytes_per_rank, run.capacity_bytes
    large = sorted(
        ((name, size) for name, size in run.memory_bytes.items() if size >= _MIN_MEMORY_SHARE * total), key=lambda one: -one[1]
    )
    rest = total - sum(size for _, size in large)
    holders = [*large, ("rest", rest)] if rest > 0 else large
    of = f" of {format_bytes(has)}" if has else ""
    return {
        "text": f"{format_bytes(total)}{of}",
        "fits": run.fits,
        "total_bytes": total,
        "capacity_bytes": has,
        "fit_by": run.fit_by.split(),
        "holders": [
            {"name": name, "label": name.replace("_", " "), "help": HOLDERS.get(name, ""), "bytes": size,
             "text": format_bytes(size)}
            for name, size in holders
        ],
    }  # fmt: skip
