"""Console text of a run: speed, step time breakdown, scaling efficiency, memory, energy and cost; and
evidence for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from scaleproof.commands.text.tables import sections, shares, table
from scaleproof.simulator.analysis.evidence import Evidence, PublishedRun
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_change,
    format_count,
    format_energy_J,
    format_mass_kg,
    format_number,
    format_percent,
    format_range,
    format_time_s,
    format_USD,
)
from scaleproof.simulator.run.records import CommunicationPart, ServerStatistics
from scaleproof.simulator.run.run import BREAKDOWN, Run
from scaleproof.simulator.run.totals import Estimate, TrainingTotals

# minimum share of a step from which a part is printed
_MIN_SHARE: Final = 5e-4
# shares of a step below this are rounding errors
_ROUNDING: Final = 1e-9
_LARGEST_HOLDERS: Final = 3
# minimum share of a prediction's variance from which a quantity is printed
_MIN_VARIANCE_SHARE: Final = 0.1
# number of published runs that are printed, and the titles of their table
_MOST_PUBLISHED: Final = 5
_EVIDENCE_TITLES: Final = ("published run", "model", "GPUs", "layout", "measured", "predicted", "error", "in 90 %")


def describe(run: Run) -> str:
    """Console text of a run."""
    headline = f"{run.scenario}: {run.strategy} on {counted(run.ranks, 'rank')}, {_origin(run)}"
    parts = {
        "framework": [run.framework_words] if run.framework else [],
        "step time": _step_time(run),
        "throughput": _throughput(run),
        "90 % between": _interval(run),
        "to target": _to_target(run),
        "utilisation": _utilisation(run),
        "where it goes": _parts(run),
        "communication": _communication(run),
        "input": _input(run),
        "servers": _servers(run.servers),
        "efficiency": _efficiency(run),
        "memory": _memory(run),
        "energy": _bill(run.energy_J, format_energy_J),
        "cost": _bill(run.cost_USD, format_USD),
        "network": _network(run.provenance),
        "warning": run.warnings,
    }
    return "\n".join([headline, *sections(parts)])


def _origin(run: Run) -> str:
    """'measured, paced, in netlab'."""
    on = run.provenance.get("on")
    place = [f"{'in' if on == 'netlab' else 'on'} {on}"] if on else []
    return ", ".join([run.origin, *(["paced"] if run.compute == "paced" else []), *place])


def _network(provenance: Mapping[str, str]) -> Iterator[str]:
    """Measured properties of an emulated network."""
    if "link rate" in provenance:
        yield f"links: {provenance['link rate']}; round trip: {provenance['round trip']}; latency: {provenance['latency']}"


def _step_time(run: Run) -> Iterator[str]:
    tokens = f", {format_count(run.tokens)} tokens" if run.tokens else ""
    interval = ""
    if run.step_time_interval_s:
        low_s, high_s = run.step_time_interval_s
        interval = f" ± {format_time_s((high_s - low_s) / 2)} (95 %)"
    yield f"{format_time_s(run.step_time_s)}{interval} for {counted(run.samples, 'sample')}{tokens}"


def _throughput(run: Run) -> Iterator[str]:
    tokens = ""
    if run.tokens_per_s and run.tokens_per_s_per_rank:
        tokens = f", {format_number(run.tokens_per_s)} tokens/s, {format_number(run.tokens_per_s_per_rank)} tokens/s a rank"
    yield f"{format_number(run.samples_per_s)} samples/s{tokens}"


def _interval(run: Run) -> Iterator[str]:
    """The prediction interval, and the quantities that contribute most to it."""
    if run.prediction_interval_s is None:
        return
    low_s, high_s = run.prediction_interval_s
    parts = [f"{format_time_s(low_s)} and {format_time_s(high_s)}"]
    if low_s > 0:
        parts.append(f"{format_number(run.samples / high_s)} and {format_number(run.samples / low_s)} samples/s")
    bill = run.cost_USD
    if bill and run.step_time_s > 0:
        low, high = (format_USD(bill["per_step"] * seconds / run.step_time_s) for seconds in (low_s, high_s))
        parts.append(f"{low} and {high} a step")
    # without a prefix, "model" would read as the neural network
    names = {"model": "simulator model error"}
    most = [f"{names.get(name, name)} {share:.0%}" for name, share in run.spread.items() if share >= _MIN_VARIANCE_SHARE][
        :_LARGEST_HOLDERS
    ]
    yield "; ".join([", ".join(parts), *(["mostly " + ", ".join(most)] if most else [])])


def _to_target(run: Run) -> Iterator[str]:
    """Time to the target loss by the convergence model, with the excess over the fewest steps and samples."""
    if run.to_target is None or run.time_to_target_s is None:
        return
    target, between = run.to_target, ""
    if run.time_to_target_interval_s:
        low_s, high_s = map(format_time_s, run.time_to_target_interval_s)
        between = f", 90 % between {low_s} and {high_s}"
    # ignore rounding errors
    stale = f", {target.staleness:.3g} updates by others during a worker's step" if target.staleness > _MIN_SHARE else ""
    yield (
        f"modelled: {format_time_s(run.time_to_target_s)}{between}, "
        f"by {format_number(target.steps)} updates of {format_number(target.batch)} samples{stale}"
    )
    over = (f"{ratio:.3g} times the fewest" for ratio in (target.steps_over_fewest, target.samples_over_fewest))
    bill = f"; {format_USD(run.cost_USD['per_step'] * run.time_to_target_s / run.step_time_s)}" if run.cost_USD else ""
    yield f"{' updates, '.join(over)} samples{bill}; as accurate as the convergence model's calibration"


def _utilisation(run: Run) -> Iterator[str]:
    if run.mfu is not None and run.hfu is not None:
        yield f"MFU {run.mfu:.1%}, HFU {run.hfu:.1%} of {format_count(run.peak_flops or 0.0)}FLOP/s a rank"


def _parts(run: Run) -> list[str]:
    """The step time by cause, the share of each as a bar."""
    times_s = {cause: run.breakdown_s.get(cause, 0.0) for cause in BREAKDOWN} if run.step_time_s else {}
    return shares(
        (cause.replace("_", " "), format_time_s(seconds), seconds / run.step_time_s)
        for cause, seconds in times_s.items()
        if abs(seconds / run.step_time_s) >= _MIN_SHARE
    )


def _communication(run: Run) -> Iterator[str]:
    if any(seconds > _MIN_SHARE * run.step_time_s for seconds in run.communication_s.values()):
        least_s = _ROUNDING * run.step_time_s
        times = {name: format_time_s(seconds) if seconds > least_s else "none" for name, seconds in run.communication_s.items()}
        yield ", ".join(f"{text} {name}" for name, text in times.items())
        yield from communication_table(run.communication)


def communication_table(parts: Iterable[CommunicationPart]) -> list[str]:
    """Lines of a table with a row for each dimension and collective: exposed and hidden time, bytes and calls."""
    return table([_communication_row(part) for part in parts], "<>>>>")


def _communication_row(part: CommunicationPart) -> tuple[str, ...]:
    exposed, hidden = (
        f"{format_time_s(seconds)} {name}" if seconds > _ROUNDING * part.time_s else ""
        for name, seconds in (("exposed", part.exposed_s), ("hidden", part.time_s - part.exposed_s))
    )
    calls = counted(round(part.calls), "call") if part.calls > 1 - _MIN_SHARE else f"{part.calls:.2g} calls"
    return part.label, exposed, hidden, format_bytes(part.size_bytes), calls


def _input(run: Run) -> Iterator[str]:
    if run.breakdown_s.get("waiting_for_input", 0.0) > _MIN_SHARE * run.step_time_s:
        yield "bound by data loading"


def _servers(servers: ServerStatistics | None) -> Iterator[str]:
    """Load of the parameter servers, and staleness of asynchronous workers."""
    if servers is None:
        return
    busiest, queue = servers.bottleneck, servers.queue_length
    yield (
        f"busiest: {busiest}, {servers.busy[busiest]:.1%}; servers busy {servers.utilisation.mean:.1%} of the time, "
        f"{queue.mean:.2g} wait on average, {queue.max} at most"
    )
    gaps = [("clock gap", servers.clock_gap), ("version staleness", servers.version_staleness)]
    parts = [f"{name} {gap.mean:.3g} on average, {gap.max} at most" for name, gap in gaps if gap.max > 0]
    parts += [f"{servers.dropped:.1%} of pushes dropped"] if servers.dropped > 0 else []
    if parts:
        yield "; ".join(parts)


def _efficiency(run: Run) -> Iterator[str]:
    for kind, scaling in run.scaling.items():
        faster = f"{1.0 if scaling.speed_up is None else scaling.speed_up:.3g}"
        times = f": {faster} times as fast" if faster != "1" else ""
        yield f"{scaling.efficiency:.1%} {kind} scaling, against {scaling.baseline}{times}"


def _memory(run: Run) -> Iterator[str]:
    """Memory per rank (largest and smallest stage), the largest holders, and a remedy if it does not fit."""
    if run.memory_bytes is None:
        return
    of = f" of {format_bytes(run.capacity_bytes)}" if run.capacity_bytes else ""
    need = f"{format_bytes(sum(run.memory_bytes.values()))}{of} a rank"
    if len(run.memory_by_stage) > 1:
        most, least = (pick(run.memory_by_stage, key=lambda stage: stage.total_bytes) for pick in (max, min))
        need += f" at {most.name}, {format_bytes(least.total_bytes)} at {least.name}"
    yield need
    yield ", ".join(_largest(run.memory_bytes))
    if run.fits is False:
        yield "does not fit" + (f"; would fit with {run.fit_by}" if run.fit_by else "")


def _largest(holders_bytes: Mapping[str, float]) -> Iterator[str]:
    for name in sorted(holders_bytes, key=holders_bytes.__getitem__, reverse=True)[:_LARGEST_HOLDERS]:
        yield f"{name.replace('_', ' ')} {format_bytes(holders_bytes[name])}"


def _bill(bill: Mapping[str, float] | None, text: Callable[[float], str]) -> Iterator[str]:
    if bill:
        unit = "per_million_tokens" if "per_million_tokens" in bill else "per_million_samples"
        yield f"{text(bill['per_step'])} a step, {text(bill[unit])} {unit.replace('_', ' ')}"


def describe_totals(totals: TrainingTotals) -> str:
    """Console text of the totals of a whole training run."""
    tokens = format_count(totals.tokens).replace("G", "B")
    lines = [
        f"{tokens} tokens, {totals.steps:,} steps: {_estimated(totals.time_s, format_time_s)}",
        f"{format_count(totals.gpu_hours.value)} GPU-hours; without failures, restarts and evaluations",
    ]
    if totals.cost_USD is None:
        lines.append("cost not known; set cluster.node.price, such as 2.50 USD/GPU-hour")
    else:
        lines.append(f"cost {_estimated(totals.cost_USD, lambda amount: f'{format_count(amount)} USD')}")
    if totals.energy_J is None or totals.carbon_kg is None:
        lines.append("energy not known; set cluster.node.power, that of a node in training, such as 10.2 kW")
    else:
        lines.append(f"energy {_estimated(totals.energy_J, format_energy_J)}")
        intensity = f"at {totals.carbon_kg_per_J * 3.6e9:.3g} g/kWh (cluster.electricity.carbon)"
        lines.append(f"CO2 {_estimated(totals.carbon_kg, format_mass_kg)} {intensity}")
    return "\n".join(sections({"whole run": lines}))


def _estimated(estimate: Estimate, text: Callable[[float], str]) -> str:
    """'41.2 d (90 %: 35.1 to 48.9 d)'."""
    if estimate.low == estimate.high:
        return text(estimate.value)
    return f"{text(estimate.value)} (90 %: {format_range(text(estimate.low), text(estimate.high))})"


def describe_evidence(evidence: Evidence) -> str:
    """Text of the evidence: a summary, and a table of the nearest runs."""
    if not evidence.runs:
        return "evidence: no published run in the tables of this version is similar"
    runs = counted(len(evidence.runs), "similar published run")
    summary = f"evidence: {runs}; median error {format_percent(evidence.median_error)}, "
    summary += f"{format_percent(evidence.coverage, 0)} in the 90 % interval; the nearest:"
    rows = [_EVIDENCE_TITLES, *(_published_row(run) for run in evidence.runs[:_MOST_PUBLISHED])]
    note = "scaleproof predict published:RUN predicts one of them"
    return "\n".join([summary, *table(rows, "<<><>>><", indent="  "), f"  {note}"])


def _published_row(run: PublishedRun) -> tuple[str, ...]:
    degrees = {"TP": run.tensor, "PP": run.stages}
    layout = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    layout += [f"ZeRO-{run.zero}"] if run.zero else []
    return (
        run.id,
        run.model,
        f"{run.gpus} {run.device}",
        " ".join([*layout, run.precision]),
        format_time_s(run.measured_s),
        format_time_s(run.predicted_s),
        format_change(run.error),
        "yes" if run.is_covered else "no",
    )
