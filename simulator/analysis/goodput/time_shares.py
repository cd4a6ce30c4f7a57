"""TimeShares of a failure history's time by use and loss, for any checkpoint interval."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.goodput.failure_history import DOWN, FailureHistory
from scaleproof.simulator.analysis.goodput.renewal import InterruptionTimes

Floats = NDArray[np.float64]

# the parts of the time, which add up to all of it
PARTS: Final = (
    "useful", "checkpoints", "lost work", "detection", "restart", "waiting for nodes", "fewer workers", "planned stops",
)  # fmt: skip


class TimeShares:
    """TimeShares of the time of a failure history, by sample, arrays of shape (samples,)."""

    def __init__(self, history: FailureHistory, times: InterruptionTimes) -> None:
        self.history, self.times = history, times

    def useful(self, interval_s: float) -> Floats:
        """The effective training time ratio: the time that all workers would need for the work that is kept, over all time."""
        work_s, _ = self._pieces(interval_s)
        return self._sum(work_s * self.history.speed)

    def parts(self, interval_s: float) -> dict[str, Floats]:
        """TimeShares of all parts of the time, which add up to 1."""
        history = self.history
        work_s, saving_s = self._pieces(interval_s)
        down = dict(zip(DOWN, history.down_s / history.end_s, strict=True))
        shares = {
            "useful": self._sum(work_s * history.speed),
            "checkpoints": self._sum(saving_s) + down["saving"],
            "lost work": self._sum(history.length_s - work_s - saving_s),
            "detection": down["detection"],
            "restart": down["restart"],
            "waiting for nodes": down["waiting"],
            "fewer workers": self._sum(work_s * (1 - history.speed)),
            "planned stops": down["planned"],
        }
        return {name: shares[name] for name in PARTS}

    def _sum(self, pieces_s: Floats) -> Floats:
        shares: Floats = np.bincount(self.history.sample, pieces_s, self.history.samples) / self.history.end_s
        return shares

    def _pieces(self, interval_s: float) -> tuple[Floats, Floats]:
        """Seconds of kept work, and seconds spent on saving, of each piece; both of shape (pieces,).

        A piece starts at a valid checkpoint. The next checkpoint starts after `interval_s` of training, and so on each period.
        """
        times, history = self.times, self.history
        period_s = times.period_s(interval_s)
        beyond_s = history.length_s - interval_s
        begun = np.maximum(0.0, np.floor(beyond_s / period_s) + 1)
        # since the start of the last checkpoint
        since_s = np.where(begun > 0, beyond_s - (begun - 1) * period_s, 0.0)
        written = np.maximum(0.0, begun - (since_s < times.stall_s + times.writing_s))
        last_s = np.minimum(since_s, times.stall_s)
        last_s += times.slowdown * np.clip(since_s - times.stall_s, 0.0, times.writing_s)
        all_s = np.maximum(0.0, begun - 1) * times.cost_s + last_s
        saving_s = np.where(history.lost, written * times.cost_s, all_s)
        work_s = np.where(history.lost, written * interval_s, history.length_s - all_s)
        return work_s, saving_s
