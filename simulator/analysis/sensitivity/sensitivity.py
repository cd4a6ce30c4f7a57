"""sensitivity: how much throughput follows from each number of a cluster, from the batch and from the servers there are.

Told as elasticities: by what share the throughput grows for each share by which the number does. Each comes from central
differences: the number is taken a little lower and a little higher, and the steps of both are predicted. Numbers that times
follow from share the step among them (Euler: a time that is homogeneous in slownesses is the sum of each times how fast it
grows with it), so that what is left over follows from something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from scaleproof.simulator.analysis.sensitivity.elasticity import STEP, FiniteDifferences
from scaleproof.simulator.analysis.sensitivity.parameters import KNOBS, Knob
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Batch, Scenario

if TYPE_CHECKING:
    import pandas as pd

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Elasticity:
    """How much the throughput follows from one number: value is its share of growth for each share by which the number grows.

    field: where a scenario says the number; says: what it says there. low, high: between them the elasticity is with a
    probability of 90 %, where that is cheap to tell. how: between which numbers it was found. value is None, and how says why,
    where the number does not apply.
    """

    name: str
    field: str
    says: str
    value: float | None
    how: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Sensitivity:
    """A scenario's elasticities: cluster, of what the cluster's numbers bring; training, of the batch and the servers."""

    run: Run
    cluster: tuple[Elasticity, ...]
    training: tuple[Elasticity, ...]

    @property
    def bottleneck(self) -> Elasticity | None:
        """The number of the cluster that the throughput follows from most; None where it follows from none."""
        found = [one for one in self.cluster if one.value]
        return max(found, key=lambda one: abs(one.value or 0.0), default=None)

    @property
    def rest(self) -> float:
        """The share of the step that follows from none of the cluster's numbers here."""
        return 1 - sum(abs(one.value) for one in self.cluster if one.value is not None)

    def plain(self) -> dict[str, Any]:
        """As data for JSON."""
        return {
            "scenario": self.run.scenario,
            "framework": self.run.framework,
            "framework_is_default": self.run.framework_is_default,
            "samples_per_s": self.run.samples_per_s,
            "bottleneck": self.bottleneck.name if self.bottleneck else None,
            "cluster": [asdict(one) for one in self.cluster],
            "training": [asdict(one) for one in self.training],
            "rest": self.rest,
        }

    def table(self) -> pd.DataFrame:
        """A row for each number; elasticities have no unit."""
        import pandas as pd

        rows = [asdict(one) for one in (*self.cluster, *self.training)]
        return pd.DataFrame(rows).rename(columns={"value": "elasticity"}).set_index("name")


def sensitivity(scenario: Scenario) -> Sensitivity:
    """How much the scenario's throughput follows from each number. Raises as `predict` does."""
    turns = FiniteDifferences(scenario)
    found = [_of_knob(knob, turns) for knob in KNOBS if knob.is_told(scenario)]
    return Sensitivity(turns.run, tuple(found), (_of_batch(turns), _of_servers(turns)))


def _of_knob(knob: Knob, turns: FiniteDifferences) -> Elasticity:
    scenario = turns.scenario
    told = (knob.name, knob.field(scenario), knob.says(scenario))
    reason = knob.idle(scenario)
    if reason:
        return Elasticity(*told, None, reason)
    found = turns.turned(knob)
    how = f"{turns.step:.0%} less and more".replace("%", " %")
    return Elasticity(*told, found.value, how, found.low, found.high)


def _of_batch(turns: FiniteDifferences) -> Elasticity:
    """By a few samples less and more for each worker, as many as its microbatches allow."""
    scenario = turns.scenario
    workers, samples = scenario.strategy.workers, scenario.samples_per_worker
    unit = scenario.strategy.microbatches
    by = unit * max(1, round(STEP * samples / unit))
    low, high = (samples - by if samples > by else samples), samples + by
    field, said = ("per_worker", samples) if scenario.batch.per_worker else ("total", samples * workers)
    name = "samples a worker" if field == "per_worker" else "samples a step"
    each = 1 if field == "per_worker" else workers
    told = (name, f"batch.{field}", f"{said:,}")
    try:
        few, many = (rebuilt(scenario, batch=Batch(**{field: number * each})) for number in (low, high))
        value = _slope(turns.samples_per_s(few), turns.samples_per_s(many), low, high)
    except FieldError as error:
        return Elasticity(*told, None, f"another batch is not valid: {error}")
    return Elasticity(*told, value, f"from {low * each:,} to {high * each:,}")


def _of_servers(turns: FiniteDifferences) -> Elasticity:
    """By one more, on a node of its own where the cluster has none left for it."""
    scenario = turns.scenario
    strategy, servers = scenario.strategy, scenario.strategy.servers
    told = ("servers", "strategy.servers", str(servers) if servers else "–")
    if not servers or "servers_" not in type(strategy).model_fields:
        return Elasticity(*told, None, "there are no servers")
    more = strategy.model_copy(update={"servers_": servers + 1})
    try:
        cluster = with_nodes(scenario.cluster, more.nodes_needed(scenario.cluster))
        larger = rebuilt(scenario, strategy=more, cluster=cluster)
        value = _slope(turns.own_samples_per_s, turns.samples_per_s(larger), servers, servers + 1)
    except FieldError as error:
        return Elasticity(*told, None, f"one more is not valid: {error}")
    grown = f", on {cluster.nodes} nodes" if cluster.nodes > scenario.cluster.nodes else ""
    return Elasticity(*told, value, f"from {servers} to {servers + 1}{grown}")


def rebuilt(scenario: Scenario, **parts: Any) -> Scenario:
    """The scenario with other parts, which it is checked with as one that is loaded is. Raises FieldError."""
    return _rebuilt(scenario, parts)


def with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """The cluster with so many nodes, where it has fewer. Raises FieldError where its topology has no room for them."""
    return cluster if nodes <= cluster.nodes else _rebuilt(cluster, {"nodes": nodes})


def _rebuilt(spec: S, parts: Mapping[str, Any]) -> S:
    return type(spec).model_validate({name: getattr(spec, name) for name in spec.model_fields_set} | dict(parts))


def _slope(few: float, many: float, low: float, high: float) -> float:
    return math.log(many / few) / math.log(high / low)
