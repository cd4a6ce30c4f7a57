"""Runs as sections: speed, step time breakdown, scaling efficiency, cost and memory; single steps; a whole training run."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from scaleproof.reports.charts.chart import Chart
from scaleproof.reports.charts.runs import breakdown as run_charts
from scaleproof.reports.sections import Column, Description, Line, Section, Table
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_count,
    format_energy_J,
    format_mass_kg,
    format_need,
    format_number,
    format_percent,
    format_range,
    format_short,
    format_short_range,
    format_time_s,
    format_times_s,
    format_USD,
)
from scaleproof.simulator.run.bottleneck import bound, limit
from scaleproof.simulator.run.records import CaptureFacts, CommunicationPart, ServerStatistics
from scaleproof.simulator.run.run import BREAKDOWN, Run
from scaleproof.simulator.run.step_times import MANY_STEPS

if TYPE_CHECKING:
    from scaleproof.simulator.run.totals import Estimate, TrainingTotals

# minimum share of a step from which a part is printed
_MIN_SHARE: Final = 5e-4
# shares of a step below this are rounding errors
_ROUNDING: Final = 1e-9
_LARGEST_HOLDERS: Final = 3
# minimum share of a prediction's variance from which a quantity is printed
_MIN_VARIANCE_SHARE: Final = 0.1
# a probability from here on goes without saying
_SURELY_FITS: Final = 0.995
# a need of more than this many times the memory is shown without times
_MOST_NEED: Final = 10
# scaling efficiency from which an explanation is given, and what is said of a baseline
_ABOVE: Final = 1.0005
_BASELINE_NOTES: Final = (", the smallest that fits", ", which does not fit", ", which do not fit")


def describe(run: Run) -> Description:
    """The description of a run. Times of a run whose need of memory is out of all proportion say nothing and are left out."""
    title = f"{run.scenario}: {run.strategy} on {counted(run.ranks, 'rank')}, {_origin(run)}"
    if run.fits is False:
        title += " as if memory sufficed" if _is_plausible(run) else "; times are not shown for so large a need"
    problem = out_of_memory(run) if run.fits is False else ""
    sections = [section for section in _sections(run) if any(section.facts.values())]
    return Description(title, finding(run), figures=list(figures(run)), sections=sections, problem=problem)


def _sections(run: Run) -> Iterator[Section]:
    """Yields the sections of a run; those of which nothing is known have no facts."""
    framework = [run.framework_words] if run.framework else []
    if run.fits is not False or _is_plausible(run):
        yield from _performance(run, framework)
    else:
        yield Section("Speed", "How fast it is", facts={"framework": framework})
    if run.capture is not None:
        yield _section("Kernels", "How times of kernels are known", {"kernels": _kernels(run.capture)})
    drawn = [_bar(run)] if run.origin == "predicted" else []
    yield _section("Memory", "What fits", {"memory": _memory(run)}, lambda: [run_charts.memory(drawn)])
    yield _section("Notes", "Notes", {"network": _network(run.provenance), "note": run.notes, "warning": run.warnings})


def _section(
    name: str, heading: str, facts: Mapping[str, Iterable[Line]], charts: Callable[[], Sequence[Chart | None]] = lambda: ()
) -> Section:
    return Section(name, heading, facts={name: list(lines) for name, lines in facts.items()}, charts=charts)


def _bar(run: Run) -> run_charts.Bar:
    return run_charts.Bar(run.scenario, run.origin, run)


def _performance(run: Run, framework: Iterable[str]) -> Iterator[Section]:
    """Yields the sections of throughput, times and cost."""
    speed: dict[str, Iterable[Line]] = {
        "framework": framework,
        "throughput": _throughput(run),
        "utilisation": _utilisation(run),
        "step time": _step_time(run),
        "90 % interval": _interval(run),
        "limit": limit(run),
        "input": [] if run.loading is None else [str(run.loading)],
        "to target": _to_target(run),
    }
    yield _section("Speed", "How fast it is", speed)
    time: dict[str, Iterable[Line]] = {
        "where it goes": _parts(run),
        "bubble": _bubble(run),
        "communication": _communication(run),
        "servers": _servers(run.servers),
    }
    found = _section("Time", "Where the time goes", time, lambda: [run_charts.breakdown([_bar(run)])])
    yield replace(found, tables=list(_phases(run)))
    cost: dict[str, Iterable[Line]] = {
        # a run that cannot take place has no place in a comparison of sizes
        "efficiency": [] if run.fits is False else _efficiency(run),
        "energy": _bill(run.energy_J, format_energy_J),
        "cost": _bill(run.cost_USD, format_USD),
    }
    yield _section("Cost", "Efficiency and cost", cost)


def finding(run: Run) -> str:
    """The speed of a run and what limits it: 'llama: 308k tokens/s on 256 GPUs (261–364k); compute-bound'."""
    binding = bound(run) if run.fits is not False else ""
    return speed(run) + (f"; {binding.lower()}" if binding else "")


def speed(run: Run) -> str:
    """'llama: 308k tokens/s on 256 GPUs (261–364k)', of a measured run without an interval."""
    gpus = counted(run.compute_ranks, run.device_noun)
    if run.host_problem:
        return f"{run.scenario}: out of host memory on {gpus}, {run.host_problem}"
    if run.fits is False and run.memory_bytes_per_rank and run.capacity_bytes:
        memory = f"{format_bytes(run.memory_bytes_per_rank)} of {format_bytes(run.capacity_bytes)} per {run.device_noun}"
        note = f" ({run.fit_by_note})" if run.fit_by_note else ""
        fits = f"; fits with {run.fit_by.replace(' ', ' and ')}{note}" if run.fit_by else ""
        return f"{run.scenario}: out of memory on {gpus}, {memory}{fits}"
    per_step, unit = units_per_step(run)
    between = ""
    if run.prediction_interval_s:
        between = f" ({format_short_range(*(per_step / end_s for end_s in reversed(run.prediction_interval_s)))})"
    how = "" if run.origin == "predicted" else ", measured"
    return f"{run.scenario}: {format_short(per_step / run.step_time_s)} {unit}/s on {gpus}{between}{how}"


def figures(run: Run) -> Iterator[tuple[str, str]]:
    """Yields the key figures of a run."""
    per_step, unit = units_per_step(run)
    over = ", if memory sufficed" if run.fits is False else ""
    batch = f", batch {run.samples:,}" if run.samples_known else ""
    yield format_time_s(run.step_time_s), f"step time{batch}{over}"
    each = f" per {run.device_noun}" if run.compute_ranks > 1 else ""
    if unit != "steps":
        yield format_short(per_step / run.step_time_s / run.compute_ranks), f"{unit}/s{each}"
    if run.mfu is not None:
        yield format_percent(run.mfu), "MFU"
    if run.memory_bytes_per_rank:
        of = f" of {format_bytes(run.capacity_bytes)}" if run.capacity_bytes else ""
        yield format_bytes(run.memory_bytes_per_rank), f"memory per {run.device_noun}{of}"
    bill = run.cost_USD or {}
    if f"per_million_{unit}" in bill:
        yield format_USD(bill[f"per_million_{unit}"]), f"per million {unit}"
    if "weak" in run.scaling and run.fits is not False:
        yield format_percent(run.scaling["weak"].efficiency), "weak scaling efficiency"


def units_per_step(run: Run) -> tuple[int, str]:
    """Tokens of a step and 'tokens', or samples for models without tokens; 1 and 'steps' where neither is known."""
    if run.tokens:
        return run.tokens, "tokens"
    return (run.samples, "samples") if run.samples_known else (1, "steps")


def out_of_memory(run: Run) -> str:
    """'Out of memory: 224 of 80.0 GiB per GPU at stage 0 (optimizer states 128 GiB, …); fits with: --set training.zero=3'."""
    holders_bytes, noun = run.memory_bytes or {}, run.device_noun
    need = format_need(sum(holders_bytes.values()), run.capacity_bytes or 0.0)
    most = next((stage for stage in run.memory_by_stage if stage.total_bytes == sum(holders_bytes.values())), None)
    place = f" at {most.name}" if most is not None and len(run.memory_by_stage) > 1 else ""
    settings = " ".join(f"--set {shlex.quote(setting)}" for setting in _settings(run.fit_by))
    # the script decides all that a plan would
    other = (
        "the script decides what would help: capture it again with a smaller batch, recomputation, more shards or offloading"
        if run.capture is not None
        else f"no setting tried makes it fit; give a smaller batch or more {noun}s, or try 'scaleproof plan'"
    )
    if run.adapters_fit_by:
        adapters = " ".join(f"--set {shlex.quote(setting)}" for setting in _settings(run.adapters_fit_by))
        other = f"{other}; as adapters it fits with: {adapters}"
    note = f" ({run.fit_by_note})" if run.fit_by_note else ""
    remedy = f"fits with: {settings}{note}" if settings else other
    if run.host_problem:
        return f"Out of host memory: {run.host_problem}" + (f"; {remedy}" if settings else "")
    return f"Out of memory: {need} per {noun}{place} ({', '.join(largest(holders_bytes))}); {remedy}"


def _settings(text: str) -> list[str]:
    """The settings of a remedy, `field=value` with spaces only inside of braces or brackets."""
    return re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|\S)+", text)


def _is_plausible(run: Run) -> bool:
    """Whether the needed memory is within reach of the device's, so that times say something."""
    return sum((run.memory_bytes or {}).values()) <= _MOST_NEED * (run.capacity_bytes or math.inf)


