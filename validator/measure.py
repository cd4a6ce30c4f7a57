"""measure: trains a scenario for real, one process per rank, and returns the measured Run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch import network_interfaces
from scaleproof.validator.launch.hosts import LOOPBACK, Host
from scaleproof.validator.launch.launch import job_folder, launch, require_torch
from scaleproof.validator.launch.preflight.checks import check_trainable
from scaleproof.validator.launch.preflight.memory_check import check_room
from scaleproof.validator.launch.rank_environment import meeting_point, place_in
from scaleproof.validator.netlab import compatibility
from scaleproof.validator.record.assemble import gathered, rank_names, read_recorded
from scaleproof.validator.record.provenance import warned
from scaleproof.validator.record.torch_profiler import lengthened
from scaleproof.validator.results import keep_finished, stamped
from scaleproof.validator.verify.verify import check_verifiable, verdict

if TYPE_CHECKING:
    from scaleproof.validator.launch.rendezvous import Meeting

On = Literal["local", "netlab", "cluster"]


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a measurement.

    timeout_s: seconds without progress after which a rank counts as hung. folder: where finished steps and the output of ranks
    are kept when the run fails. progress: called with the step of the slowest rank when it changes; 0 and below are warm-up
    steps. parameters_folder: where each rank saves its final parameters. verify: whether one process then trains by the same
    rule, and the run records the deviation of the ranks' parameters. profile: whether ranks train a few more steps under
    torch's profiler and write profiles to `folder`/profile. interface: of this machine, on which ranks communicate; if None,
    the loopback interface, or the one that leads to rank 0.
    """

    timeout_s: float = 60.0
    folder: Path | None = None
    progress: Callable[[int], None] | None = None
    parameters_folder: Path | None = None
    verify: bool = False
    interface: str | None = None
    profile: bool = False

    @property
    def traces_folder(self) -> Path | None:
        """Folder of the ranks' profiles; None if ranks are not profiled."""
        return self.folder / "profile" if self.folder and self.profile else None

    def trained(self, scenario: Scenario) -> Scenario:
        """The scenario that ranks train: with additional steps for the profiler if ranks are profiled."""
        return lengthened(scenario) if self.profile else scenario


def measure(scenario: Scenario, on: On | None = None, watch: MeasureOptions = MeasureOptions()) -> Run:
    """Trains `scenario` and returns the measured Run, with spans.

    on: local starts one process per rank on this machine; netlab starts them in network namespaces of this machine, joined by
    links as in the scenario's cluster; cluster joins the ranks that torchrun or srun has started, of which this process is one,
    and every rank returns the same Run. If None, cluster if this process was started so, else local. Ranks compute on one CPU
    thread each, or on GPUs if the machine has any and the cluster's nodes give no number of cores. With bf16 the parameters
    themselves are bf16.

    Raises InputError where the scenario cannot be trained, or not there, RankError naming the rank that died or hung, RunError
    where the machine is not suited, and MissingDependencyError without torch.
    """
    require_torch()
    if watch.profile and watch.folder is None:
        raise InputError("profiling writes traces; give a folder for them with --out DIR")
    where = where_to(on)
    if where == "cluster":
        run = _measure_joined(scenario, watch)
    else:
        check(scenario, where, watch.interface, watch.verify)
        run = _measure_in_netlab(scenario, watch) if where == "netlab" else _measure_locally(scenario, watch)
    return stamped(run, scenario, where)


def where_to(on: On | None) -> On:
    """Where `measure` measures. Raises InputError for `cluster` if no launcher has started this process."""
    started = place_in(os.environ) is not None
    if on == "cluster" and not started:
        raise InputError("--on cluster joins ranks started by torchrun or srun; start this command with one of them")
    return on or ("cluster" if started else "local")


def check(scenario: Scenario, where: On, interface: str | None, verify: bool = False) -> None:
    """Raises InputError where the scenario's ranks cannot be started on this machine."""
    check_trainable(scenario)
    if verify:
        check_verifiable(scenario)
    check_room(scenario)
    check_interface(where, interface)
    if where == "netlab":
        compatibility.check(scenario)


