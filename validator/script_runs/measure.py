"""Runs a script for real, one process per rank, and returns the measured Run."""

from __future__ import annotations

import json
import socket
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from scaleproof.simulator.captured.groups import COLLECTIVES, GroupRoles
from scaleproof.simulator.captured.record import Capture
from scaleproof.simulator.common.communication import UNKNOWN, Collective, Dimension, number_of
from scaleproof.simulator.common.errors import RankError, RunError
from scaleproof.simulator.run.records import CommunicationPart
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.capture.failures import sentence
from scaleproof.validator.launch.job import Host
from scaleproof.validator.launch.launch import JobOptions, LocalRanks, RankResult
from scaleproof.validator.record.assemble import finished_steps, gathered
from scaleproof.validator.record.recorder import RAW_SPAN
from scaleproof.validator.results import stamped
from scaleproof.validator.script_runs import rank
from scaleproof.validator.script_runs.rank import ScriptRun

# Steps before the measured ones: the first allocates states of optimizers, and reducers rebuild their buckets after it.
WARMUP_STEPS: Final = 2
_FEWEST_STEPS: Final = 1
_SEND: Final = "send"
_HINT: Final = "it ran with real values, which captures do not have; start it with torchrun to see what it prints"


@dataclass(frozen=True)
class ScriptPlace:
    """Where ranks run: the host of each, the address of rank 0 among them, and its name, local or netlab."""

    on: str
    hosts: Sequence[Host]
    address: str = "127.0.0.1"


def run_script(job: ScriptRun, place: ScriptPlace, timeout_s: float, progress: Callable[[int], None]) -> list[RankResult]:
    """Runs a script on ranks until it has taken the steps that are measured, or ends. Raises RunError in one sentence."""
    try:
        return LocalRanks(place.hosts).run(rank.run, (job,), JobOptions(timeout_s, progress=progress))
    except RankError as error:
        raise RunError(_why(job, error)) from None


def _why(job: ScriptRun, error: RankError) -> str:
    """Why ranks failed: the script's own error on the rank that failed first, not on those that waited for it."""
    failures = [json.loads(path.read_bytes()) for path in job.folder.glob(rank.FAILURE.format("*"))]
    own = sorted((one for one in failures), key=lambda one: (one["by_peer"], one["rank"]))
    if not own:
        return f"{job.script.target}: {error}"
    return sentence(job.script.target, own[0], _HINT)


def mean_of(runs: Sequence[Run]) -> Run:
    """The run with the mean times of several runs of the same steps; spans are those of the first."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    return replace(
        first,
        step_time_s=statistics.fmean(run.step_time_s for run in runs),
        step_times_s=tuple(seconds for run in runs for seconds in run.step_times_s),
        step_time_interval_s=None,
        phase_s=_mean([run.phase_s for run in runs]),
        breakdown_s=_mean([run.breakdown_s for run in runs]),
        communication_s=_mean([run.communication_s for run in runs]),
        communication=tuple(_mean_part(part, runs) for part in first.communication),
    )


def _mean(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.fmean(one[name] for one in each) for name in each[0]}


def _mean_part(part: CommunicationPart, runs: Sequence[Run]) -> CommunicationPart:
    same = [one for run in runs for one in run.communication if one.label == part.label]
    time_s, exposed_s = (statistics.fmean(getattr(one, name) for one in same) for name in ("time_s", "exposed_s"))
    return replace(part, time_s=time_s, exposed_s=exposed_s)


def peak_memory_bytes(ended: Sequence[RankResult], warmup: int) -> float:
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


def measured_run(scenario: Scenario, capture: Capture, ended: Sequence[RankResult], place: ScriptPlace, job: ScriptRun) -> Run:
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


class Labels:
    """Names communication by the groups of a capture."""

    def __init__(self, capture: Capture) -> None:
        self._classes = [(one, GroupRoles.from_ranks(one)) for one in capture.classes]

    def of(self, recorded: bytes, kinds: Sequence[Sequence[Any]]) -> bytes:
        """The recorded rows of RAW_SPAN, whose column `communication` is an index of kinds, with their numbers instead.

        kinds: operation, ranks of the group and its description, see `CollectiveKind`.
        """
        numbers = np.array([*(self._number(*kind) for kind in kinds), UNKNOWN], dtype=np.int16)
        rows = np.frombuffer(recorded, dtype=RAW_SPAN).copy()
        rows["communication"] = numbers[rows["communication"]]
        return rows.tobytes()

    def _number(self, op: str, ranks: Sequence[int], description: str) -> int:
        if op == _SEND:
            return number_of(Dimension.PIPELINE, Collective.SEND)
        known = COLLECTIVES[op]
        for one, roles in self._classes:
            for index, group in enumerate(one.groups):
                if list(group.ranks) == list(ranks) and group.description == description:
                    return number_of(roles.dimension(index, known), Collective.of(known))
        # a group of ranks that are equivalent to captured ones
        similar = (
            (index, roles)
            for one, roles in self._classes
            for index, group in enumerate(one.groups)
            if (len(group.ranks), group.description) == (len(ranks), description)
        )
        index, roles = next(similar, (-1, self._classes[0][1]))
        return number_of(roles.dimension(index, known), Collective.of(known))