def _origin(run: Run) -> str:
    """'measured, paced, in netlab'."""
    on = run.provenance.get("on")
    place = [f"{'in' if on == 'netlab' else 'on'} {on}"] if on else []
    return ", ".join([run.origin, *(["paced"] if run.compute == "paced" else []), *place])


def _network(provenance: Mapping[str, str]) -> Iterator[str]:
    """Measured properties of an emulated network."""
    if "link rate" in provenance:
        yield f"links: {provenance['link rate']}; round trip: {provenance['round trip']}; latency: {provenance['latency']}"


def _kernels(capture: CaptureFacts) -> Iterator[str]:
    """How the times of a captured script's kernels are known, as shares of their sum."""
    shares_of = {
        "of measured shapes": capture.measured,
        "extrapolated": capture.extrapolated,
        "of unknown cost": capture.unknown,
    }
    yield ", ".join(f"{format_percent(share)} {name}" for name, share in shares_of.items())


def _step_time(run: Run) -> Iterator[str]:
    tokens = f", {format_count(run.tokens)} tokens" if run.tokens else ""
    interval = ""
    if run.step_time_interval_s:
        low_s, high_s = run.step_time_interval_s
        interval = f" ± {format_time_s((high_s - low_s) / 2)} (95 %)"
    samples = f"for {counted(run.samples, 'sample')}" if run.samples_known else "for samples whose number is not known"
    yield f"{format_time_s(run.step_time_s)}{interval} {samples}{tokens}"


