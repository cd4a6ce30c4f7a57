"""Constants that a fit learns: how each is read from a scenario and changed in it, and its prior.

`CONSTANTS` is the one list. A constant that is added there needs an entry in `scenarios/uncertainty/fit_priors.yaml` and
nothing else: posterior, file, page and next run follow from the list.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, slowed
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.units import format_percent, format_time_s, parse_time_s
from scaleproof.simulator.scenario.schema import Scenario

FILE: Final = catalog.ROOT / "uncertainty" / "fit_priors.yaml"


@dataclass(frozen=True)
class FittedConstant:
    """A constant that runs teach. meaning: in words. value: in a scenario; None where the scenario lacks it. changed: the
    scenario with another value. quantity: the cluster's uncertain quantity whose interval it decides; "" for none. factor: that
    of its prior, where clusters know less than the data file says; else 0."""

    name: str
    meaning: str
    value: Callable[[Scenario], float | None]
    changed: Callable[[Scenario, float], Scenario]
    format: Callable[[float], str] = "{:.3g}".format
    quantity: str = ""
    factor: float = 0.0

    def __reduce__(self) -> tuple[Callable[[str, float], FittedConstant], tuple[str, float]]:
        """Pickles the name; functions of the table do not pickle."""
        return constant_named, (self.name, self.factor)

    @property
    def prior(self) -> ConstantPrior:
        """The prior of the data file, with the factor of the constant if it has one."""
        prior = priors().constants[self.name]
        return prior._replace(factor=self.factor) if self.factor else prior

    def on(self, clusters: Iterable[Cluster]) -> FittedConstant:
        """The constant on some clusters: its prior is at least as wide as their own uncertainty of its quantity."""
        if not self.quantity:
            return self
        quantity, known = QUANTITIES[self.quantity], self.prior.factor
        least = max((quantity.deviation(one) for one in clusters if quantity.value(one) is not None), default=known)
        return replace(self, factor=least) if least > known else self

    def moved(self, scenario: Scenario, offset: float) -> Scenario:
        """The scenario with the constant this number of prior standard deviations from its value; the same if it lacks it."""
        value = self.value(scenario)
        return scenario if value is None or offset == 0 else self.changed(scenario, self.prior.at(value, offset))


class ConstantPrior(NamedTuple):
    """The prior of a constant. factor: standard deviation of the logarithm of the constant over its shipped value. add_s: scale
    of the seconds in addition to the shipped value. One of both is zero."""

    factor: float
    add_s: float
    reason: str

    def at(self, value: float, offset: float) -> float:
        """The constant this number of prior standard deviations from its shipped value."""
        return max(0.0, value + self.add_s * offset) if self.add_s else value * math.exp(self.factor * offset)

    def least(self, values: Sequence[float]) -> float:
        """The least offset at which none of the values is below zero."""
        return -math.inf if not self.add_s else max(-value / self.add_s for value in values)


class FitPriors(NamedTuple):
    """What a fit assumes before it sees runs; fields as in the data file."""

    noise: float
    noise_runs: float
    tail: float
    repeats: float
    memory_noise: float
    constants: dict[str, ConstantPrior]


@functools.cache
def priors() -> FitPriors:
    """The priors that ship."""
    data: dict[str, Any] = yaml_file.shipped(FILE)
    constants = {
        name: ConstantPrior(float(one.get("factor", 0.0)), parse_time_s(one.get("add", "0 s")), one["reason"])
        for name, one in data["constants"].items()
    }
    numbers = {name: float(value) for name, value in data.items() if name != "constants"}
    return FitPriors(**numbers, constants=constants)


def prior_interval(constant: FittedConstant, value: float) -> tuple[float, float]:
    """The 90 % interval of a constant before any run."""
    return constant.prior.at(value, -DEVIATIONS), constant.prior.at(value, DEVIATIONS)


def _of_framework(
    name: str, meaning: str, field: str, format_value: Callable[[float], str] = "{:.3g}".format, quantity: str = ""
) -> FittedConstant:
    """A number of the framework. field: its path in Python."""
    *parents, last = field.split(".")

    def value(scenario: Scenario) -> float | None:
        part: Any = scenario.framework
        for key in (*parents, last):
            part = getattr(part, key, None)
        # a factor on nothing is nothing
        return float(part) if part or priors().constants[name].add_s else None

    def changed(scenario: Scenario, number: float) -> Scenario:
        update: dict[str, Any] = {last: number}
        for depth in range(len(parents), 0, -1):
            part: Any = scenario.framework
            for key in parents[:depth]:
                part = getattr(part, key)
            update = {parents[depth - 1]: part.model_copy(update=update)}
        return scenario.model_copy(update={"framework": scenario.framework.model_copy(update=update)})

    return FittedConstant(name, meaning, value, changed, format_value, quantity)


def _share(name: str, meaning: str) -> FittedConstant:
    """The share of a link's bandwidth that runs reach, of what the cluster states."""

    def value(scenario: Scenario) -> float | None:
        return None if QUANTITIES[name].value(scenario.cluster) is None else 1.0

    def changed(scenario: Scenario, share: float) -> Scenario:
        return _on(scenario, slowed(scenario.cluster, {name: 1 / share}))

    return FittedConstant(name, meaning, value, changed, functools.partial(format_percent, digits=0), name)


