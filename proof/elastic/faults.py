"""Measurement of faults: each is injected into a run on a lab's hosts, and its cost is compared with the prediction.

The same job first runs undisturbed, and a process of it is started alone: predictions are made from these times, and the final
parameters must be those of the run with the fault.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.proof.elastic import launching, measured, predicted
from scaleproof.proof.elastic.foreign_load import ForeignLoad
from scaleproof.proof.elastic.job import Job, check
from scaleproof.proof.elastic.launching import Kill, ProcessTimes
from scaleproof.proof.elastic.measured import Pieces
from scaleproof.proof.elastic.outcome import FaultOutcome, TimeComparison, loss_rows
from scaleproof.proof.elastic.records import LoggedEvent
from scaleproof.proof.elastic.rendezvous import Settings
from scaleproof.simulator.common.units import format_Bps
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.launch import LocalRanks
from scaleproof.validator.measure import MeasureOptions, measure_on
from scaleproof.validator.netlab import compatibility
from scaleproof.validator.netlab.lab import Netlab
from scaleproof.validator.verify.verify import verdict

KINDS: Final = ("rank", "node", "server", "link")
Report = Callable[[str], None]

_STEPS: Final = 14
_EVERY: Final = 4
# Three steps after a checkpoint.
_KILLED_AFTER: Final = 11
# Processes that compute share two cores differently each time, so several starts are measured.
_STARTS: Final = 3
_ALL: Final = (f"steps={_STEPS}",)
_WORKERS: Final = ("netlab-ddp-after", ("batch={total: 24}", *_ALL))
# Workers compute for so long that the server is killed while no worker waits for it.
_SERVERS: Final = ("netlab-servers-1", ("strategy.workers=2", "batch={total: 64}", "model.hidden=128", *_ALL))
_SLOW: Final = "200 Mbit/s"
_TIMEOUT_S: Final = 120.0


class UndisturbedTimes(NamedTuple):
    """Measurements from which predictions are made."""

    pieces: Pieces
    alone: ProcessTimes


def inject_faults(kinds: Sequence[str], folder: Path, report: Report) -> list[FaultOutcome]:
    """Injects the faults of these kinds into runs, one after the other. folder: for logs and checkpoints.

    Raises RunError if this machine cannot build a lab, or a run fails in another way.
    """
    outcomes: list[FaultOutcome] = []
    if wanted := [kind for kind in kinds if kind in ("rank", "node")]:
        outcomes += _workers(wanted, folder, report)
    if "server" in kinds:
        outcomes.append(_server(folder, report))
    if "link" in kinds:
        outcomes.append(_link(report))
    return outcomes


def workers_job(folder: Path) -> Job:
    """Job of three workers, or two of them, that train on the same samples."""
    reference, overrides = _WORKERS
    by_ranks = {workers: load(reference, [f"strategy.workers={workers}", *overrides]) for workers in (2, 3)}
    return _checked(Job(folder, by_ranks, _EVERY))


def server_job(folder: Path) -> Job:
    """Job of two workers and their server, which is on the last host."""
    reference, overrides = _SERVERS
    scenario = load(reference, overrides)
    return _checked(Job(folder, {scenario.strategy.ranks: scenario}, _EVERY))


def _checked(job: Job) -> Job:
    check(job)
    compatibility.check(job.scenario)
    return job


def _workers(kinds: Sequence[str], folder: Path, report: Report) -> list[FaultOutcome]:
    """A killed rank that torchrun restarts, and a lost host that is not replaced."""
    job = workers_job(folder / "undisturbed")
    settings = Settings(hosts=(min(job.by_ranks), job.ranks))
    with Netlab(compatibility.lab_cluster(job.scenario)) as lab:
        undisturbed = _undisturbed(job, lab, report, lambda: launching.under_torchrun(job, lab, settings))
        outcomes = []
        for kind in kinds:
            kill = Kill(job.ranks - 1, _KILLED_AFTER, node=kind == "node")
            report(f"killing {'a host' if kill.node else 'a rank'} under torchrun")
            own = Job(folder / kind, job.by_ranks, job.every)
            with ForeignLoad() as others:
                events = launching.under_torchrun(own, lab, settings, kill)
            forecast = predicted.under_torchrun(own, kill, settings, *undisturbed)
            name = "a host lost, and not replaced" if kill.node else "a rank killed, and started again"
            outcome = _outcome(name, own, kill, events, forecast, undisturbed.pieces)
            outcomes.append(replace(outcome, warning=others.warning))
    return outcomes


def _server(folder: Path, report: Report) -> FaultOutcome:
    """A killed server that is restarted from its last checkpoint."""
    job = server_job(folder / "undisturbed-server")
    with Netlab(compatibility.lab_cluster(job.scenario)) as lab:
        undisturbed = _undisturbed(job, lab, report, lambda: launching.supervised(job, lab))
        kill = Kill(job.ranks - 1, _KILLED_AFTER)
        report("killing a server")
        own = Job(folder / "server", job.by_ranks, job.every)
        with ForeignLoad() as others:
            events = launching.supervised(own, lab, kill)
    forecast = predicted.supervised(own, kill, *undisturbed)
    outcome = _outcome("a server killed, and restored", own, kill, events, forecast, undisturbed.pieces)
    return replace(outcome, warning=others.warning)


def _link(report: Report) -> FaultOutcome:
    """A link that becomes slow in the middle of a run."""
    reference, overrides = _WORKERS
    given = ["strategy.workers=3", *overrides]
    host = 1
    before, after = load(reference, given), load(reference, [*given, _slowed(host)])
    half = before.steps // 2
    report("slowing a link")
    with Netlab(compatibility.lab_cluster(before)) as lab:

        def slow_down(step: int) -> None:
            if step == half + 1:
                lab.limit(host, _rate_Bps(after, host))

        watch = MeasureOptions(_TIMEOUT_S, progress=slow_down, verify=True)
        run = measure_on(before, LocalRanks(lab.ranks_hosts(before)), watch, "netlab")
    # the link changed during the step in between
    fast_s, slow_s = run.step_times_s[:half], run.step_times_s[half + 1 :]
    expected = [predicted.times(scenario).step_s for scenario in (before, after)]
    rows = (
        TimeComparison("step before", expected[0], statistics.median(fast_s)),
        TimeComparison("step after", expected[1], statistics.median(slow_s)),
        TimeComparison("whole run", half * expected[0] + (before.steps - half) * expected[1], sum(run.step_times_s)),
    )
    assert run.verified is not None, "verification was requested"
    assert before.cluster.network is not None, "a lab has one"
    rates = f"from {format_Bps(before.cluster.network.bandwidth_Bps)} to {format_Bps(_rate_Bps(after, host))}"
    text = f"host {host}, {rates}, after step {half} of {before.steps}"
    return FaultOutcome("a link slowed", text, rows, *_judged(run.verified), warning="; ".join(run.warnings))


def _undisturbed(job: Job, lab: Netlab, report: Report, train: Callable[[], list[LoggedEvent]]) -> UndisturbedTimes:
    report(f"starting a process of {job.scenario.name} by itself")
    starts = [launching.alone(job, lab, job.ranks - 1) for _ in range(_STARTS)]
    alone = ProcessTimes(*(statistics.median(times_s) for times_s in zip(*map(astuple, starts), strict=True)))
    report(f"training {job.scenario.name} undisturbed")
    # the starts have written logs too
    for path in job.folder.iterdir():
        path.unlink()
    return UndisturbedTimes(measured.pieces(train()), alone)


def _outcome(
    name: str, job: Job, kill: Kill, events: list[LoggedEvent], forecast: predicted.FaultForecast, undisturbed: Pieces
) -> FaultOutcome:
    left = job.ranks - kill.node
    steps_s = [predicted.times(job.by_ranks[ranks]).step_s for ranks in (job.ranks, left)]
    rows = (
        *loss_rows(forecast, measured.loss(events)),
        TimeComparison("step before", steps_s[0], measured.step_s(events, job)),
        TimeComparison("step after", steps_s[1], measured.step_s(events, job, after=True)),
        TimeComparison("whole run", predicted.elapsed_s(job, kill, left, undisturbed, forecast), measured.elapsed_s(events)),
    )
    again = kill.after_step - measured.resumed_from(events)
    text = (
        f"host {kill.host} of {job.ranks}, after step {kill.after_step} of {job.steps}; "
        f"{again} steps since the last checkpoint are done again by {left} ranks"
    )
    return FaultOutcome(name, text, rows, *_state(job.by_ranks[left], job.folder, measured.digests(events), undisturbed))


def _state(scenario: Scenario, folder: Path, digests: dict[int, str], undisturbed: Pieces) -> tuple[str, bool]:
    """Final parameters in words, and whether they are right."""
    if digests == undisturbed.digests:
        return "the same to the last bit as without the fault", True
    notes: list[dict[str, Any]] = [{}] * scenario.strategy.ranks
    return _judged(verdict(scenario, folder, notes, _TIMEOUT_S))


def _judged(verified: Verification) -> tuple[str, bool]:
    text = f"off by {verified.deviation:.2g} from equivalent training in one process"
    return text if verified.is_right else f"{text}, which is wrong", verified.is_right


def _slowed(host: int) -> str:
    return f"cluster.network.exceptions=[{{at: [{host}], bandwidth: {_SLOW}}}]"


def _rate_Bps(scenario: Scenario, host: int) -> float:
    network = scenario.cluster.network
    assert network is not None, "a lab has one"
    return next(one.bandwidth_Bps for one in network.exceptions if host in one.at)
