"""Seconds of a capture's operators on this machine, by replays of each class on as many cores as ranks would use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from scaleproof.simulator.captured.record import Capture
from scaleproof.validator.capture.capture import Calls
from scaleproof.validator.launch.job import Host
from scaleproof.validator.launch.launch import LocalRanks, run_on_ranks, temporary_folder
from scaleproof.validator.record.cpu_usage import usable
from scaleproof.validator.script_runs.replay import mean_by_key, replay_here, write

# Seconds for the replays of each class, if fewer steps than the most do not take less.
_BUDGET_S: Final = 8.0


def with_times(
    capture: Capture, calls: Sequence[Calls], device: str, timeout_s: float, progress: Callable[[str], None]
) -> Capture:
    """The capture with seconds of its operators on this machine, whose device has a name. Raises RankError."""
    concurrent = min(capture.world_size, len(usable()))
    keys: list[tuple[str, float]] = []
    with temporary_folder() as folder:
        for number, (one, own) in enumerate(zip(capture.classes, calls, strict=True)):
            progress(f"timing operators of {one.name}")
            path = Path(folder) / f"calls-{number}"
            write(one, own, path)
            ranks = LocalRanks([Host()] * concurrent)
            results = run_on_ranks(replay_here, ranks, str(path), _BUDGET_S, timeout_s=timeout_s)
            for rows in zip(*results, strict=True):
                keys.append((one.operator_key(int(rows[0][0])), float(np.mean([seconds for _, seconds in rows]))))
    return replace(capture, timed_on=device, timed_s=mean_by_key(iter(keys)))
