"""Prediction of a fault's cost, from times measured in other runs.

Step times come from `predict`. Times of starting a process, forming a group and writing a checkpoint are those of processes and
runs without a fault; the actions of agents follow from torchrun's rules and settings. Unknown instants (when an agent polls,
when a heartbeat was sent) are drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launching import POLL_S, Kill, ProcessTimes
from scaleproof.proof.elastic.measured import Pieces
from scaleproof.proof.elastic.rendezvous import CACHED_S, PUT_OFF_S, Settings, met_s
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario

_DRAWS: Final = 2000
_SEED: Final = 0
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class StepForecast:
    """Predicted seconds of a step. compute_s: from its beginning until its ranks communicate."""

    step_s: float
    compute_s: float


@dataclass(frozen=True)
class FaultForecast:
    """Draws of a fault's cost in seconds: the parts of `Loss`, shape (draws,) each."""

    work_s: Seconds
    detection_s: Seconds
    meeting_s: Seconds
    start_s: Seconds

    @property
    def restart_s(self) -> Seconds:
        """Seconds of the restart: rendezvous and start of processes."""
        return self.meeting_s + self.start_s

    @property
    def all_s(self) -> Seconds:
        """Seconds lost in all."""
        return self.work_s + self.detection_s + self.restart_s


def times(scenario: Scenario) -> StepForecast:
    """Predicted times of a step."""
    run = predict(scenario, interval=False)
    return StepForecast(run.step_time_s, run.breakdown_s["compute"])


def start_s(job: Job, pieces: Pieces, alone: ProcessTimes, processes: int) -> float:
    """Seconds for `processes` processes to start concurrently, between those of a process alone and of all of the job, because
    they share cores and memory."""
    share = (processes - 1) / (job.ranks - 1)
    return alone.start_s + share * (pieces.start_s - alone.start_s)


def under_torchrun(job: Job, kill: Kill, settings: Settings, pieces: Pieces, alone: ProcessTimes) -> FaultForecast:
    """Cost of a killed rank or host, by draws of when agents poll and of how long they delay leaving the round."""
    random = np.random.default_rng(_SEED)
    step = times(job.scenario)
    looks_s = random.uniform(0.0, settings.monitor_s, (_DRAWS, job.ranks))
    put_off_s = random.uniform(0.0, PUT_OFF_S, looks_s.shape)
    # a rank that waits for a dead rank's gradients notices when the connections are closed, but not before its own gradients
    # are computed; its agent notices when the rank has ended
    notice_s = max(step.compute_s, alone.end_s) + alone.end_s + looks_s
    gone_s = np.full(_DRAWS, -np.inf)
    left = np.arange(job.ranks)
    if kill.node:
        left = left[left != kill.host]
        gone_s = settings.missing_s - random.uniform(0.0, settings.keep_alive_s, _DRAWS)
    else:
        own_s = alone.end_s + looks_s[:, kill.host]
        # or the agent sees that the killed rank's agent waits for a new round
        seen_s = (own_s + put_off_s[:, kill.host])[:, None] + random.uniform(0.0, CACHED_S, looks_s.shape)
        notice_s = np.minimum(notice_s, seen_s)
        notice_s[:, kill.host] = own_s
    notice_s, leave_s = notice_s[:, left], (notice_s + put_off_s)[:, left]
    noticed_s = notice_s.min(axis=1)
    met_at_s = np.array([met_s(host_s, settings, gone) for host_s, gone in zip(leave_s.tolist(), gone_s, strict=True)])
    start = start_s(job, pieces, alone, len(left)) + pieces.meet_s
    return _forecast(_work_s(job, kill, step), noticed_s, met_at_s - noticed_s, start)


def supervised(job: Job, kill: Kill, pieces: Pieces, alone: ProcessTimes) -> FaultForecast:
    """Cost of a killed rank that the supervisor restarts, while the others wait for it, or it for them. gloo fails sends to a
    dead rank at once, and transfers that were in progress after a time of silence."""
    random = np.random.default_rng(_SEED)
    step = times(job.scenario)
    noticed_s = alone.end_s + random.uniform(0.0, POLL_S, _DRAWS)
    others_s = step.compute_s + (0.0 if alone.end_s < step.compute_s else job.silence_s)
    begin_s = np.maximum(noticed_s + start_s(job, pieces, alone, 1), others_s)
    return _forecast(_work_s(job, kill, step), noticed_s, np.zeros(_DRAWS), begin_s - noticed_s + pieces.meet_s)


def elapsed_s(job: Job, kill: Kill, left: int, pieces: Pieces, fault: FaultForecast) -> float:
    """Seconds of the whole run from its first step. left: number of ranks that continue after the fault."""
    before, after = times(job.scenario), times(job.by_ranks[left])
    checkpoint = kill.after_step // job.every * job.every
    steps_s = checkpoint * before.step_s + (job.steps - checkpoint) * after.step_s
    saves = (job.steps - 1) // job.every
    return steps_s + saves * _exposed_save_s(job, pieces, before) + float(fault.all_s.mean())


def _work_s(job: Job, kill: Kill, step: StepForecast) -> float:
    return (kill.after_step % job.every) * step.step_s


def _exposed_save_s(job: Job, pieces: Pieces, step: StepForecast) -> float:
    """Seconds that a checkpoint adds to the run; servers save while workers compute."""
    hidden_s = step.compute_s if isinstance(job.scenario.strategy, ParameterServer) else 0.0
    return max(0.0, pieces.save_s - hidden_s)


def _forecast(work_s: float, detection_s: Seconds, meeting_s: Seconds, start: float | Seconds) -> FaultForecast:
    return FaultForecast(np.full(_DRAWS, work_s), detection_s, meeting_s, np.broadcast_to(start, _DRAWS))
