"""Whether a job's speed is normal for its software, and what would help: predictions of the same job and of changes to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from scaleproof.simulator.analysis.compare import compare
from scaleproof.simulator.analysis.diagnosis import Diagnosis, Normal, WhatIf
from scaleproof.simulator.analysis.evidence import evidence
from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.common.catalog import names
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.jobs import contradictions
from scaleproof.validator.reconciliation.jobs.logs import JobLog

# The smallest gain that is worth a line, and the number of lines.
_LEAST_GAIN: Final = 0.01
# Standard errors of half a 90 % interval.
_REACH: Final = 1.645
_MOST: Final = 6


def compared(found: Diagnosis, logs: Sequence[JobLog], load: Callable[[Sequence[str]], Scenario]) -> Diagnosis:
    """The diagnosis with the prediction of the job. load: the scenario with further overrides."""
    scenario = load(())
    try:
        for log in logs:
            contradictions.check(log, scenario)
        note = "" if found.step_s else "no file has the time of a step"
    except InputError as error:
        note = str(error)
    if note or found.step_s is None:
        note += f", so that nothing is compared with {scenario.name}"
        return found.model_copy(update={"notes": (note, *found.notes)})
    run = predict(scenario)
    low_s, high_s = run.prediction_interval_s or (run.step_time_s, run.step_time_s)
    mfu = None
    if run.model_flops and run.peak_flops:
        mfu = run.model_flops / (found.step_s * run.compute_ranks * run.peak_flops)
    gains = list(_predicted(scenario, _changes(scenario, load)))
    best = _best_layout(scenario)
    if best is not None:
        others = max((one.gain for one in gains), default=0.0)
        gains += [one for one in _predicted(scenario, [best.change]) if one.gain > others + _LEAST_GAIN]
    gains = sorted([*_mended(found), *gains], key=lambda one: -one.gain)
    normal = Normal(
        scenario=scenario.name,
        framework=run.framework_words,
        measured_s=found.step_s,
        predicted_s=run.step_time_s,
        low_s=low_s,
        high_s=high_s,
        mfu=mfu,
        predicted_mfu=run.mfu,
        best_mfu=best.mfu if best and best.mfu and best.mfu > (1 + _LEAST_GAIN) * (run.mfu or 0.0) else None,
        what_ifs=tuple(gains[:_MOST]),
        evidence=evidence(scenario),
    )
    return found.model_copy(update={"normal": normal})


def _mended(found: Diagnosis) -> Iterator[WhatIf]:
    """The throughput without each fault, whose cost was measured."""
    for fault in found.faults:
        if fault.loss_s is not None and 0 < fault.share < 1:
            change = f"as before: {fault.since}" if fault.cause == "slower since" else f"{fault.cause} mended: {fault.where}"
            reach = None if fault.error is None else _REACH * fault.error
            gains = (1 / (1 - min(fault.share * (1 + side * (reach or 0.0)), 0.99)) - 1 for side in (0, -1, 1))
            gain, low, high = gains
            yield WhatIf(change=change, gain=gain, low=max(0.0, low) if reach else None, high=high if reach else None)


class _Layout(NamedTuple):
    change: tuple[str, Scenario]
    mfu: float | None


def _best_layout(scenario: Scenario) -> _Layout | None:
    """The planner's best layout for the job's devices and batch in the same software; None where the planner has none."""
    try:
        found = plan(scenario, top=1, frameworks=[scenario.framework, *map(shipped, _variants(scenario))])
    except ScaleproofError:
        return None
    best = found.best[0]
    software = best.scenario.framework.name
    words = f"the best layout: {layout(found.configurations.row(best.row))}"
    words += f", {software}" if software != scenario.framework.name else ""
    return _Layout((words, best.scenario), best.run.mfu)


def _variants(scenario: Scenario) -> list[str]:
    """Other forms of the scenario's framework, such as with compilation, without those of other years."""
    name = scenario.framework.name
    stem = name.removesuffix("-compiled")
    forms = (one for one in names("frameworks") if one == stem or one.startswith(f"{stem}-"))
    return [one for one in forms if one != name and not one[-4:].isdigit()]


def _predicted(scenario: Scenario, changed: Iterable[tuple[str, Scenario]]) -> Iterator[WhatIf]:
    """Predicted gains of changes that fit into memory."""
    for change, other in changed:
        try:
            found = compare(scenario, other)
        except ScaleproofError:
            continue
        gain = found.throughput_ratio - 1
        low, high = (end - 1 for end in found.throughput_ratio_interval)
        if gain > _LEAST_GAIN and found.b.fits is not False:
            yield WhatIf(change=change, gain=gain, low=low, high=high)


def _changes(scenario: Scenario, load: Callable[[Sequence[str]], Scenario]) -> Iterator[tuple[str, Scenario]]:
    """What is often changed first, where the job has what the change needs."""
    for change, overrides in _overrides(scenario):
        with contextlib.suppress(ScaleproofError):
            yield change, load(overrides)


def _overrides(scenario: Scenario) -> Iterator[tuple[str, Sequence[str]]]:
    microbatches = scenario.strategy.microbatches
    if microbatches > 1 and microbatches % 2 == 0:
        yield "a micro-batch of twice the size", [f"strategy.microbatches={microbatches // 2}"]
    for form in _variants(scenario):
        yield f"the framework {form}", [f"framework={form}"]
    if scenario.training.recompute.shorthand != "none":
        yield "no recomputation", ["training.recompute=none"]
    yield "communication that overlaps with compute", ["strategy.overlap=true"]
    network = scenario.cluster.network
    if network is not None and scenario.cluster.nodes > 1:
        yield "a network of twice the bandwidth", [f"cluster.network.bandwidth={2 * network.bandwidth_Bps:.0f} B/s"]
