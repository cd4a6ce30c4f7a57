"""sensitivity: elasticities of the throughput with respect to the cluster's parameters, the batch and the number of servers.

An elasticity is the relative change of the throughput per relative change of the parameter, by central differences: both a
slightly lower and a slightly higher value are predicted. A step time is homogeneous of degree one in the slowdown factors of
everything that takes time, so that their elasticities add up to 1 (Euler); the rest follows from other quantities.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from scaleproof.simulator.analysis.sensitivity.elasticity import STEP, FiniteDifferences
from scaleproof.simulator.analysis.sensitivity.parameters import PARAMETERS, StepParameter
from scaleproof.simulator.analysis.study.evaluate import Row
from scaleproof.simulator.common.errors import naming_extras
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Batch

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Elasticity:
    """The elasticity of the throughput with respect to one parameter.

    field: the scenario's field. says: its value there, as text. value: None where the parameter does not apply; `how` says why
    then. how: the values between which the elasticity was computed. low, high: 90 % interval, where it is cheap to compute.
    costs_at: the value at which throughput is 5 % lower, "any" if no value is that slow; None where it is not known. sign: -1
    where a larger value is slower.
    """

    name: str
    field: str
    says: str
    value: float | None
    how: str
    low: float | None = None
    high: float | None = None
    costs_at: str | None = None
    sign: int = 1

    @property
    def share(self) -> float:
        """The share of the step that the parameter accounts for; negative where a slower value shortens the step."""
        return (self.value or 0.0) * self.sign


@dataclass(frozen=True)
class Sensitivity:
    """A scenario's elasticities. cluster: of the parameters of the cluster, of data loading and of the host process. training:
    of the batch and the servers."""

    run: Run
    cluster: tuple[Elasticity, ...]
    training: tuple[Elasticity, ...]

    def __repr__(self) -> str:
        by_size = sorted((one for one in self.cluster if one.value), key=lambda one: -abs(one.value or 0.0))
        lines = [f"  {one.name} ({one.says}): {one.value:.2f}" for one in by_size[:3]]
        return "\n".join([f"{self.run.scenario}: elasticities of the throughput, the largest of the cluster", *lines])

    @property
    def bottleneck(self) -> Elasticity | None:
        """The parameter of the hardware that accounts for the largest share of the step; None where none does."""
        effective = [one for one in self.cluster if one.share > 0]
        return max(effective, key=lambda one: one.share, default=None)

    @property
    def rest(self) -> float:
        """The share of the step that does not follow from the cluster's parameters here."""
        return 1 - sum(abs(one.share) for one in self.cluster)

    def plain(self) -> dict[str, Any]:
        """The elasticities as data for JSON."""
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

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per parameter; elasticities have no unit."""
        import pandas as pd

        rows = [asdict(one) for one in (*self.cluster, *self.training)]
        return pd.DataFrame(rows).rename(columns={"value": "elasticity"}).set_index("name")


def sensitivity(scenario: Scenario) -> Sensitivity:
    """Elasticities of the scenario's throughput. Raises what `predict` raises."""
    differences = FiniteDifferences(scenario)
    cluster = tuple(
        _elasticity(parameter, differences)
        for parameter in PARAMETERS
        if parameter.is_always_listed or parameter.is_given(scenario)
    )
    return Sensitivity(differences.run, cluster, (_batch_elasticity(differences), _server_elasticity(differences)))


def _elasticity(parameter: StepParameter, differences: FiniteDifferences) -> Elasticity:
    scenario = differences.scenario
    label = (parameter.name, parameter.field(scenario), parameter.says(scenario))
    reason = parameter.idle(scenario)
    if reason:
        return Elasticity(*label, None, reason)
    value, low, high = differences.elasticity(parameter)
    how = f"{format_percent(differences.step, 0)} less and more"
    return Elasticity(*label, value, how, low, high, differences.tolerance(parameter), parameter.sign)


def _batch_elasticity(differences: FiniteDifferences) -> Elasticity:
    """The elasticity with respect to the samples of each worker, changed by a multiple of its number of microbatches, or
    by whole microbatches if their size is given."""
    scenario = differences.scenario
    workers, samples = scenario.strategy.workers, scenario.samples_per_worker
    unit = getattr(scenario.strategy, "micro_batch_size", None) or scenario.strategy.microbatches
    by = unit * max(1, round(STEP * samples / unit))
    per_worker = (samples - by if samples > by else samples), samples + by
    field, factor = ("per_worker", 1) if scenario.batch.per_worker else ("total", workers)
    low, high = (number * factor for number in per_worker)
    label = (f"samples a {'worker' if field == 'per_worker' else 'step'}", f"batch.{field}", f"{samples * factor:,}")
    few = differences.variant(lambda: scenario.rebuilt(batch=Batch(**{field: low})))
    many = differences.variant(lambda: scenario.rebuilt(batch=Batch(**{field: high})))
    return _between(label, (low, high), (few, many), f"from {low:,} to {high:,}", "another batch is not valid")


def _server_elasticity(differences: FiniteDifferences) -> Elasticity:
    """The elasticity with respect to the number of servers, by one more; it gets a new node if the cluster has no room left."""
    scenario = differences.scenario
    strategy, cluster, servers = scenario.strategy, scenario.cluster, scenario.strategy.servers
    label = ("servers", "strategy.servers", str(servers) if servers else "–")
    if not servers or "servers" not in type(strategy).model_fields:
        return Elasticity(*label, None, "there are no servers")
    more = strategy.model_copy(update={"servers": servers + 1})
    nodes = more.nodes_needed(cluster)
    few = differences.variant(lambda: scenario)
    many = differences.variant(lambda: scenario.rebuilt(strategy=more, cluster=cluster.with_nodes(nodes)))
    how = f"from {servers} to {servers + 1}" + (f", on {nodes} nodes" if nodes > cluster.nodes else "")
    return _between(label, (servers, servers + 1), (few, many), how, "one more is not valid")


def _between(
    label: tuple[str, str, str], numbers: tuple[int, int], variants: tuple[Row, Row], how: str, refusal: str
) -> Elasticity:
    """The elasticity between two numbers of something that is whole, with the variant of each."""
    few, many = variants
    if problem := few.get("error") or many.get("error"):
        return Elasticity(*label, None, f"{refusal}: {problem}")
    log_ratio = math.log(many["samples_per_s"] / few["samples_per_s"])
    return Elasticity(*label, log_ratio / math.log(numbers[1] / numbers[0]), how)
