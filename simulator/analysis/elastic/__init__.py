"""elastic: training along events of single hosts (failures, spot interruptions, hosts that join), by their times.

Training goes from event to event. A failure loses the work since the last checkpoint that counts. Before a host joins, or goes
with enough notice, ranks hand over: they save at the end of their step. Then hosts form a new group, start processes and
restore the state. What happens in such a pause begins it again, except that hosts which ask before the group is formed join it.
"""

from __future__ import annotations

from scaleproof.simulator.analysis.elastic.event_simulation import EventSimulation
from scaleproof.simulator.analysis.elastic.pauses import RecoveryTimes, StatedTimes
from scaleproof.simulator.analysis.elastic.sizes import EventJob
from scaleproof.simulator.analysis.elastic.timeline import ElasticTimeline
from scaleproof.simulator.scenario.schema import Scenario

__all__ = ["elastic"]


def elastic(scenario: Scenario, times: RecoveryTimes | None = None) -> ElasticTimeline:
    """The predicted timeline of a scenario with events. times: those that the scenario states if None.

    Raises FieldError for events that cannot occur, InputError for those that training does not reach.
    """
    job = EventJob(scenario)
    return EventSimulation(job, times or StatedTimes(job)).timeline()
