"""measure: trains a scenario for real, one process per rank, and returns what was recorded as a Run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from simulator.errors import InputError, RankError, ScaleproofError
from simulator.run import Run, save
from simulator.scenario import Scenario
from validator.checks import check_trainable
from validator.gather import assemble, finished_steps, rank_names, read_recorded
from validator.jobfolder import JobFolder
from validator.launch import job_folder, launch, require_torch
from validator.place import Place, place_in


def measure(
    scenario: Scenario,
    *,
    timeout_s: float = 60.0,
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
    parameters_folder: Path | None = None,
) -> Run:
    """Trains `scenario` and returns the Run that was measured, with spans.

    Starts one process per rank on this machine; under torchrun, or srun with MASTER_ADDR and MASTER_PORT given, it joins as
    the rank that it is there, and every rank returns the same Run. Ranks compute on one CPU thread each, or on a GPU each
    where the cluster's nodes do not say how many cores they have and the machine has enough of them. With bf16 the
    parameters themselves are bf16.

    timeout_s: seconds without progress after which a rank counts as hung. folder: where the steps that were finished are
    kept, and what ranks printed, when the run fails. progress: called with the step that the slowest rank is in, when it
    changes; 0 and below are warm-up steps. parameters_folder: where each rank saves the parameters it ends with.

    Raises InputError where the scenario cannot be trained, RankError naming the rank that died or hung, and
    MissingDependencyError without torch.
    """
    require_torch()
    check_trainable(scenario)
    place = place_in(os.environ)
    if place is not None:
        return _measure_joined(scenario, place, timeout_s, parameters_folder)
    return _measure_here(scenario, timeout_s, folder, progress, parameters_folder)


def _measure_here(
    scenario: Scenario,
    timeout_s: float,
    folder: Path | None,
    progress: Callable[[int], None] | None,
    parameters_folder: Path | None,
) -> Run:
    """Starts the ranks on this machine."""
    ranks, names = scenario.strategy.ranks, rank_names(scenario.strategy)

    with job_folder() as job:
        try:
            results = launch(
                job,
                train_here,
                ranks,
                (scenario, parameters_folder),
                timeout_s=timeout_s,
                accelerator=_wants_accelerator(scenario),
                names=names,
                progress=progress,
            )
        except RankError as error:
            raise RankError(f"{error}{_keep(scenario, job, folder)}") from None
        return assemble(scenario, [read_recorded(job.spans(rank)) for rank in range(ranks)], scenario.steps, results[0])


def train_here(scenario: Scenario, parameters_folder: Path | None) -> dict[str, str]:
    """What each rank does that was started on this machine: spans go to the job's folder, what it ran on is returned."""
    from validator.rank import here
    from validator.train import train

    me = here()
    with me.job.spans(me.rank).open("ab", buffering=0) as file:
        return train(scenario, file.write, parameters_folder)


def _wants_accelerator(scenario: Scenario) -> bool:
    """Clusters say how many cores a node has where ranks compute on them."""
    return scenario.cluster.node.cores is None


def _keep(scenario: Scenario, job: JobFolder, folder: Path | None) -> str:
    """Saves the steps that all ranks finished, and what they printed; returns what to say of it."""
    if folder is None:
        return ""
    ranks = range(scenario.strategy.ranks)
    recorded = [read_recorded(job.spans(rank)) for rank in ranks]
    steps = finished_steps(recorded)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for log in map(job.log, ranks):
            if log.exists() and log.stat().st_size:
                shutil.copyfile(log, folder / log.name)
        if steps >= 1:
            save(assemble(scenario, recorded, steps, {"partial": f"{steps} of {scenario.steps} steps"}), folder)
    except OSError as error:
        return f"; what was measured could not be kept in {folder}: {error.strerror}"
    return f"; measurements up to step {steps} are kept in {folder}" if steps >= 1 else "; no step was finished"


def _measure_joined(scenario: Scenario, place: Place, timeout_s: float, parameters_folder: Path | None) -> Run:
    """Trains as one rank of a group that somebody else started."""
    if place.ranks != scenario.strategy.ranks:
        needed = scenario.strategy.ranks
        raise InputError(f"started as {place.ranks} ranks, but the strategy has {needed}; start {needed} processes")
    from validator import clock, rank
    from validator.train import train

    name = rank_names(scenario.strategy)[place.rank]
    own: list[bytes] = []
    try:
        rank.join(place, timeout_s, _wants_accelerator(scenario))
        offset_s = clock.offset_to_rank_0_s(clock.machine())
        provenance = train(scenario, own.append, parameters_folder, offset_s)
        recorded = rank.exchange(b"".join(own))
    except ScaleproofError:
        raise
    except Exception as error:
        raise RankError(f"rank {place.rank} ({name}) failed in {rank.activity()}: {rank.describe(error)}") from error
    finally:
        rank.leave()
    return assemble(scenario, recorded, scenario.steps, provenance)
