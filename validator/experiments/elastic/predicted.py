"""What a fault is predicted to cost, from pieces that were measured apart from the run that it happens in.

Steps take what `predict` says. How long a process takes to start, ranks to make a group, and a checkpoint to be written comes
from processes and runs without a fault; what agents do when, from torchrun's rules and the settings that it is given. Where
that depends on moments that nobody knows (when an agent looks, when a heartbeat was sent), they are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer
from scaleproof.validator.experiments.elastic.job import Job
from scaleproof.validator.experiments.elastic.launching import POLL_S, Kill, ProcessTimes
from scaleproof.validator.experiments.elastic.measured import Pieces
from scaleproof.validator.experiments.elastic.rendezvous import CACHED_S, PUT_OFF_S, Settings, met_s

_DRAWS: Final = 2000
_SEED: Final = 0
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Times:
    """A step as it is predicted. compute_s: from its begin until its ranks have something to say to one another."""

    step_s: float
    compute_s: float


@dataclass(frozen=True)
class Forecast:
    """A fault's cost, drawn many times: each part as `Loss` has it."""

    work_s: Seconds
    detection_s: Seconds
    meeting_s: Seconds
    start_s: Seconds

    @property
    def restart_s(self) -> Seconds:
        return self.meeting_s + self.start_s

    @property
    def all_s(self) -> Seconds:
        return self.work_s + self.detection_s + self.restart_s


def times(scenario: Scenario) -> Times:
    """Of a step, as it is predicted."""
    run = predict(scenario, interval=False)
    return Times(run.step_time_s, run.breakdown_s["compute"])


def start_s(job: Job, pieces: Pieces, alone: ProcessTimes, processes: int) -> float:
    """How long so many take to start at once: they compute all the while and share cores and memory, so that it is between one
    that starts alone and all of the job."""
    share = (processes - 1) / (job.ranks - 1)
    return alone.start_s + share * (pieces.start_s - alone.start_s)


def under_torchrun(job: Job, kill: Kill, settings: Settings, pieces: Pieces, alone: ProcessTimes) -> Forecast:
    """What a killed rank or host costs, by draws of when its agent looks and when the others put off leaving."""
    random = np.random.default_rng(_SEED)
    step = times(job.scenario)
    looks_s = random.uniform(0.0, settings.monitor_s, (_DRAWS, job.ranks))
    put_off_s = random.uniform(0.0, PUT_OFF_S, looks_s.shape)
    # who waits for a dead rank's gradients notices once its connections are closed, and no earlier than it has its own; its
    # agent once it has ended as well
    notice_s = max(step.compute_s, alone.end_s) + alone.end_s + looks_s
    gone_s = np.full(_DRAWS, -np.inf)
    left = np.arange(job.ranks)
    if kill.node:
        left = left[left != kill.host]
        gone_s = settings.missing_s - random.uniform(0.0, settings.keep_alive_s, _DRAWS)
    else:
        own_s = alone.end_s + looks_s[:, kill.host]
        # or it sees that the killed one's agent waits to meet again
        told_s = (own_s + put_off_s[:, kill.host])[:, None] + random.uniform(0.0, CACHED_S, looks_s.shape)
        notice_s = np.minimum(notice_s, told_s)
        notice_s[:, kill.host] = own_s
    notice_s, leave_s = notice_s[:, left], (notice_s + put_off_s)[:, left]
    noticed_s = notice_s.min(axis=1)
    together_s = np.array([met_s(each_s, settings, gone) for each_s, gone in zip(leave_s.tolist(), gone_s, strict=True)])
    start = start_s(job, pieces, alone, len(left)) + pieces.meet_s
    return _forecast(_work_s(job, kill, step), noticed_s, together_s - noticed_s, start)


def supervised(job: Job, kill: Kill, pieces: Pieces, alone: ProcessTimes) -> Forecast:
    """The others wait for who is started again, or it for them: gloo fails what they begin to send to a rank that is gone at
    once, and what was on its way when it went after a time of silence."""
    random = np.random.default_rng(_SEED)
    step = times(job.scenario)
    noticed_s = alone.end_s + random.uniform(0.0, POLL_S, _DRAWS)
    others_s = step.compute_s + (0.0 if alone.end_s < step.compute_s else job.silence_s)
    begin_s = np.maximum(noticed_s + start_s(job, pieces, alone, 1), others_s)
    return _forecast(_work_s(job, kill, step), noticed_s, np.zeros(_DRAWS), begin_s - noticed_s + pieces.meet_s)


def elapsed_s(job: Job, kill: Kill, left: int, pieces: Pieces, fault: Forecast) -> float:
    """The whole run, from its first step. left: ranks that go on after the fault."""
    before, after = times(job.scenario), times(job.by_ranks[left])
    checkpoint = kill.after_step // job.every * job.every
    steps_s = checkpoint * before.step_s + (job.steps - checkpoint) * after.step_s
    saves = (job.steps - 1) // job.every
    return steps_s + saves * _exposed_save_s(job, pieces, before) + float(fault.all_s.mean())


def _work_s(job: Job, kill: Kill, step: Times) -> float:
    return (kill.after_step % job.every) * step.step_s


def _exposed_save_s(job: Job, pieces: Pieces, step: Times) -> float:
    """Servers save while workers compute."""
    hidden_s = step.compute_s if isinstance(job.scenario.strategy, ParameterServer) else 0.0
    return max(0.0, pieces.save_s - hidden_s)


def _forecast(work_s: float, detection_s: Seconds, meeting_s: Seconds, start: float | Seconds) -> Forecast:
    return Forecast(np.full(_DRAWS, work_s), detection_s, meeting_s, np.broadcast_to(start, _DRAWS))