def _throughput(run: Run) -> Iterator[str]:
    rates = []
    if run.tokens_per_s and run.tokens_per_s_per_rank:
        rates += [f"{format_number(run.tokens_per_s)} tokens/s"]
        rates += [f"{format_number(run.tokens_per_s_per_rank)} tokens/s/{run.device_noun}"]
    if run.samples_known:
        rates += [f"{format_number(run.samples_per_s)} samples/s"]
    if rates:
        yield ", ".join(rates)


def _interval(run: Run) -> Iterator[str]:
    """The prediction interval, and the quantities that contribute most to it."""
    if run.prediction_interval_s is None:
        return
    low_s, high_s = run.prediction_interval_s
    parts = [format_times_s(low_s, high_s)]
    if low_s > 0 and run.samples_known:
        fewest, most = (f"{format_number(run.samples / edge_s)} samples/s" for edge_s in (high_s, low_s))
        parts.append(format_range(fewest, most, "-"))
    bill = run.cost_USD
    if bill and run.step_time_s > 0:
        low, high = (format_USD(bill["per_step"] * seconds / run.step_time_s) for seconds in (low_s, high_s))
        parts.append(f"{format_range(low, high, '-')} a step")
    # "model" would read as the neural network
    names = {"model": "simulator", "device": run.device_noun}
    causes = [
        f"{names.get(name, name.replace('.', ' '))} {format_percent(share, 0)}"
        for name, share in run.spread.items()
        if share >= _MIN_VARIANCE_SHARE
    ][:_LARGEST_HOLDERS]
    yield ", ".join(parts) + (f" (from: {', '.join(causes)})" if causes else "")


def _to_target(run: Run) -> Iterator[str]:
    """Time to the target loss by the convergence model, with the excess over the fewest steps and samples."""
    if run.to_target is None or run.time_to_target_s is None:
        return
    target, between = run.to_target, ""
    if run.time_to_target_interval_s:
        low_s, high_s = map(format_time_s, run.time_to_target_interval_s)
        between = f", 90 % interval {low_s} to {high_s}"
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
        peak = f"{format_count(run.peak_flops or 0.0)}FLOP/s per {run.device_noun}"
        yield f"MFU {format_percent(run.mfu)}, HFU {format_percent(run.hfu)} of {peak}"


def _parts(run: Run) -> Iterator[Table]:
    """The step time by cause, with the share of each."""
    times_s = {cause: run.breakdown_s.get(cause, 0.0) for cause in BREAKDOWN} if run.step_time_s else {}
    shown = {cause: seconds for cause, seconds in times_s.items() if abs(seconds / run.step_time_s) >= _MIN_SHARE}
    if shown:
        shares = [seconds / run.step_time_s for seconds in shown.values()]
        yield share_table([cause.replace("_", " ") for cause in shown], list(map(format_time_s, shown.values())), shares)


