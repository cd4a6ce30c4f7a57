"""Predictions in the words of the field."""

from __future__ import annotations

from typing import Any, Final

from scaleproof.reports.charts import style
from scaleproof.simulator.analysis.planner import words as plan_words
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_count,
    format_energy_J,
    format_number,
    format_percent,
    format_range,
    format_time_s,
    format_USD,
)
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.run.bottleneck import limit
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario

# minimum share from which a part is shown
_MIN_SHARE: Final = 0.002
# and a holder of memory
_MIN_MEMORY_SHARE: Final = 0.02
# schedules that follow from the number of virtual stages
_USUAL: Final = ("1f1b", "interleaved_1f1b")
# steps from this duration on are in whole seconds
_LONG_S: Final = 60.0
# what each part of a step is called, and what it means
CAUSES: Final = {
    "compute": ("Compute", "Kernels of forward pass, backward pass and optimizer."),
    "slowest_rank": ("Slowest GPU", "Equal GPUs differ a little in speed, and all wait for the slowest."),
    "exposed_communication": ("Exposed communication", "Transfers that do not overlap with compute."),
    "bubble": ("Pipeline bubble", "A stage waits for the stage before or after it."),
    "waiting_for_server": ("Waiting for servers", "Gradients are pushed, and new parameters have not arrived."),
    "waiting_for_ranks": ("Waiting for ranks", "Other ranks have not reached the same point yet."),
    "waiting_for_input": ("Waiting for input", "Samples are not read and decoded yet."),
    "other": ("Other", "Time between phases."),
}
HOLDERS: Final = {
    "parameters": "Parameters in the training precision.",
    "gradients": "Gradients, and the buffer in which microbatches accumulate.",
    "master_parameters": "32-bit copy of the parameters that the optimizer updates.",
    "optimizer_states": "States of the optimizer, such as Adam's two moments.",
    "activations": "Outputs of the forward pass that the backward pass needs.",
    "recomputed": "Activations that are computed again in the backward pass.",
    "logits": "Outputs of the last layer and their gradient.",
    "working": "Temporary tensors of the layer that runs.",
    "communication": "Buffers of messages and collectives.",
    "workspace": "Workspace of cuBLAS and cuDNN.",
    "library": "Buffers of NCCL and other libraries.",
    "context": "CUDA context and kernels.",
    "fragmentation": "Gaps between allocations.",
    "rest": "Everything smaller.",
}


def throughput_unit(scenario: Scenario) -> str:
    """Tokens per second for language models, else samples per second."""
    return "samples/s" if scenario.tokens_per_sample is None else "tokens/s"


def rate(run: Run) -> tuple[float, str]:
    """Throughput and its unit: tokens per second where the model reads tokens."""
    return (run.samples_per_s, "samples/s") if run.tokens_per_s is None else (run.tokens_per_s, "tokens/s")


