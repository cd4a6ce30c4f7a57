"""Reconciliation of a script: captures it, runs it for real, predicts the capture, and compares both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from scaleproof.simulator.captured.record import Capture
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.capture.capture import CaptureOptions, capture_with_calls
from scaleproof.validator.capture.command.command_line import ScriptCommand
from scaleproof.validator.capture.job import CaptureJob
from scaleproof.validator.launch.job import LOOPBACK, Host
from scaleproof.validator.launch.launch import temporary_folder
from scaleproof.validator.preflight.memory_check import MOST_RANKS
from scaleproof.validator.reconciliation.reconcile import ReconciledCase
from scaleproof.validator.script_runs import this_machine
from scaleproof.validator.script_runs.cuda_on_cpu import REPLACED
from scaleproof.validator.script_runs.measure import (
    WARMUP_STEPS,
    ScriptPlace,
    free_port,
    mean_of,
    measured_run,
    peak_memory_bytes,
    run_script,
)
from scaleproof.validator.script_runs.operator_times import between, with_times
from scaleproof.validator.script_runs.rank import ScriptRun

_CAPTURED_STEPS: Final = 3
# Steps whose memory is counted.
_COUNTED_STEPS: Final = 2
_MOST_RUNS: Final = 3
_LAB_PORT: Final = 29500
_PRECISIONS: Final = ("fp16", "bf16", "fp64")


@dataclass(frozen=True)
class ScriptOptions:
    """How a script is reconciled. cluster: name or path of the description of the place, measured now if None. steps: that are
    measured. timeout_s: without progress after which a rank counts as hung, and for the capture in all. values: policy of the
    capture."""

    on: Literal["local", "netlab"] = "local"
    cluster: str | None = None
    ranks: int | None = None
    steps: int = 10
    timeout_s: float = 120.0
    interface: str | None = None
    values: str = "balanced"


@dataclass(frozen=True)
class ScriptFiles:
    """Where files are written: the capture, and the description of the place."""

    capture: Path
    cluster: Path


def reconcile_script(
    started: ScriptCommand, options: ScriptOptions, files: ScriptFiles, progress: Callable[[str], None]
) -> ReconciledCase:
    """Reconciles a script. Raises InputError and RunError in one sentence."""
    ranks = options.ranks or started.ranks
    if ranks is None:
        raise InputError("give the number of ranks: --ranks 2")
    if not 1 <= ranks <= MOST_RANKS:
        raise InputError(f"--ranks {ranks}: 1 to {MOST_RANKS} can run on one machine")
    return _Reconciliation(started, options, ranks, files, progress).case()


class _Reconciliation:
    """The reconciliation of one script."""

    def __init__(
        self, started: ScriptCommand, options: ScriptOptions, ranks: int, files: ScriptFiles, progress: Callable[[str], None]
    ) -> None:
        self._script, self._options, self._ranks = started.script, options, ranks
        self._files, self._progress = files, progress
        # a host of a lab has one device
        self._per_node = min(started.ranks_per_node or ranks, ranks) if options.on == "local" else 1
        self._device = this_machine.properties(ranks)

    def case(self) -> ReconciledCase:
        """Predicts and measures. What fails early comes first."""
        options = self._options
        job = CaptureJob(
            self._script, self._ranks, self._per_node, self._device, _CAPTURED_STEPS, options.values, keeps_calls=True
        )
        settings = CaptureOptions(self._device.name, None, options.timeout_s)
        captured, _, calls = capture_with_calls(job, settings, self._progress)
        name = options.cluster or str(self._files.cluster)
        if options.cluster is None:
            this_machine.describe(options.on, self._ranks, self._files.cluster, options.timeout_s, self._progress)
        cluster = load_cluster(name)

        def timed() -> Capture:
            return with_times(captured, calls, cluster.device.name, options.timeout_s, self._progress)

        def scenario(one: Capture) -> Scenario:
            one.write(self._files.capture)
            return load(str(self._files.capture), {"cluster": name} | _missing_rates(cluster))

        before = timed()
        with self._place(cluster) as place, temporary_folder() as folder:
            measured = self._measured(scenario(before), captured, place, folder)
        # the speed of a shared machine drifts
        described = scenario(between(before, timed()))
        self._progress(f"predicting {self._script.target}")
        return ReconciledCase(described, predict(described), measured)

    def _measured(self, scenario: Scenario, captured: Capture, place: ScriptPlace, folder: Path) -> Run:
        """The measured run, with the peak memory that a second, shorter run counts."""
        options, target = self._options, self._script.target
        job = ScriptRun(
            self._script, self._ranks, self._per_node, self._device, options.steps, WARMUP_STEPS, place.address,
            self._port(), folder,
        )  # fmt: skip
        total = options.steps + WARMUP_STEPS

        def report(step: int) -> None:
            self._progress(f"running {target}: step {max(0, step)} of at most {total}")

        runs: list[Run] = []
        # a script that ends before enough steps is run again
        while sum(len(run.step_times_s) for run in runs) < options.steps and len(runs) < _MOST_RUNS:
            report(0)
            again = replace(job, port=self._port())
            runs.append(measured_run(scenario, captured, run_script(again, place, options.timeout_s, report), place, again))
        run = mean_of(runs)
        self._progress(f"running {target} again, counting its memory")
        counted = replace(job, steps=_COUNTED_STEPS, profiles_memory=True, port=self._port())
        peak_bytes = peak_memory_bytes(run_script(counted, place, options.timeout_s, lambda _: None), job.warmup)
        provenance = {**run.provenance, "runs": str(len(runs)), "replaced": REPLACED}
        return replace(run, memory_bytes_per_rank=peak_bytes, memory_bytes={"allocated": peak_bytes}, provenance=provenance)

    def _port(self) -> int:
        return free_port() if self._options.on == "local" else _LAB_PORT

    @contextmanager
    def _place(self, cluster: Cluster) -> Iterator[ScriptPlace]:
        """The hosts of the ranks."""
        if self._options.on == "local":
            yield ScriptPlace("local", [Host(interface=self._options.interface or LOOPBACK)] * self._ranks)
            return
        from scaleproof.validator.netlab.lab import Netlab

        with Netlab(cluster.model_copy(update={"nodes": self._ranks})) as lab:
            hosts = [Host(lab.namespace(rank), lab.interface) for rank in range(self._ranks)]
            yield ScriptPlace("netlab", hosts, lab.address(0))


def _missing_rates(cluster: Cluster) -> dict[str, str]:
    """Peak rates of precisions that a processor computes in another one."""
    known = cluster.device.peak_flops
    return {f"cluster.device.peak.{name}": f"{known['fp32'] / 1e9:g} GFLOP/s" for name in _PRECISIONS if name not in known}
