"""Times of changes under each launcher: its rules, with times of processes that were measured in other runs.

Unknown instants (when an agent or the supervisor polls, when a heartbeat was sent) are drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launching import POLL_S as LAUNCHER_POLL_S
from scaleproof.proof.elastic.launching import ProcessTimes
from scaleproof.proof.elastic.rendezvous import CACHED_S, POLL_S, PUT_OFF_S, Settings, met_s
from scaleproof.proof.elastic.undisturbed import Pieces
from scaleproof.simulator.analysis.elastic.pauses import Pause, RecoveryTimes, Regroup, Saving
from scaleproof.simulator.predict import timed

_DRAWS: Final = 1000
_SEED: Final = 0
_EDGES: Final = (0.05, 0.95)
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class ProbedTimes(RecoveryTimes):
    """Recovery times of a job from probes. pieces: of an undisturbed run of as many hosts as the events lead to. alone: of a
    process of the job by itself."""

    job: Job
    pieces: Pieces
    alone: ProcessTimes

    def start_s(self, processes: int) -> float:
        """Seconds for `processes` processes to start concurrently, between those of a process alone and of all of the job,
        because they share cores and memory."""
        share = (processes - 1) / (self.job.ranks - 1)
        return self.alone.start_s + share * (self.pieces.start_s - self.alone.start_s)

    def _restored(self, noticed_s: Seconds, met_at_s: Seconds, started_s: Seconds) -> Pause:
        """The pause whose parts end at these draws; ranks then form a group and restore the state."""
        restore_s, meet_s = self.pieces.restore_s, self.pieces.meet_s - self.pieces.restore_s
        low_s, high_s = (float(np.quantile(started_s, edge)) + self.pieces.meet_s for edge in _EDGES)
        ends_s = [float(one.mean()) for one in (noticed_s, met_at_s, started_s)]
        detection_s, group_s, start_s = np.diff([0.0, *ends_s]).tolist()
        return Pause(detection_s, group_s, start_s + meet_s, restore_s, low_s, high_s)


@dataclass(frozen=True)
class TorchrunTimes(ProbedTimes):
    """Recovery times of a job under torchrun. agent_s: until an agent has started by itself."""

    settings: Settings
    agent_s: float

    @property
    def saving(self) -> Saving:
        """A checkpoint: host 0 writes it, and no other host has to stay for it."""
        return Saving(self.pieces.save_s, by_all=False)

    @property
    def requests_s(self) -> float:
        """Seconds until an agent has started, and delays its first round."""
        return self.agent_s + PUT_OFF_S / 2

    @property
    def reacts_s(self) -> float:
        """Mean seconds until our launcher has passed the notice on; it comes in the step after the one that has ended."""
        return LAUNCHER_POLL_S / 2

    def seen_s(self, hosts: int) -> float:
        """Mean seconds until the first agent sees a waiting host: it looks at a state of up to a second ago."""
        return float(self._looks(hosts, CACHED_S + self.settings.monitor_s).min(axis=1).mean())

    def pause(self, change: Regroup) -> Pause:
        """Duration of a change, by draws."""
        random = np.random.default_rng(_SEED)
        looks_s = self._looks(change.left, self.settings.monitor_s)
        # agents delay leaving only the first round
        put_off_s = random.uniform(0.0, 0.0 if change.number else PUT_OFF_S, looks_s.shape)
        gone_s = np.full(_DRAWS, -np.inf)
        if change.kind in ("failure", "leave"):
            gone_s = self.settings.missing_s - random.uniform(0.0, self.settings.keep_alive_s, _DRAWS)
        notice_s, noticed_s = self.alone.end_s + looks_s, np.zeros(_DRAWS)
        if change.is_failure:
            # ranks notice when the connections are closed, but not before their own gradients are computed; agents notice
            # when their ranks have ended
            notice_s = max(change.compute_left_s, self.alone.end_s) + self.alone.end_s + looks_s
            if change.kind == "crash":
                notice_s = self._notice_crash_s(notice_s, looks_s, put_off_s, random)
            noticed_s = notice_s.min(axis=1)
        else:
            # the agent of a host that leaves ends after its rank
            gone_s = gone_s + self.alone.end_s
        waiting_s = np.array(change.joining_s) + random.uniform(0.0, POLL_S, (_DRAWS, len(change.joining_s)))
        drawn = zip((notice_s + put_off_s).tolist(), gone_s.tolist(), waiting_s.tolist(), strict=True)
        met = np.array([met_s(leave, self.settings, gone, waiting) for leave, gone, waiting in drawn])
        return self._restored(noticed_s, met, met + self.start_s(change.hosts))

    def _notice_crash_s(self, notice_s: Seconds, looks_s: Seconds, put_off_s: Seconds, random: np.random.Generator) -> Seconds:
        """When each agent notices a crash: that of the crashed rank, here the first, looks at its process; the others see that
        their ranks have ended, or that the first agent waits for a new round."""
        own_s = self.alone.end_s + looks_s[:, :1]
        seen_s = own_s + put_off_s[:, :1] + random.uniform(0.0, CACHED_S, looks_s.shape)
        return np.hstack([own_s, np.minimum(notice_s, seen_s)[:, 1:]])

    def _looks(self, hosts: int, period_s: float) -> Seconds:
        """Draws of when each agent looks, within a period: (draws, hosts)."""
        return np.random.default_rng(_SEED + 1).uniform(0.0, period_s, (_DRAWS, hosts))


@dataclass(frozen=True)
class SupervisorTimes(ProbedTimes):
    """Recovery times of a job whose supervisor starts a crashed rank again, while the others wait for it, or it for them."""

    @cached_property
    def _compute_s(self) -> float:
        return float(timed(self.job.scenario).breakdown_s["compute"])

    @property
    def saving(self) -> Saving:
        """A checkpoint: servers save while workers compute."""
        stall_s = max(0.0, self.pieces.save_s - self._compute_s)
        return Saving(stall_s, self.pieces.save_s - stall_s)

    def pause(self, change: Regroup) -> Pause:
        """Duration of a crash, by draws. gloo fails sends to a dead rank at once, and transfers that were in progress after a
        time of silence."""
        noticed_s = self.alone.end_s + np.random.default_rng(_SEED).uniform(0.0, LAUNCHER_POLL_S, _DRAWS)
        in_progress = self.alone.end_s >= change.compute_left_s
        others_s = change.compute_left_s + (self.job.silence_s if in_progress else 0.0)
        return self._restored(noticed_s, noticed_s, np.maximum(noticed_s + self.start_s(1), others_s))