def _phases(run: Run) -> Iterator[Table]:
    """Yields the table of phases, which consoles leave out; nothing where they are not known."""
    shown = {phase.label: run.phase_s[phase.label] for phase in Phase if run.phase_s.get(phase.label, 0.0) > 0}
    if shown:
        columns = [Column("phase", list(shown), is_text=True), Column("a step", list(map(format_time_s, shown.values())))]
        note = "per step and training rank on the stream that blocks the rank; a phase includes its waiting time"
        yield Table(columns, "Time of each phase", [note], brief=())


def share_table(names: Sequence[str], amounts: Sequence[str], shares: Sequence[float]) -> Table:
    """A table of parts of a whole: their names, amounts and shares."""
    percents = [format_percent(share) for share in shares]
    return Table([Column("", names, is_text=True), Column("", amounts), Column("", percents, shares=shares)])


def _communication(run: Run) -> Iterator[Line]:
    if any(seconds > _MIN_SHARE * run.step_time_s for seconds in run.communication_s.values()):
        least_s = _ROUNDING * run.step_time_s
        times = {name: format_time_s(seconds) if seconds > least_s else "none" for name, seconds in run.communication_s.items()}
        yield ", ".join(f"{text} {name}" for name, text in times.items())
        yield from communication_table(run.communication)


def communication_table(parts: Sequence[CommunicationPart]) -> Iterator[Table]:
    """Yields a table of dimensions and collectives: exposed and hidden time, bytes and calls; nothing without any."""
    if parts:
        names, *columns = zip(*map(_communication_row, parts), strict=True)
        yield Table([Column("", names, is_text=True), *(Column("", cells) for cells in columns)])


def _communication_row(part: CommunicationPart) -> tuple[str, ...]:
    exposed, hidden = (
        f"{format_time_s(seconds)} {name}" if seconds > _ROUNDING * part.time_s else ""
        for name, seconds in (("exposed", part.exposed_s), ("hidden", part.time_s - part.exposed_s))
    )
    calls = counted(round(part.calls), "call") if part.calls > 1 - _MIN_SHARE else f"{part.calls:.2g} calls"
    return part.label, exposed, hidden, format_bytes(part.size_bytes), calls


def _servers(servers: ServerStatistics | None) -> Iterator[str]:
    """Load of the parameter servers, and staleness of asynchronous workers."""
    if servers is None:
        return
    busiest, queue = servers.bottleneck, servers.queue_length
    yield (
        f"busiest: {busiest}, {format_percent(servers.busy[busiest])}; servers busy "
        f"{format_percent(servers.utilisation.mean)} of the time, "
        f"{queue.mean:.2g} wait on average, {queue.max} at most"
    )
    gaps = [("clock gap", servers.clock_gap), ("version staleness", servers.version_staleness)]
    parts = [f"{name} {gap.mean:.3g} on average, {gap.max} at most" for name, gap in gaps if gap.max > 0]
    parts += [f"{format_percent(servers.dropped)} of pushes dropped"] if servers.dropped > 0 else []
    if parts:
        yield "; ".join(parts)


def _bubble(run: Run) -> Iterator[str]:
    """The bubble next to that of equal stages."""
    if run.textbook_bubble is not None:
        textbook = f"{format_percent(run.textbook_bubble)} if all stages were equal, (p - 1) / (v m + p - 1)"
        yield f"{format_percent(run.bubble_fraction)} of the step; {textbook}"


def _efficiency(run: Run) -> Iterator[str]:
    """Scaling efficiency with its baseline; above 100 %, why that is no error."""
    for kind, scaling in run.scaling.items():
        share = f"{kind} scaling {format_percent(scaling.efficiency)}"
        if scaling.speed_up is None:
            yield f"{share}, against {scaling.baseline}"
            continue
        ranks = round(scaling.efficiency * run.compute_ranks / scaling.speed_up)
        note = next((note for note in _BASELINE_NOTES if note in scaling.baseline), "")
        above = "; above 100 % because that baseline uses each less well" if scaling.efficiency > _ABOVE else ""
        times = f"{scaling.speed_up:.3g}x of {counted(ranks, run.device_noun)}{note}{above}"
        yield share + (" (it is the baseline)" if ranks == run.compute_ranks and not above else f" ({times})")


