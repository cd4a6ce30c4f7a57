"""Running of planned probes one after the other; a failed probe does not end the calibration."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scaleproof.simulator.common.errors import RankError
from scaleproof.validator.calibration.plan import Task
from scaleproof.validator.calibration.sites import Site
from scaleproof.validator.launch.rank_environment import ContactLostError
from scaleproof.validator.probe.points import FAILED, Point

Progress = Callable[[str], None]


@dataclass
class Probed:
    """points: of all probes that ended, and for each that failed one without times that gives the reason. took_s: by probe."""

    points: list[Point] = field(default_factory=list)
    took_s: dict[str, float] = field(default_factory=dict)


def probe(tasks: Sequence[Task], site: Site, timeout_s: float, progress: Progress) -> Probed:
    """Runs the tasks in order. Stops after a task whose ranks no longer respond, because none are left to run the rest."""
    probed = Probed()
    for task in tasks:
        progress(task.what)
        begin_s = time.monotonic()
        try:
            # waiting for one another counts as no progress and may last for the whole budget
            within_s = timeout_s + task.budget_s
            rows = site.run(task.function, *task.arguments, task.budget_s, ranks=task.ranks, timeout_s=within_s)
            probed.points += [Point.of(row) for row in rows or ()]
        except RankError as error:
            probed.points.append(Point(task.name, task.what, "", (), "", 0.0, "", (), f"{FAILED}: {error}"))
            if isinstance(error, ContactLostError):
                break
        probed.took_s[task.name] = probed.took_s.get(task.name, 0.0) + time.monotonic() - begin_s
    return probed
