"""sensitivity: elasticities of the throughput with respect to the cluster's parameters, the batch and the number of servers.

An elasticity is the relative change of the throughput per relative change of the parameter, by central differences: both a
slightly lower and a slightly higher value are predicted. A step time is homogeneous of degree one in the slowdown factors of
everything that takes time, so that their elasticities add up to 1 (Euler); the rest follows from other quantities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from scaleproof.simulator.analysis.sensitivity.elasticity import STEP, Estimate, FiniteDifferences
from scaleproof.simulator.analysis.sensitivity.parameters import PARAMETERS, StepParameter
from scaleproof.simulator.analysis.study.evaluate import Row
from scaleproof.simulator.common.errors import naming_extras
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.common.units import format_percent
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import Batch

if TYPE_CHECKING:
    import pandas as pd


class Elasticity(Record):
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


class Sensitivity(Record):
    """A scenario's elasticities. samples_per_s, warnings: of its prediction. cluster: of the parameters of the cluster, of data
    loading and of the host process. training: of the batch and the servers."""

    derived: ClassVar = ("bottleneck", "rest")

    scenario: str
    strategy: str
    ranks: int
    framework: str
    framework_is_default: bool
    samples_per_s: float
    warnings: tuple[str, ...] = ()
    cluster: tuple[Elasticity, ...]
    training: tuple[Elasticity, ...]

    def __repr__(self) -> str:
        by_size = sorted((one for one in self.cluster if one.value), key=lambda one: -abs(one.value or 0.0))
        lines = [f"  {one.name} ({one.says}): {one.value:.2f}" for one in by_size[:3]]
        return "\n".join([f"{self.scenario}: elasticities of the throughput, the largest of the cluster", *lines])

    @property
    def bottleneck(self) -> str | None:
        """The name of the parameter of the hardware that accounts for the largest share of the step; None where none does."""
        return self.largest.name if self.largest else None

    @property
    def largest(self) -> Elasticity | None:
        """The elasticity of the bottleneck."""
        effective = [one for one in self.cluster if one.share > 0]
        return max(effective, key=lambda one: one.share, default=None)

    @property
    def rest(self) -> float:
        """The share of the step that does not follow from the cluster's parameters here."""
        return 1 - sum(abs(one.share) for one in self.cluster)

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per parameter; elasticities have no unit."""
        import pandas as pd

        rows = [one.to_dict() for one in (*self.cluster, *self.training)]
        return pd.DataFrame(rows).rename(columns={"value": "elasticity"}).set_index("name")


def sensitivity(scenario: Scenario) -> Sensitivity:
    """Elasticities of the scenario's throughput. Raises what `predict` raises."""
    differences = FiniteDifferences(scenario)
    listed = [one for one in PARAMETERS if one.is_always_listed or one.is_given(scenario)]
    found = differences.elasticities([one for one in listed if not one.idle(scenario)])
    run = differences.run
    return Sensitivity(
        scenario=run.scenario,
        strategy=run.strategy,
        ranks=run.ranks,
        framework=run.framework,
        framework_is_default=run.framework_is_default,
        samples_per_s=run.samples_per_s,
        warnings=run.warnings,
        cluster=tuple(_elasticity(one, differences, found.get(one.name)) for one in listed),
        training=(_batch_elasticity(differences), _server_elasticity(differences)),
    )


def _elasticity(parameter: StepParameter, differences: FiniteDifferences, found: Estimate | None) -> Elasticity:
    """The elasticity with respect to a parameter. found: None where the parameter has no effect."""
    scenario = differences.scenario
    known = partial(Elasticity, name=parameter.name, field=parameter.field(scenario), says=parameter.says(scenario))
    if found is None:
        return known(value=None, how=parameter.idle(scenario))
    value, low, high = found
    how = f"{format_percent(differences.step, 0)} less and more"
    costs_at = differences.tolerance(parameter)
    return known(value=value, how=how, low=low, high=high, costs_at=costs_at, sign=parameter.sign)


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
    name = f"samples a {'worker' if field == 'per_worker' else 'step'}"
    known = partial(Elasticity, name=name, field=f"batch.{field}", says=f"{samples * factor:,}")
    rows = differences.rows([partial(_with_batch, scenario, **{field: number}) for number in (low, high)])
    return _between(known, (low, high), rows, f"from {low:,} to {high:,}", "another batch is not valid")


def _with_batch(scenario: Scenario, **batch: int) -> Scenario:
    return scenario.rebuilt(batch=Batch(**batch))


def _server_elasticity(differences: FiniteDifferences) -> Elasticity:
    """The elasticity with respect to the number of servers, by one more; it gets a new node if the cluster has no room left."""
    scenario = differences.scenario
    strategy, cluster, servers = scenario.strategy, scenario.cluster, scenario.strategy.servers
    known = partial(Elasticity, name="servers", field="strategy.servers", says=str(servers) if servers else "–")
    if not servers or "servers" not in type(strategy).model_fields:
        return known(value=None, how="there are no servers")
    more = strategy.model_copy(update={"servers": servers + 1})
    nodes = more.nodes_needed(cluster)
    rows = differences.rows([lambda: scenario, lambda: scenario.rebuilt(strategy=more, cluster=cluster.with_nodes(nodes))])
    how = f"from {servers} to {servers + 1}" + (f", on {nodes} nodes" if nodes > cluster.nodes else "")
    return _between(known, (servers, servers + 1), rows, how, "one more is not valid")


def _between(
    known: Callable[..., Elasticity], numbers: tuple[int, int], rows: Sequence[Row], how: str, refusal: str
) -> Elasticity:
    """The elasticity between two numbers of something that is whole. rows: the prediction with each."""
    few, many = rows
    if problem := few.get("error") or many.get("error"):
        return known(value=None, how=f"{refusal}: {problem}")
    log_ratio = math.log(many["samples_per_s"] / few["samples_per_s"])
    return known(value=log_ratio / math.log(numbers[1] / numbers[0]), how=how)
