"""Goodput as sections: effective training time ratio, lost time by cause, and the effect of improvements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from scaleproof.reports.descriptions.runs import share_table
from scaleproof.reports.sections import Description, Line, Section, Table
from scaleproof.simulator.analysis.goodput.result import Goodput
from scaleproof.simulator.common.units import (
    counted,
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_time_s,
    format_USD,
)
from scaleproof.simulator.run.run import framework_words

_DAY_S: Final = 86400.0
# minimum share of the time from which a part is printed
_MIN_SHARE: Final = 5e-5
# below this effective ratio, training makes no progress
_NO_PROGRESS: Final = 5e-4


def describe(found: Goodput) -> Description:
    """The description of a goodput prediction."""
    nodes = counted(found.counts["host"], "node")
    title = f"{found.scenario}: {found.strategy} on {nodes}, {_days(found.days)} with failures"
    facts: dict[str, Iterable[Line]] = {
        "framework": [framework_words(found.framework, found.framework_is_default)],
        "effective": _ratio(found),
        "where it goes": [_parts(found)],
        "interruptions": _interruptions(found),
        "a failure": _failure(found),
        "assumed": assumed(found.assumed_s),
        "spare nodes": _spares(found),
        "checkpoints": _checkpoints(found),
        "goodput": _rate(found),
        "cost": _cost(found),
        "if halved": _halved(found),
        "warning": _warnings(found),
    }
    section = Section("Goodput", "Training under failures", facts={name: list(lines) for name, lines in facts.items()})
    return Description(title, f"{title}: {next(_ratio(found))}", sections=[section])


def _ratio(found: Goodput) -> Iterator[str]:
    low, high = found.ratio_interval
    yield f"{format_percent(found.ratio)} of the time, 90 % between {format_percent(low)} and {format_percent(high)}"
    if found.ratio < _NO_PROGRESS:
        yield "no progress: failures are more frequent than restarts and checkpoints allow"
    yield f"{format_percent(found.expected)} in closed form{_limited(found)}"


def _limited(found: Goodput) -> str:
    return ", if nodes were always available" if found.spares is not None else ""


def _parts(found: Goodput) -> Table:
    """The time by part, with the share of each."""
    shares = {name: share for name, (share, _, _) in found.shares.items() if abs(share) >= _MIN_SHARE}
    times = [format_time_s(share * found.days * _DAY_S) for share in shares.values()]
    return share_table(list(shares), times, list(shares.values()))


def _interruptions(found: Goodput) -> Iterator[str]:
    failures = f"{_number(found.failures)} failures, one every {format_time_s(found.times.mtbf_s)}"
    stops = [f"{_number(found.stops)} planned stops"] if found.stops else []
    growths = [f"{_number(found.growths)} restarts to grow again"] if found.growths else []
    yield "; ".join([failures, *stops, *growths])
    rates = sorted(found.failures_per_day.items(), key=lambda item: -item[1])
    total = sum(found.failures_per_day.values())
    yield ", ".join(f"{name}{_count(found.counts[name])} {format_percent(rate / total)}" for name, rate in rates)


def _count(count: int) -> str:
    return f" ({count:,})" if count > 1 else ""


def _failure(found: Goodput) -> Iterator[str]:
    times = found.times
    lost_s = found.shares["lost work"][0] * found.days * _DAY_S / max(found.failures, 1.0)
    yield (
        f"detected after {format_time_s(times.detection_s)}; restart {format_time_s(times.restart_s)}, "
        f"of which {format_time_s(found.saving.load_s)} to load; {format_time_s(lost_s)} of work lost on average"
    )


def assumed(assumed_s: Mapping[str, float]) -> Iterator[str]:
    """The times of detection and restart that a scenario does not give, by field, in seconds."""
    if assumed_s:
        times = ", ".join(f"{name} {format_time_s(seconds)}" for name, seconds in assumed_s.items())
        yield f"{times}, as sites see them; give your own, as --set 'reliability.{next(iter(assumed_s))}=3 min'"


def _spares(found: Goodput) -> Iterator[str]:
    if found.in_repair is not None:
        yield (
            f"{found.spares or 'none'}; {_number(found.in_repair)} nodes would be in repair on average; "
            f"{found.enough_spares:,} spares suffice 99% of the time"
        )


def _checkpoints(found: Goodput) -> Iterator[str]:
    steps, saving = counted(round(found.interval_s / found.step_s), "step"), found.saving
    written = f", written {format_time_s(saving.writing_s)} later" if saving.writing_s else ""
    yield (
        f"every {format_time_s(found.interval_s)} ({steps})"
        f"{', the optimum' if found.is_optimum else ''}: {format_bytes(saving.size_bytes)}, "
        f"training stops for {format_time_s(saving.stall_s)}{written}"
    )
    rules = ", ".join(
        f"{choice.rule} {format_time_s(choice.interval_s)} ({format_percent(choice.simulated)})" for choice in found.choices
    )
    yield f"optimum by {rules}"


def _rate(found: Goodput) -> Iterator[str]:
    tokens = found.tokens_per_sample
    token_rate = f", {format_number(found.goodput_samples_per_s * tokens)} tokens/s" if tokens else ""
    yield f"{format_number(found.goodput_samples_per_s)} of {format_number(found.samples_per_s)} samples/s{token_rate}"
    count, name = (found.trained_samples * tokens, "tokens") if tokens else (found.trained_samples, "samples")
    yield f"{format_count(count)} {name} in total"


def _cost(found: Goodput) -> Iterator[str]:
    if found.cost_USD is None:
        return
    spares = f", {found.spares:,} spare nodes included" if found.spares else ""
    unit_cost = found.cost_USD_per_million
    name = "tokens" if found.tokens_per_sample else "samples"
    per_million = f"; {format_USD(unit_cost)} per million {name}" if unit_cost is not None else ""
    yield f"{format_USD(found.cost_USD)}{spares}{per_million}"


def _halved(found: Goodput) -> Iterator[str]:
    ratios = ", ".join(f"{name} {format_percent(ratio)}" for name, ratio in found.halved.items())
    yield f"{ratios} (in closed form{_limited(found)})"


def _warnings(found: Goodput) -> Iterator[str]:
    yield from found.warnings
    if found.shares["fewer workers"][0] < 0:
        yield "fewer workers are faster than all of them; try scaleproof predict with fewer"
    if found.simulated_days < found.days:
        yield (
            f"only {_days(found.simulated_days)} are simulated and taken to repeat; the ratio over "
            f"{_days(found.days)} varies less"
        )


def _days(days: float) -> str:
    return f"{days:,.4g} days" if days >= 1 else format_time_s(days * _DAY_S)


def _number(count: float) -> str:
    return f"{count:,.0f}" if count >= 9.95 else f"{count:.1f}" if count >= 0.05 else f"{count:.2g}"
