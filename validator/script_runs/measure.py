"""Runs a script for real, one process per rank, and returns the measured Run."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.simulator.captured.record import Capture
from scaleproof.simulator.common.errors import RankError, RunError
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.capture.failures import sentence
from scaleproof.validator.launch.job import Host
from scaleproof.validator.launch.launch import Ended, JobOptions, LocalRanks
from scaleproof.validator.record.assemble import finished_steps, gathered
from scaleproof.validator.results import stamped
from scaleproof.validator.script_runs import rank
from scaleproof.validator.script_runs.labels import Labels
from scaleproof.validator.script_runs.rank import ScriptRun

# Steps before the measured ones: the first allocates states of optimizers, and reducers rebuild their buckets after it.
WARMUP_STEPS: Final = 2
_FEWEST_STEPS: Final = 1


@dataclass(frozen=True)
class Place:
    """Where ranks run: the host of each, the address of rank 0 among them, and its name, local or netlab."""

    on: str
    hosts: Sequence[Host]
    address: str = "127.0.0.1"


def run_script(job: ScriptRun, place: Place, timeout_s: float, progress: Callable[[int], None]) -> list[Ended]:
    """Runs a script on ranks until it has taken the steps that are measured, or ends. Raises RunError in one sentence."""
    names: tuple[str, ...] = ()
    try:
        return LocalRanks(place.hosts).run(rank.run, (job,), JobOptions(timeout_s, False, names, progress))
    except RankError as error:
        raise RunError(_why(job, error)) from None


def _why(job: ScriptRun, error: RankError) -> str:
    """Why ranks failed: the script's own error on the rank that failed first, not on those that waited for it."""
    failures = [json.loads(path.read_bytes()) for path in job.folder.glob(rank.FAILURE.format("*"))]
    own = sorted((one for one in failures), key=lambda one: (one["by_peer"], one["rank"]))
    if not own:
        return f"{job.script.target}: {error}"
    return sentence(job.script.target, own[0])


def peak_memory_bytes(ended: Sequence[Ended], warmup: int) -> float:
    """The most bytes that PyTorch had allocated on any rank in the steps after the warm-up."""
    return float(max(max(_of_steps(one.result, warmup)) for one in ended))


def _of_steps(result: Mapping[str, Any], warmup: int) -> Sequence[int]:
    """Peaks between marks of the steps after the warm-up; of the last step if there are no others."""
    each = result["marks"] // max(1, result["steps"])
    peaks: Sequence[int] = result["peaks_bytes"][: result["marks"]]
    return peaks[min(warmup * each, max(0, len(peaks) - each)) :]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def measured_run(scenario: Scenario, capture: Capture, ended: Sequence[Ended], place: Place, job: ScriptRun) -> Run:
    """The Run of what ranks recorded. Raises RunError where the script took too few steps."""
    labels = Labels(capture)
    recorded = [labels.of(one.recorded, one.result["kinds"]) for one in ended]
    steps = finished_steps(recorded)
    if steps < _FEWEST_STEPS:
        took = min(int(one.result["steps"]) for one in ended)
        raise RunError(
            f"{job.script.target}: the script took {took} steps, and the first {job.warmup} are a warm-up; let it take more"
        )
    of = scenario.model_copy(update={"steps": steps})
    run = gathered(of, recorded, [one.result for one in ended])
    return stamped(run, of, place.on)