def _memory(run: Run) -> Iterator[str]:
    """Memory per rank (largest and smallest stage) and per server, and the largest holders."""
    if run.memory_bytes is None:
        return
    needed = sum(run.memory_bytes.values())
    need = f"{format_need(needed, run.capacity_bytes) if run.capacity_bytes else format_bytes(needed)} per {run.device_noun}"
    # the fullest rank of each kind of device, where they differ
    fullest = {one.capacity_bytes: one for one in sorted(run.memory_by_stage, key=lambda one: one.total_bytes)}
    if None not in fullest and fullest:
        need = ", ".join(f"{format_need(one.total_bytes, capacity or 0.0)} per {one.name}" for capacity, one in fullest.items())
    elif len(run.memory_by_stage) > 1:
        most, least = (pick(run.memory_by_stage, key=lambda stage: stage.total_bytes) for pick in (max, min))
        if most.total_bytes > least.total_bytes:
            need += f" at {most.name}, {format_bytes(least.total_bytes)} at {least.name}"
    if run.fits and run.fits_probability is not None and run.fits_probability < _SURELY_FITS:
        need += f"; fits with a probability of {format_percent(run.fits_probability, 0)}"
        if run.memory_interval_bytes:
            ends = format_range(*map(format_bytes, run.memory_interval_bytes))
            need += f": its 90 % interval is {ends}, by the errors of published runs"
    yield need
    yield ", ".join(largest(run.memory_bytes))
    if (server := run.server_memory) is not None:
        total, capacity = server.total_bytes, server.capacity_bytes
        need = format_need(total, capacity) if capacity else format_bytes(total)
        yield f"{need} per server ({', '.join(largest(server.holders_bytes))})"


def largest(holders_bytes: Mapping[str, float]) -> Iterator[str]:
    """The largest holders of memory with their sizes: 'activations 144 GiB', …"""
    for name in sorted(holders_bytes, key=holders_bytes.__getitem__, reverse=True)[:_LARGEST_HOLDERS]:
        yield f"{name.replace('_', ' ')} {format_bytes(holders_bytes[name])}"


def _bill(bill: Mapping[str, float] | None, text: Callable[[float], str]) -> Iterator[str]:
    if bill:
        unit = next((unit for unit in ("per_million_tokens", "per_million_samples") if unit in bill), "")
        yield f"{text(bill['per_step'])} a step" + (f", {text(bill[unit])} {unit.replace('_', ' ')}" if unit else "")


def steps(run: Run) -> Section:
    """The distribution of single steps: percentiles, each against the median, and its sources. No facts where it is not known
    or the run cannot take place."""
    found, lines = run.step_distribution, list[Line]()
    if found is not None and run.fits is not False:
        median_s = found.quantile_s(0.5)
        times_s = {"mean": found.mean_s, **found.quantiles_s, f"longest of {MANY_STEPS:,}": found.longest_s}
        changes = [f"{100 * (seconds / median_s - 1):+.2f} %" for seconds in times_s.values()]
        times = list(map(format_time_s, times_s.values()))
        lines.append(Table([Column("", list(times_s), is_text=True), Column("", times), Column("", changes)]))
        causes = [f"{name} {format_percent(share, 0)}" for name, share in found.shares.items() if share >= _MIN_SHARE]
        lines += [f"from: {', '.join(causes)}"] if causes else []
    return Section("Steps", "How much single steps vary", facts={"single steps": lines} if lines else {})


def totals(training: TrainingTotals) -> Section:
    """The totals of a whole training run."""
    tokens = format_count(training.tokens).replace("G", "B")
    lines = [
        f"{tokens} tokens, {training.steps:,} steps: {_estimated(training.time_s, format_time_s)}",
        f"{format_count(training.gpu_hours.value)} GPU-hours; without failures, restarts and evaluations",
    ]
    if training.cost_USD is None:
        lines.append("cost not known; set cluster.node.price, such as 2.50 USD/GPU-hour")
    else:
        lines.append(f"cost {_estimated(training.cost_USD, lambda amount: f'{format_count(amount)} USD')}")
    if training.energy_J is None or training.carbon_kg is None:
        lines.append("energy not known; set cluster.node.power, that of a node in training, such as 10.2 kW")
    else:
        lines.append(f"energy {_estimated(training.energy_J, format_energy_J)}")
        intensity = f"at {training.carbon_kg_per_J * 3.6e9:.3g} g/kWh (cluster.electricity.carbon)"
        lines.append(f"CO2 {_estimated(training.carbon_kg, format_mass_kg)} {intensity}")
    return Section("Totals", "The whole training run", facts={"whole run": lines})


def _estimated(estimate: Estimate, text: Callable[[float], str]) -> str:
    """'41.2 d (90 %: 35.1 to 48.9 d)'."""
    if estimate.low == estimate.high:
        return text(estimate.value)
    return f"{text(estimate.value)} (90 %: {format_range(text(estimate.low), text(estimate.high))})"
