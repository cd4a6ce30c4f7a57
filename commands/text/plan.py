"""Console text of plans: the best configurations of one number of GPUs, or the best plan of each of several."""

from __future__ import annotations

from collections.abc import Sequence

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions import plans as descriptions
from scaleproof.simulator.analysis.planner.record import PlanRecord


def describe(plans: Sequence[PlanRecord]) -> str:
    """Console text of the plan of one number of GPUs; of several, with the answer at the end."""
    found = descriptions.describe(plans)
    return described(found, [found.finding] if len(plans) > 1 else [])
