"""Shares: how the time of a history divides, for any interval between checkpoints."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.goodput.failure_history import DOWN, History
from scaleproof.simulator.analysis.goodput.renewal import Times

Floats = NDArray[np.float64]

# all of the time
PARTS: Final = (
    "useful", "checkpoints", "lost work", "detection", "restart", "waiting for nodes", "fewer workers", "planned stops",
)  # fmt: skip


class Shares:
    """Of a history, by sample."""

    def __init__(self, history: History, times: Times) -> None:
        self.history, self.times = history, times

    def useful(self, interval_s: float) -> Floats:
        """The effective training time ratio: work that is kept, as the time that all workers would take for it."""
        work_s, _ = self._pieces(interval_s)
        return self._sum(work_s * self.history.speed)

    def parts(self, interval_s: float) -> dict[str, Floats]:
        """All parts, which add up to one."""
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
        found: Floats = np.bincount(self.history.sample, pieces_s, self.history.samples) / self.history.end_s
        return found

    def _pieces(self, interval_s: float) -> tuple[Floats, Floats]:
        """Seconds of each piece in which work is done that is kept, and that saving it costs.

        Pieces begin with a checkpoint that counts. After `interval_s` of training the next is begun, and so on each period.
        """
        times, history = self.times, self.history
        period_s = times.period_s(interval_s)
        beyond_s = history.length_s - interval_s
        begun = np.maximum(0.0, np.floor(beyond_s / period_s) + 1)
        # of the last that was begun
        since_s = np.where(begun > 0, beyond_s - (begun - 1) * period_s, 0.0)
        written = np.maximum(0.0, begun - (since_s < times.stall_s + times.writing_s))
        last_s = np.minimum(since_s, times.stall_s)
        last_s += times.slowdown * np.clip(since_s - times.stall_s, 0.0, times.writing_s)
        all_s = np.maximum(0.0, begun - 1) * times.cost_s + last_s
        saving_s = np.where(history.lost, written * times.cost_s, all_s)
        work_s = np.where(history.lost, written * interval_s, history.length_s - all_s)
        return work_s, saving_s
