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
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.apart import Together
from simulator.cluster import Cluster
from simulator.errors import FieldError
from simulator.knobs import KNOBS, Knob
from simulator.predict import timed
from simulator.run import Run
from simulator.scenario import Batch, Scenario
from simulator.spec import Spec
from simulator.spread import Response, grown_s, normal_draws, replayed_s, responding

if TYPE_CHECKING:
    import pandas as pd

Times = NDArray[np.float64]
S = TypeVar("S", bound=Spec)

# A number is taken so much lower and higher, as a share of it; where events time the steps, whose order changes with it, by
# more. Whole numbers by one, or as many as make about that share.
STEP: Final = 0.02
_EVENTS_STEP: Final = 0.1
_DRAWS: Final = 24
_QUANTILES: Final = (0.05, 0.95)
# Replay leaves out what tasks share: where it tells another elasticity than events do, it tells no interval either.
_CLOSE: Final = 0.03
# Seconds of tasks that are replayed for intervals: each takes 0.2 us on a 2-core virtual machine.
_MOST_REPLAYED: Final = 10_000_000


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
    doubt = _Doubt(scenario)
    found = [_of_knob(scenario, knob, doubt) for knob in KNOBS if knob.is_told(scenario)]
    return Sensitivity(timed(scenario), tuple(found), (_of_batch(scenario), _of_servers(scenario)))


def _of_knob(scenario: Scenario, knob: Knob, doubt: _Doubt) -> Elasticity:
    """By central differences of the logarithms."""
    reason = knob.idle(scenario)
    if reason:
        return Elasticity(knob.name, knob.field(scenario), knob.says(scenario), None, reason)
    step = STEP if doubt.program.is_static else _EVENTS_STEP
    slower, faster = (
        math.log(timed(_on(scenario, knob.slowed(scenario.cluster, slowness))).samples_per_s)
        for slowness in (math.exp(step), math.exp(-step))
    )
    # what does not follow from it follows from it by no more than rounding
    value = round(knob.sign * (faster - slower) / (2 * step), 9) + 0.0
    how = f"{step:.0%} less and more".replace("%", " %")
    return Elasticity(knob.name, knob.field(scenario), knob.says(scenario), value, how, *doubt.interval(knob, value))


def _of_batch(scenario: Scenario) -> Elasticity:
    """By a few samples less and more for each worker, as many as its microbatches allow."""
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
        value = _slope(timed(few).samples_per_s, timed(many).samples_per_s, low, high)
    except FieldError as error:
        return Elasticity(*told, None, f"another batch is not valid: {error}")
    return Elasticity(*told, value, f"from {low * each:,} to {high * each:,}")


def _of_servers(scenario: Scenario) -> Elasticity:
    """By one more, on a node of its own where the cluster has none left for it."""
    strategy, servers = scenario.strategy, scenario.strategy.servers
    told = ("servers", "strategy.servers", str(servers) if servers else "–")
    if not servers or "servers_" not in type(strategy).model_fields:
        return Elasticity(*told, None, "there are no servers")
    more = strategy.model_copy(update={"servers_": servers + 1})
    try:
        cluster = with_nodes(scenario.cluster, more.nodes_needed(scenario.cluster))
        value = _slope(
            timed(scenario).samples_per_s,
            timed(rebuilt(scenario, strategy=more, cluster=cluster)).samples_per_s,
            servers,
            servers + 1,
        )
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


def _on(scenario: Scenario, cluster: Cluster) -> Scenario:
    return scenario.model_copy(update={"cluster": cluster})


def _slope(few: float, many: float, low: float, high: float) -> float:
    return math.log(many / few) / math.log(high / low)


class _Doubt:
    """How elasticities vary with what is uncertain of the cluster: by replay of draws, where the order of tasks is fixed."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.program = scenario.strategy.compile(scenario.job(unevenness=scenario.unevenness))
        replayed = 2 * _DRAWS * len(self.program) * len(KNOBS)
        self.is_cheap = self.program.is_static and not scenario.unevenness.is_random and replayed <= _MOST_REPLAYED

    def interval(self, knob: Knob, value: float) -> tuple[float | None, float | None]:
        """Where an elasticity of that value is with a probability of 90 %; None where it is not cheap to tell."""
        longer_s = self._longer_s(knob) if self.is_cheap else None
        if longer_s is None:
            return None, None
        change = STEP * longer_s[:, None] * self._slownesses.get(knob.quantity, np.ones(1 + _DRAWS))
        slower_s, faster_s = np.split(replayed_s(self.program, np.hstack([self._seconds + change, self._seconds - change])), 2)
        predicted, *drawn = knob.sign * np.log(slower_s / faster_s) / (2 * STEP)
        if abs(predicted - value) > _CLOSE:
            return None, None
        low, high = (np.quantile(drawn, _QUANTILES, method="hazen") + value - predicted).tolist()
        return low, high

    def _longer_s(self, knob: Knob) -> Times | None:
        """How much longer each task takes per slowness of the knob."""
        slower = _on(self.scenario, knob.slowed(self.scenario.cluster, 1 + STEP))
        longer_s = grown_s(self.program, slower.strategy.compile(slower.job(unevenness=slower.unevenness)))
        return None if longer_s is None else longer_s / STEP

    @cached_property
    def _answer(self) -> Response:
        return responding(self.scenario, self.program, least=0.0)

    @cached_property
    def _slownesses(self) -> Mapping[str, Times]:
        """By quantity: as the cluster says, and then of each draw."""
        together = Together(self.scenario, self.scenario, (self._answer.names, ()))
        drawn, _ = together.slownesses(normal_draws(_DRAWS, np.zeros(len(together))))
        return {name: np.append(1.0, slownesses) for name, slownesses in drawn.items()}

    @cached_property
    def _seconds(self) -> Times:
        """Of each task, as predicted, and then for each draw."""
        seconds = np.repeat(self._answer.seconds[:, None], 1 + _DRAWS, axis=1)
        for name, more_s in self._answer.more_s.items():
            seconds += np.outer(more_s, self._slownesses[name] - 1)
        return seconds
