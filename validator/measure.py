"""measure: trains a scenario for real, one process per rank, and returns the measured Run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch import fork_server
from scaleproof.validator.launch.job import LOOPBACK, Host
from scaleproof.validator.launch.launch import JobOptions, LocalRanks, Ranks, require_torch, temporary_folder
from scaleproof.validator.launch.rank_environment import meeting_point, place_in
from scaleproof.validator.netlab import compatibility
from scaleproof.validator.preflight.checks import check
from scaleproof.validator.record.assemble import gathered, rank_names
from scaleproof.validator.record.provenance import warned
from scaleproof.validator.record.steps import quota_of
from scaleproof.validator.record.torch_profiler import lengthened
from scaleproof.validator.results import keep_finished, stamped
from scaleproof.validator.train.capabilities import uses_gpus
from scaleproof.validator.verify.verify import LONGEST_S, verdict

if TYPE_CHECKING:
    from scaleproof.validator.launch.rendezvous import Meeting

On = Literal["local", "netlab", "cluster"]

# Of ranks that survive the failure of another one, and go on with the next scenario. They report broken connections themselves;
# NCCL's watchdog aborts communicators after the timeout (2), instead of the process.
_TORCH_SETTINGS: Final = {
    "TORCH_CPP_LOG_LEVEL": "FATAL", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", "TORCH_NCCL_ENABLE_MONITORING": "0",
}  # fmt: skip


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
    if watch.profile and quota_of(scenario) is not None:
        raise InputError(
            "strategy.units: profiles are of further steps of all ranks, which units of work do not have; leave it out"
        )
    where = where_to(on)
    if where == "cluster":
        from scaleproof.validator.launch.external import ExternalRanks

        meeting = meet_others(watch)
        meeting.together(lambda: check(scenario, where, None, watch.verify))
        run = measure_on(scenario, ExternalRanks(meeting, meeting.place.ranks), watch, where)
        return stamped(run, scenario, where)
    check(scenario, where, watch.interface, watch.verify)
    if where == "netlab":
        run = _measure_in_netlab(scenario, watch)
    else:
        host = Host(interface=watch.interface or LOOPBACK)
        run = measure_on(scenario, LocalRanks([host] * scenario.strategy.ranks), watch, where)
    return stamped(run, scenario, where)


def where_to(on: On | None) -> On:
    """Where `measure` measures. Raises InputError for an unknown place, and for `cluster` if no launcher has started this
    process."""
    if on not in (None, *get_args(On)):
        raise InputError(f"on: expected one of {', '.join(get_args(On))}, got {on!r}")
    started = place_in(os.environ) is not None
    if on == "cluster" and not started:
        raise InputError(
            "--on cluster joins ranks started by torchrun, accelerate, srun or mpirun; start this command with one of them"
        )
    return on or ("cluster" if started else "local")


def meet_others(watch: MeasureOptions) -> Meeting:
    """Joins the ranks that torchrun or srun has started; raises the errors of `rendezvous.meet`."""
    # torch reads some of them when it is loaded
    for name, value in _TORCH_SETTINGS.items():
        os.environ.setdefault(name, value)
    from scaleproof.validator.launch.rendezvous import meet

    place = place_in(os.environ)
    assert place is not None, "where_to says so"
    return meet(place, meeting_point(os.environ), watch.interface, watch.timeout_s)


def _measure_in_netlab(scenario: Scenario, watch: MeasureOptions) -> Run:
    """Builds the network of those of the scenario's nodes that have ranks on this machine, and starts the ranks there."""
    from scaleproof.validator.netlab.lab import Netlab
    from scaleproof.validator.netlab.tenants import tenants_traffic

    with Netlab(compatibility.lab_cluster(scenario)) as lab:
        report = lab.self_test()
        try:
            with tenants_traffic(lab, scenario.unevenness):
                run = measure_on(scenario, LocalRanks(lab.ranks_hosts(scenario)), watch, "netlab")
        except RankError:
            # raises a clearer error if the lab has ended, which is then the cause
            lab.namespace(0)
            raise
        entries = compatibility.provenance(scenario)
        entries |= warned([run.provenance.get("warnings", ""), compatibility.warning(scenario), *report.warnings])
        return replace(run, provenance={**run.provenance, **report.provenance(), **entries})


def measure_on(scenario: Scenario, ranks: Ranks, watch: MeasureOptions, where: On) -> Run:
    """Trains on the ranks and returns the measured Run."""
    trained = watch.trained(scenario)

    def keep(recorded: Sequence[bytes], logs: Sequence[Path]) -> str:
        return keep_finished(scenario, where, recorded, logs, watch.folder)

    names = rank_names(scenario.strategy)
    options = JobOptions(watch.timeout_s, uses_gpus(scenario), names, watch.progress, keep)
    with temporary_folder() if watch.verify else nullcontext() as folder:
        parameters_folder = watch.parameters_folder or folder
        copies_folder = folder if where == "cluster" else None
        if copies_folder is not None:
            # the server loads torch first, which must not overlap with the measurement
            fork_server.shared().wait_until_ready()
        rare = (watch.traces_folder, copies_folder) if watch.profile or copies_folder else ()
        ended = ranks.run(train_here, (trained, parameters_folder, *rare), options)
        outcomes = [one.result for one in ended]
        run = gathered(scenario, [one.recorded for one in ended], outcomes)
        trained_folder = copies_folder or parameters_folder
        if not watch.verify or trained_folder is None:
            return run
        notes = [outcome["notes"] for outcome in outcomes]
        verify = partial(verdict, trained, trained_folder, notes, watch.timeout_s)
        return replace(run, verified=Verification(**ranks.once(lambda: vars(verify()), LONGEST_S)))


def train_here(
    scenario: Scenario, parameters_folder: Path | None, traces_folder: Path | None = None, copies_folder: Path | None = None
) -> Mapping[str, Any]:
    """Trains on a rank: records spans and returns the rank's outcome. copies_folder: where rank 0, which may be on another
    machine, gets the parameters of all ranks."""
    from scaleproof.validator.launch.rank import here
    from scaleproof.validator.strategy import train

    outcome = train.train(scenario, here().record, parameters_folder, traces_folder)
    if parameters_folder is not None and copies_folder is not None:
        train.copy_parameters(parameters_folder, copies_folder)
    return outcome