def _latency(name: str, meaning: str, link: str, factors: Sequence[str]) -> FittedConstant:
    """A factor on latencies: of a link, and of the steps of collectives over it. factors: fields of `Adjust`."""

    def value(scenario: Scenario) -> float | None:
        return None if QUANTITIES[f"{link}.bandwidth"].value(scenario.cluster) is None else 1.0

    def changed(scenario: Scenario, factor: float) -> Scenario:
        cluster = scenario.cluster
        if QUANTITIES[f"{link}.latency"].value(cluster) is not None:
            cluster = slowed(cluster, {f"{link}.latency": factor})
        adjust = cluster.collectives.adjust
        scaled = adjust.model_copy(update={field: getattr(adjust, field) * factor for field in factors})
        collectives = cluster.collectives.model_copy(update={"adjust": scaled})
        return _on(scenario, cluster.model_copy(update={"collectives": collectives}))

    return FittedConstant(name, meaning, value, changed, quantity=f"{link}.latency")


def _on(scenario: Scenario, cluster: Cluster) -> Scenario:
    return scenario.model_copy(update={"cluster": cluster})


# The one constant that memory teaches; step times do not depend on it.
MEMORY: Final = _of_framework("memory.scale", "factor on memory", "memory.scale")
CONSTANTS: Final = (
    _of_framework("kernel_scale", "factor on kernel times", "kernel_scale", quantity="device"),
    _of_framework("host_scale", "factor on host times", "host_scale"),
    _of_framework("pipeline_waits.rank", "wait per tensor-parallel rank in pipelines", "pipeline_waits.rank_s", format_time_s),
    _of_framework("message_stall.delay", "delay of messages in jobs of many nodes", "message_stall.delay_s", format_time_s),
    _of_framework("host.microbatch", "time per microbatch in addition", "host.microbatch_s", format_time_s),
    _share("node.link.bandwidth", "share of the bandwidth inside nodes"),
    _share("network.bandwidth", "share of the bandwidth between nodes"),
    _latency("collectives.latency_inside", "factor on latencies inside nodes", "node.link", ("launch", "latency_inside")),
    _latency("collectives.latency_between", "factor on latencies between nodes", "network", ("latency_between",)),
    MEMORY,
)


def constant_named(name: str, factor: float = 0.0) -> FittedConstant:
    """The constant of the table with this name, with a factor of its own if it is above zero."""
    return next(replace(one, factor=factor) if factor else one for one in CONSTANTS if one.name == name)
