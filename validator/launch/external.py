"""Trains a scenario as one of the ranks that torchrun or srun has started, on any number of machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist

from scaleproof.simulator.common.errors import InputError, RankError, one_line
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator import results
from scaleproof.validator.launch import fork_server, rank
from scaleproof.validator.launch.launch import job_folder
from scaleproof.validator.launch.preflight.checks import check_trainable
from scaleproof.validator.launch.rank_environment import ContactLostError, RankEnvironment
from scaleproof.validator.launch.rendezvous import Meeting
from scaleproof.validator.record.assemble import gathered, rank_names
from scaleproof.validator.train.train import train
from scaleproof.validator.verify.verify import LONGEST_S, verdict

if TYPE_CHECKING:
    from scaleproof.validator.measure import MeasureOptions

# Most bytes of spans that a rank keeps of a failed run: torch's store takes values of up to 8 MiB.
_MOST_KEPT_BYTES: Final = 4 * 1024 * 1024


def measure_joined(scenario: Scenario, meeting: Meeting, watch: MeasureOptions, accelerator: bool) -> Run:
    """Trains as one rank of a group started by another launcher; every rank returns the same Run or raises the same error.

    Raises ContactLostError where ranks no longer respond, so that no other scenario can be measured; else the errors of
    `measure`.
    """
    place = meeting.place
    meeting.together(lambda: check_joined(scenario, place))
    own: list[bytes] = []
    failure: dict[str, Any] = {}
    everyones: list[Any] = []
    with job_folder() if watch.verify else nullcontext() as job:
        parameters_folder = watch.parameters_folder or (job.path if job else None)
        if job is not None:
            # the server loads torch first, which must not overlap with the measurement
            fork_server.shared().wait_until_ready()
        try:
            rank.join(place, meeting.new_group_store(), watch.timeout_s, accelerator)
            outcome = train(watch.trained(scenario), _sink(own, watch), parameters_folder, watch.traces_folder)
            everyones = rank.exchange((b"".join(own), outcome))
            if job is not None and parameters_folder is not None:
                _bring_parameters(parameters_folder, job.path)
        except Exception as error:
            failure = {"text": one_line(error), "in": rank.activity(), "by_peer": rank.is_communication(error)}
            meeting.give("spans", b"".join(own)[:_MOST_KEPT_BYTES])
        finally:
            rank.leave()
        _raise_failure(scenario, meeting, watch, meeting.agree(failure))
        recorded, outcomes = zip(*everyones, strict=True)
        run = gathered(scenario, recorded, outcomes)
        if job is None:
            return run
        notes = [outcome["notes"] for outcome in outcomes]
        verify = partial(verdict, watch.trained(scenario), job.path, notes, watch.timeout_s)
        verdicts = meeting.together(lambda: vars(verify()) if place.rank == 0 else None, LONGEST_S)
        return replace(run, verified=Verification(**verdicts[0]))


def check_joined(scenario: Scenario, place: RankEnvironment) -> None:
    """Raises InputError where the ranks that were started cannot train the scenario."""
    check_trainable(scenario)
    needed = scenario.strategy.ranks
    if place.ranks != needed:
        raise InputError(
            f"{scenario.name}: started as {place.ranks} ranks, but the strategy has {needed}; start {needed} processes"
        )


def _sink(own: list[bytes], watch: MeasureOptions) -> Callable[[bytes], None]:
    """A sink that keeps each step's spans in `own` and reports progress."""

    def take(rows: bytes) -> None:
        own.append(rows)
        if watch.progress is not None:
            watch.progress(rank.here().status.activity.step)

    return take


def _bring_parameters(source: Path, target: Path) -> None:
    """Copies each rank's final parameters from its folder `source` to `target` on rank 0."""
    me = rank.here()
    everyones: list[Any] | None = [None] * me.ranks if me.rank == 0 else None
    # by gloo, as files are read into the host's memory
    group = dist.new_group(backend="gloo")
    dist.gather_object((source / f"rank{me.rank}.pt").read_bytes(), everyones, 0, group)
    for number, content in enumerate(everyones or ()):
        (target / f"rank{number}.pt").write_bytes(content)


def _raise_failure(scenario: Scenario, meeting: Meeting, watch: MeasureOptions, failures: Sequence[Any]) -> None:
    """Raises RankError where a rank failed, blaming the cause rather than its victims, and keeps the finished steps.

    failures: of each rank, empty without a failure, None if the rank did not report in time.
    """
    failed = [number for number, failure in enumerate(failures) if failure]
    if None in failures and all(failures[number]["by_peer"] for number in failed):
        meeting.check_all_there(failures)
    if not failed:
        return
    number = min(failed, key=lambda number: (failures[number]["by_peer"], number))
    name, failure = rank_names(scenario.strategy)[number], failures[number]
    text = f"rank {number} ({name}) failed in {failure['in']}: {failure['text']}"
    if len(failed) < len(failures):
        raise (ContactLostError if None in failures else RankError)(text)
    first = meeting.place.rank == 0
    recorded = [meeting.given("spans", number) for number in failed] if first else []
    kept = meeting.together(lambda: results.keep_finished(scenario, "cluster", recorded, (), watch.folder) if first else "")
    raise RankError(f"{text}{kept[0]}")