def check_interface(where: On, interface: str | None) -> None:
    """Raises InputError where ranks cannot communicate on an interface of that name."""
    if interface is not None and where == "netlab":
        raise InputError(f"--interface {interface}: netlab's hosts have one interface each; leave it out")
    if interface is not None:
        network_interfaces.check(interface)


def meet_others(watch: MeasureOptions) -> Meeting:
    """Joins the ranks that torchrun or srun has started; raises the errors of `rendezvous.meet`."""
    # ranks report broken connections themselves; torch reads this when it is loaded
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from scaleproof.validator.launch.rendezvous import meet

    place = place_in(os.environ)
    assert place is not None, "where_to says so"
    return meet(place, meeting_point(os.environ), watch.interface, watch.timeout_s)


def _measure_joined(scenario: Scenario, watch: MeasureOptions) -> Run:
    """Trains as one of the ranks that another launcher has started."""
    meeting = meet_others(watch)
    from scaleproof.validator.launch.external import measure_joined

    return measure_joined(scenario, meeting, watch, _wants_accelerator(scenario))


def _measure_locally(scenario: Scenario, watch: MeasureOptions) -> Run:
    host = Host(interface=watch.interface or LOOPBACK)
    return measure_here(scenario, [host] * scenario.strategy.ranks, watch, "local")


def _measure_in_netlab(scenario: Scenario, watch: MeasureOptions) -> Run:
    """Builds the network of those of the scenario's nodes that have ranks on this machine, and starts the ranks there."""
    from scaleproof.validator.netlab.lab import Netlab

    with Netlab(compatibility.lab_cluster(scenario)) as lab:
        report = lab.self_test()
        try:
            run = measure_here(scenario, lab.ranks_hosts(scenario), watch, "netlab")
        except RankError:
            # raises a clearer error if the lab has ended, which is then the cause
            lab.namespace(0)
            raise
        entries = compatibility.provenance(scenario)
        entries |= warned([run.provenance.get("warnings", ""), compatibility.warning(scenario), *report.warnings])
        return replace(run, provenance={**run.provenance, **report.provenance(), **entries})


def measure_here(scenario: Scenario, hosts: Sequence[Host], watch: MeasureOptions, where: On) -> Run:
    """Starts the ranks on this machine, each on its host, and returns the measured Run."""
    ranks, names = scenario.strategy.ranks, rank_names(scenario.strategy)
    with job_folder() as job:

        def keep() -> str:
            recorded = [read_recorded(job.spans(rank)) for rank in range(ranks)]
            return keep_finished(scenario, where, recorded, map(job.log, range(ranks)), watch.folder)

        parameters_folder = watch.parameters_folder or (job.path if watch.verify else None)
        try:
            outcomes = launch(
                job,
                train_here,
                ranks,
                (watch.trained(scenario), parameters_folder, *filter(None, [watch.traces_folder])),
                timeout_s=watch.timeout_s,
                accelerator=_wants_accelerator(scenario),
                hosts=hosts,
                names=names,
                progress=watch.progress,
            )
        except RankError as error:
            raise RankError(f"{error}{keep()}") from None
        except KeyboardInterrupt:
            keep()
            raise
        recorded = [read_recorded(job.spans(rank)) for rank in range(ranks)]
        run = gathered(scenario, recorded, outcomes)
        if not watch.verify or parameters_folder is None:
            return run
        notes = [outcome["notes"] for outcome in outcomes]
        return replace(run, verified=verdict(watch.trained(scenario), parameters_folder, notes, watch.timeout_s))


def train_here(scenario: Scenario, parameters_folder: Path | None, traces_folder: Path | None = None) -> Mapping[str, Any]:
    """Trains on a rank started on this machine: writes spans to the job's folder and returns the rank's outcome."""
    from scaleproof.validator.launch.rank import here
    from scaleproof.validator.train.train import train

    me = here()
    with me.job.spans(me.rank).open("ab", buffering=0) as file:
        return train(scenario, file.write, parameters_folder, traces_folder)


def _wants_accelerator(scenario: Scenario) -> bool:
    """Whether ranks use GPUs: not if the cluster gives the cores of a node, nor with emulated compute."""
    return scenario.cluster.node.cores is None and scenario.compute == "real"
