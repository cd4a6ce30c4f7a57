"""Reconciliation of a script: captures it, runs it for real, predicts the capture, and compares both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.capture.capture import CaptureOptions, capture_with_calls
from scaleproof.validator.capture.command_line import Started
from scaleproof.validator.capture.job import CaptureJob, DeviceProperties
from scaleproof.validator.launch.job import LOOPBACK, Host
from scaleproof.validator.launch.launch import temporary_folder
from scaleproof.validator.launch.preflight.memory_check import MOST_RANKS
from scaleproof.validator.reconciliation.reconcile import ReconciledCase
from scaleproof.validator.script_runs.measure import WARMUP_STEPS, Place, free_port, measured_run, run_script
from scaleproof.validator.script_runs.operator_times import with_times
from scaleproof.validator.script_runs.rank import ScriptRun

_CAPTURED_STEPS: Final = 3
_PRECISIONS: Final = ("fp16", "bf16", "fp64")
_LAB_PORT: Final = 29500
CLUSTERS: Final = {"local": "cpu-2core", "netlab": "netlab-500mbit"}


@dataclass(frozen=True)
class ScriptOptions:
    """How a script is reconciled. on: local or netlab. cluster: name or path of the description of that place. steps: that are
    measured. timeout_s: without progress after which a rank counts as hung, and for the capture in all. out: where the capture
    is written, or None."""

    on: str = "local"
    cluster: str | None = None
    ranks: int | None = None
    steps: int = 10
    timeout_s: float = 120.0
    interface: str | None = None
    values: str = "balanced"


def reconcile_script(started: Started, options: ScriptOptions, file: Path, progress: Callable[[str], None]) -> ReconciledCase:
    """Reconciles a script. file: where its capture is written. Raises InputError and RunError in one sentence."""
    ranks = options.ranks or started.ranks
    if ranks is None:
        raise InputError("give the number of ranks: --ranks 2")
    if not 1 <= ranks <= MOST_RANKS:
        raise InputError(f"--ranks {ranks}: 1 to {MOST_RANKS} can run on one machine")
    name = options.cluster or CLUSTERS[options.on]
    cluster = load_cluster(catalog.find_part("cluster", name, Path()))
    per_node = min(started.ranks_per_node or cluster.node.devices, cluster.node.devices, ranks)
    device = DeviceProperties.of(cluster.device)
    job = CaptureJob(started.script, ranks, per_node, device, _CAPTURED_STEPS, options.values, keeps_calls=True)
    captured, _, calls = capture_with_calls(job, CaptureOptions(cluster.device.name, None, options.timeout_s), progress)
    captured = with_times(captured, calls, cluster.device.name, options.timeout_s, progress)
    captured.write(file)
    scenario = load(str(file), {"cluster": name} | _missing_rates(cluster))
    with _place(options, cluster, ranks, per_node) as place, temporary_folder() as folder:
        port = free_port() if options.on == "local" else _LAB_PORT
        run = ScriptRun(started.script, ranks, per_node, device, options.steps, WARMUP_STEPS, place.address, port, folder)
        progress(f"running {started.script.target} on {ranks} ranks")
        total = options.steps + WARMUP_STEPS
        text = f"running {started.script.target}: step {{}} of at most {total}"
        ended = run_script(run, place, options.timeout_s, lambda step: progress(text.format(max(0, step))))
        measured = measured_run(scenario, captured, ended, place, run)
    progress("predicting")
    return ReconciledCase(scenario, predict(scenario), measured)


def _missing_rates(cluster: Cluster) -> dict[str, str]:
    """Peak rates of precisions that a processor computes in another one."""
    known = cluster.device.peak_flops
    return {f"cluster.device.peak.{name}": f"{known['fp32'] / 1e9:g} GFLOP/s" for name in _PRECISIONS if name not in known}


@contextmanager
def _place(options: ScriptOptions, cluster: Cluster, ranks: int, per_node: int) -> Iterator[Place]:
    """The hosts of the ranks."""
    if options.on == "local":
        yield Place("local", [Host(interface=options.interface or LOOPBACK)] * ranks)
        return
    from scaleproof.validator.netlab.lab import Netlab

    with Netlab(cluster.model_copy(update={"nodes": -(-ranks // per_node)})) as lab:
        lab.self_test()
        hosts = [Host(lab.namespace(rank // per_node), lab.interface) for rank in range(ranks)]
        yield Place("netlab", hosts, lab.address(0))