def layout(scenario: Scenario) -> str:
    """'DP8 TP8 PP8 VPP3, MBS 1, GA 32, recompute selective'."""
    strategy, training, plan = scenario.strategy, scenario.training, scenario.strategy.plan
    if not isinstance(strategy, ReplicaStrategy | ParameterServer):
        return f"{strategy.kind.replace('_', ' ')} on {counted(strategy.training_ranks, 'GPU')}"
    degrees = {name: getattr(plan, name) for name in ("workers", "tensor", "stages", "chunks", "context", "expert")}
    samples = {"samples": scenario.samples_per_worker // plan.microbatches, "microbatches": plan.microbatches}
    memory = {"zero": training.zero, "recompute": str(training.recompute)}
    servers = {"servers": strategy.servers, "placement": strategy.placement} if isinstance(strategy, ParameterServer) else {}
    is_unusual = plan.stages > 1 and plan.schedule not in _USUAL
    schedule = f", {plan.schedule}" if is_unusual else ""
    return plan_words.layout({**degrees, **samples, **memory, **servers}) + schedule


def headline(run: Run, scenario: Scenario) -> str:
    """'llama-2-7b on 64 × A100: 190,400 tokens/s'; where memory does not suffice, that alone."""
    if run.host_problem:
        return f"Out of host memory: {run.host_problem}"
    if run.fits is False and run.memory_bytes_per_rank and run.capacity_bytes:
        need, has = format_bytes(run.memory_bytes_per_rank), format_bytes(run.capacity_bytes)
        return f"Out of memory: {need} needed of {has} per GPU"
    throughput, unit = rate(run)
    return f"{_subject(run, scenario)}: {format_number(throughput)} {unit}"


def details(run: Run, scenario: Scenario) -> str:
    """'DP8 TP8 PP8, MBS 1, GA 32; megatron-core-0.12'; what is trained where the headline does not say it."""
    trained = f"{_subject(run, scenario)}, " if run.fits is False else ""
    return f"{trained}{layout(scenario)}; {run.framework}"


def _subject(run: Run, scenario: Scenario) -> str:
    """'llama-2-7b on 64 × A100'."""
    return f"{scenario.model.name or scenario.model.kind} on {run.compute_ranks:,} × {scenario.cluster.device.name}"


def bottleneck(run: Run) -> str:
    """What limits training, as `predict` prints it, and the busiest part where there are parameter servers."""
    if run.step_time_s <= 0:
        return "Nothing in this scenario takes any time."
    part = run.servers.bottleneck if run.servers else "compute"
    busiest = [f"The busiest part is the {part}."] if part != "compute" else []
    return " ".join([*limit(run), *busiest])


def numbers(run: Run, scenario: Scenario) -> list[dict[str, Any]]:
    """The figures of a prediction: `label`, `value`, `unit`, `detail` and `help`; None if only a full result has it."""
    low_s, high_s = run.prediction_interval_s or (0.0, 0.0)
    throughput, unit = rate(run)
    has_interval = run.prediction_interval_s is not None and low_s > 0
    ends = [throughput * run.step_time_s / end_s for end_s in (high_s, low_s)] if has_interval else []
    rates = f"90 %: {' to '.join(map(format_number, ends))}" if ends else None
    times = f"90 %: {format_range(step_time(low_s), step_time(high_s))}" if has_interval else None
    each = format_number(throughput / run.compute_ranks)
    others = f"{format_number(run.samples_per_s)} samples/s" if unit == "tokens/s" else "all GPUs together"
    step, step_unit = step_time(run.step_time_s).split(" ")
    mfu, mfu_unit = ("–", "") if run.mfu is None else format_percent(run.mfu).split(" ")
    label = "If memory sufficed" if run.fits is False else "Throughput"
    return [
        _number("throughput", label, (format_number(throughput), unit), rates, others),
        _number("step", "Step time", (step, step_unit), times, f"one optimizer step, global batch {run.samples:,}"),
        _number("gpu", "Per GPU", (each, unit), _flops(run), "model FLOPs"),
        _number("mfu", "MFU", (mfu, mfu_unit), f"of {format_count(run.peak_flops or 0.0)}FLOP/s", "model FLOPs utilisation"),
        _cost(run, scenario),
        *_energy(run),
    ]


def step_time(seconds: float) -> str:
    """A step time, in seconds where it is longer than a minute: '12.3 ms', '154 s'."""
    return f"{format_number(float(f'{seconds:.3g}'))} s" if seconds >= _LONG_S else format_time_s(seconds)


def _number(key: str, label: str, value: tuple[str | None, str], detail: str | None, words: str) -> dict[str, Any]:
    return {"key": key, "label": label, "value": value[0], "unit": value[1], "detail": detail, "help": words}


def _flops(run: Run) -> str:
    """'150 TFLOP/s'."""
    if run.model_flops is None or run.step_time_s <= 0:
        return ""
    return f"{format_count(run.model_flops / run.step_time_s / run.compute_ranks)}FLOP/s"


def _cost(run: Run, scenario: Scenario) -> dict[str, Any]:
    if not run.cost_USD:
        return _number("cost", "Cost", ("–", ""), "no price", "set a price per GPU-hour")
    number, symbol = format_USD(run.cost_USD[_unit(run.cost_USD)]).split(" ")
    node = scenario.cluster.node
    hourly = (node.price_USD_per_s or 0.0) * 3600 * scenario.strategy.nodes_needed(scenario.cluster)
    return _number("cost", "Cost", (number, symbol), f"{format_USD(hourly)} per hour", _per(run.cost_USD))


def _energy(run: Run) -> list[dict[str, Any]]:
    if not run.energy_J:
        return []
    number, symbol = format_energy_J(run.energy_J[_unit(run.energy_J)]).split(" ")
    detail = f"{format_energy_J(run.energy_J['per_step'])} per step"
    return [_number("energy", "Energy", (number, symbol), detail, _per(run.energy_J))]


def _unit(bill: Any) -> str:
    return "per_million_tokens" if "per_million_tokens" in bill else "per_million_samples"


def _per(bill: Any) -> str:
    return _unit(bill).replace("_", " ")


def breakdown(run: Run) -> list[dict[str, Any]]:
    """The parts of a step by cause: `name`, `label`, `help`, `share`, `text`."""
    found = []
    for name, seconds in run.breakdown_s.items():
        share = seconds / run.step_time_s if run.step_time_s > 0 else 0.0
        if share >= _MIN_SHARE:
            label, words = CAUSES[name]
            found.append({"name": name, "label": label, "help": words, "share": share, "colour": style.CAUSE_COLOURS[name],
                          "text": f"{step_time(seconds)}, {format_percent(share)}"})  # fmt: skip
    return found


def communication(run: Run) -> list[dict[str, Any]]:
    """Communication of a step by dimension and collective: shares of the step that are exposed and hidden, and a text."""
    found = []
    for part in run.communication:
        if run.step_time_s > 0 and part.time_s >= _MIN_SHARE * run.step_time_s:
            hidden_s = part.time_s - part.exposed_s
            hidden = f", {step_time(hidden_s)} hidden" if hidden_s >= _MIN_SHARE * part.time_s else ""
            text = f"{step_time(part.exposed_s)} exposed{hidden}; {format_bytes(part.size_bytes)}"
            colour = style.COMMUNICATION_COLOURS.get(part.dimension, style.GREY)
            found.append({"label": part.label, "text": text, "colour": colour,
                          "exposed": part.exposed_s / run.step_time_s, "hidden": hidden_s / run.step_time_s})  # fmt: skip
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
        "text": f"{format_bytes(total)}{of} per GPU",
        "fits": run.fits,
        "total_bytes": total,
        "capacity_bytes": has,
        "holders": [
            {"name": name, "label": name.replace("_", " ").capitalize(), "help": HOLDERS.get(name, ""), "bytes": size,
             "text": format_bytes(size), "colour": style.MEMORY_COLOURS.get(name, style.GREY)}
            for name, size in holders
        ],
    }  # fmt: skip
