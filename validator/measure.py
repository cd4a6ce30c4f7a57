"""measure: trains a scenario for real, one process per rank, and returns what was recorded as a Run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from simulator.errors import InputError, RankError, ScaleproofError
from simulator.run import Run, save
from simulator.scenario import Scenario
from validator.checks import check_trainable
from validator.gather import assemble, finished_steps, rank_names, read_recorded, with_outcomes
from validator.hosts import Host, here, needed_nodes, nodes_of_ranks
from validator.jobfolder import JobFolder
from validator.launch import job_folder, launch, require_torch, run_on_ranks
from validator.place import Place, place_in
from validator.verify import verify_here

On = Literal["local", "netlab", "cluster"]
PLACES: Final[tuple[On, ...]] = ("local", "netlab", "cluster")
# One process trains on all samples by itself, and tells no progress.
_VERIFY_S: Final = 300.0


@dataclass(frozen=True)
class Watch:
    """How a measurement is looked after.

    timeout_s: seconds without progress after which a rank counts as hung. folder: where the steps that were finished are
    kept, and what ranks printed, when the run fails. progress: called with the step that the slowest rank is in, when it
    changes; 0 and below are warm-up steps. parameters_folder: where each rank saves the parameters it ends with.
    verify: whether one process then follows the same rule, and the run says how far from its parameters the ranks' are.
    """

    timeout_s: float = 60.0
    folder: Path | None = None
    progress: Callable[[int], None] | None = None
    parameters_folder: Path | None = None
    verify: bool = False


def measure(scenario: Scenario, on: On | None = None, watch: Watch = Watch()) -> Run:
    """Trains `scenario` and returns the Run that was measured, with spans.

    on: local starts one process per rank on this machine; netlab does so on hosts that are network namespaces of this machine,
    joined as the scenario's cluster says; cluster joins as the rank that torchrun or srun has started this process as, and
    every rank returns the same Run. If None, cluster where this process was started so, else local. Ranks compute on one CPU
    thread each, or on a GPU each where the cluster's nodes do not say how many cores they have and the machine has enough of
    them. With bf16 the parameters themselves are bf16.

    Raises InputError where the scenario cannot be trained, or not there, RankError naming the rank that died or hung, RunError
    where the place is not fit for it, and MissingDependencyError without torch.
    """
    require_torch()
    check_trainable(scenario)
    place = place_in(os.environ)
    if on == "cluster" and place is None:
        raise InputError("--on cluster joins ranks that were started by torchrun or srun; start it by one of them")
    if on == "netlab":
        return _measure_in_netlab(scenario, watch)
    if place is not None and on != "local":
        return _measure_joined(scenario, place, watch)
    return _measure_here(scenario, here(scenario.strategy.ranks), watch)


def _measure_in_netlab(scenario: Scenario, watch: Watch) -> Run:
    """Builds the scenario's network on this machine, as far as there are ranks on it, and starts them there."""
    from validator.netlab import Netlab

    cluster = scenario.cluster.model_copy(update={"nodes": needed_nodes(scenario)})
    with Netlab(cluster) as lab:
        report = lab.self_test()
        hosts = [Host(lab.namespace(node), lab.interface) for node in nodes_of_ranks(scenario)]
        run = _measure_here(scenario, hosts, watch)
        told = {"warnings": "; ".join(report.warnings)} if report.warnings else {}
        return replace(run, provenance={**run.provenance, **lab.provenance(), **report.provenance(), **told})


def _measure_here(scenario: Scenario, hosts: Sequence[Host], watch: Watch) -> Run:
    """Starts the ranks on this machine."""
    ranks, names = scenario.strategy.ranks, rank_names(scenario.strategy)
    with job_folder() as job:
        parameters_folder = watch.parameters_folder or (job.path if watch.verify else None)
        try:
            outcomes = launch(
                job,
                train_here,
                ranks,
                (scenario, parameters_folder),
                timeout_s=watch.timeout_s,
                accelerator=_wants_accelerator(scenario),
                hosts=hosts,
                names=names,
                progress=watch.progress,
            )
        except RankError as error:
            raise RankError(f"{error}{_keep(scenario, job, watch.folder)}") from None
        recorded = [read_recorded(job.spans(rank)) for rank in range(ranks)]
        run = with_outcomes(assemble(scenario, recorded, scenario.steps), scenario, outcomes)
        if not watch.verify or parameters_folder is None:
            return run
        return replace(run, verified=_verified(scenario, parameters_folder, outcomes, watch))


def _verified(
    scenario: Scenario, parameters_folder: Path, outcomes: Sequence[Mapping[str, Any]], watch: Watch
) -> Mapping[str, Any]:
    """The verdict of a process of its own."""
    arguments = (scenario, parameters_folder, [told["notes"] for told in outcomes])
    verdict: Mapping[str, Any] = run_on_ranks(verify_here, 1, *arguments, timeout_s=max(watch.timeout_s, _VERIFY_S))[0]
    return verdict


def train_here(scenario: Scenario, parameters_folder: Path | None) -> Mapping[str, Any]:
    """What each rank does that was started on this machine: spans go to the job's folder, the rest is returned."""
    from validator.rank import here
    from validator.train import train

    me = here()
    with me.job.spans(me.rank).open("ab", buffering=0) as file:
        return train(scenario, file.write, parameters_folder)


def _wants_accelerator(scenario: Scenario) -> bool:
    """Clusters say how many cores a node has where ranks compute on them. Paced ranks compute next to nothing."""
    return scenario.cluster.node.cores is None and scenario.compute == "real"


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
            partial = replace(assemble(scenario, recorded, steps), compute=scenario.compute)
            save(replace(partial, provenance={"partial": f"{steps} of {scenario.steps} steps"}), folder)
    except OSError as error:
        return f"; what was measured could not be kept in {folder}: {error.strerror}"
    return f"; measurements up to step {steps} are kept in {folder}" if steps >= 1 else "; no step was finished"


def _measure_joined(scenario: Scenario, place: Place, watch: Watch) -> Run:
    """Trains as one rank of a group that somebody else started."""
    if place.ranks != scenario.strategy.ranks:
        needed = scenario.strategy.ranks
        raise InputError(f"started as {place.ranks} ranks, but the strategy has {needed}; start {needed} processes")
    from validator import clock, rank
    from validator.train import train

    name = rank_names(scenario.strategy)[place.rank]
    own: list[bytes] = []
    try:
        rank.join(place, watch.timeout_s, _wants_accelerator(scenario))
        offset_s = clock.offset_to_rank_0_s(clock.machine())
        outcome = train(scenario, own.append, watch.parameters_folder, offset_s)
        everyones = rank.exchange((b"".join(own), outcome))
    except ScaleproofError:
        raise
    except Exception as error:
        raise RankError(f"rank {place.rank} ({name}) failed in {rank.activity()}: {rank.describe(error)}") from error
    finally:
        rank.leave()
    recorded, outcomes = zip(*everyones, strict=True)
    return with_outcomes(assemble(scenario, recorded, scenario.steps), scenario, outcomes)
