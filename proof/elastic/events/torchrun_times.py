"""Times of changes under torchrun: its rules, with times of processes that were measured in other runs.

Unknown instants (when an agent polls, when a heartbeat was sent) are drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.launching import POLL_S as LAUNCHER_POLL_S
from scaleproof.proof.elastic.launching import ProcessTimes
from scaleproof.proof.elastic.measured import Pieces
from scaleproof.proof.elastic.predicted import start_s
from scaleproof.proof.elastic.rendezvous import CACHED_S, POLL_S, PUT_OFF_S, Settings, met_s
from scaleproof.simulator.analysis.elastic.pauses import Pause, RecoveryTimes, Regroup, Saving

_DRAWS: Final = 1000
_SEED: Final = 0
_EDGES: Final = (0.05, 0.95)
Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class TorchrunTimes(RecoveryTimes):
    """Recovery times of a job under torchrun. pieces: of an undisturbed run of as many hosts as the events lead to. alone: of a
    process of the job; agent_s: until an agent has started, both by themselves."""

    job: Job
    settings: Settings
    pieces: Pieces
    alone: ProcessTimes
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
        if change.kind != "join":
            gone_s = self.settings.missing_s - random.uniform(0.0, self.settings.keep_alive_s, _DRAWS)
        if change.kind == "failure":
            # ranks notice when the connections are closed, but not before their own gradients are computed; agents notice
            # when their ranks have ended
            notice_s = max(change.compute_left_s, self.alone.end_s) + self.alone.end_s + looks_s
            noticed_s = notice_s.min(axis=1)
        else:
            # the agent of a host that leaves ends after its rank
            gone_s = gone_s + self.alone.end_s
            notice_s, noticed_s = self.alone.end_s + looks_s, np.zeros(_DRAWS)
        waiting_s = np.array(change.joining_s) + random.uniform(0.0, POLL_S, (_DRAWS, len(change.joining_s)))
        drawn = zip((notice_s + put_off_s).tolist(), gone_s.tolist(), waiting_s.tolist(), strict=True)
        met = np.array([met_s(leave, self.settings, gone, waiting) for leave, gone, waiting in drawn])
        start = start_s(self.job, self.pieces, self.alone, change.hosts) + self.pieces.meet_s - self.pieces.restore_s
        low_s, high_s = (float(np.quantile(met, edge)) + start + self.pieces.restore_s for edge in _EDGES)
        detection_s, formed_s = float(noticed_s.mean()), float(met.mean())
        return Pause(detection_s, formed_s - detection_s, start, self.pieces.restore_s, low_s, high_s)

    def _looks(self, hosts: int, period_s: float) -> Seconds:
        """Draws of when each agent looks, within a period: (draws, hosts)."""
        return np.random.default_rng(_SEED + 1).uniform(0.0, period_s, (_DRAWS, hosts))
