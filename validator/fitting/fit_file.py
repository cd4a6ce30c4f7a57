"""The file of a fit: a framework file with the constants that runs taught, and what they changed of the cluster.

It is used like any framework file: `--set framework=NAME.yaml`. The loader applies its mapping `cluster` to scenarios on the
cluster of that name, with intervals of the quantities that runs narrowed and of the model error, so that prediction intervals
are those of the posterior.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES, Interval
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError, UnitError
from scaleproof.simulator.common.units import counted, format_Bps, format_percent, format_time_s, parse_Bps, parse_time_s
from scaleproof.simulator.frameworks.files import equal_to_shipped
from scaleproof.simulator.scenario.dump import plain_spec, written
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.fitting.fitted_constants import Posterior
from scaleproof.validator.fitting.observed_run import ObservedRun

# Runs that a source names.
_MOST_NAMED: Final = 12
_DIGITS: Final = 4
# Fields of a cluster that constants change, next to the links inside nodes.
_LEARNED: Final = ("network", "collectives", "uncertainty", "model_error", "model_error_nodes")
_UNITS: Final = ((parse_time_s, format_time_s), (parse_Bps, format_Bps))


def write(path: Path, posterior: Posterior, runs: Sequence[ObservedRun], scenario: Scenario) -> None:
    """Writes the file of a fit. scenario: with the shipped constants. Raises InputError where it cannot be written."""
    try:
        write_atomically(path, text(posterior, runs, scenario).encode())
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}; give a file that can be written") from None


def text(posterior: Posterior, runs: Sequence[ObservedRun], scenario: Scenario) -> str:
    """YAML of the file of a fit."""
    framework, after = scenario.framework, with_posterior(scenario, posterior)
    whole = plain_spec(framework.model_copy(update={"name": ""}))
    plain: dict[str, Any] = {"base": framework.name} if equal_to_shipped(framework) else dict(whole)
    names = ", ".join(run.place for run in runs[:_MOST_NAMED]) + (" and others" if len(runs) > _MOST_NAMED else "")
    plain["description"] = f"{framework.name}, fitted to {counted(len(runs), 'run')} on {scenario.cluster.name or 'a cluster'}"
    plain = {**plain, **_changes(whole, plain_spec(after.framework.model_copy(update={"name": ""})))}
    cluster = _changes(*(_learned_fields(one) for one in (_described(scenario.cluster), after.cluster)))
    if cluster and scenario.cluster.name:
        plain["cluster"] = {"name": scenario.cluster.name, **cluster}
    plain["sources"] = {**plain.get("sources", {}), **_sources(posterior, scenario, names)}
    return f"# Fitted by `scaleproof fit`. Use it with --set framework=FILE.\n{written(plain)}"


def with_posterior(scenario: Scenario, posterior: Posterior) -> Scenario:
    """The scenario with the posterior's constants, and a cluster with the intervals and the model error of the posterior.

    Quantities that the runs taught nothing about keep the cluster's intervals. The framework counts as named.
    """
    changed = posterior.applied(scenario)
    cluster = changed.cluster
    intervals: dict[str, Interval] = dict(cluster.uncertainty)
    for index, constant in enumerate(posterior.constants):
        quantity = constant.quantity
        if quantity and posterior.has_moved(index) and QUANTITIES[quantity].value(cluster) is not None:
            deviation = constant.prior.factor * float(posterior.deviations[index])
            intervals[quantity] = _interval(cluster, quantity, deviation, posterior.runs)
    update = {"uncertainty": intervals, "model_error": posterior.model_error, "model_error_nodes": posterior.nodes}
    return changed.model_copy(update={"framework": changed.framework, "cluster": cluster.model_copy(update=update)})


def _interval(cluster: Cluster, name: str, deviation: float, runs: int) -> Interval:
    """The 90 % interval of a quantity. deviation: of its logarithm."""
    quantity, reach = QUANTITIES[name], math.exp(DEVIATIONS * deviation)
    value = quantity.value(cluster)
    assert value is not None
    return Interval(low=quantity.format(value / reach), high=quantity.format(value * reach), measurements=runs)


def _described(cluster: Cluster) -> Cluster:
    """The shipped cluster of that name, which earlier fits have not changed; else the cluster itself."""
    if cluster.name not in catalog.names(catalog.PARTS["cluster"]):
        return cluster
    return load_cluster(cluster.name)


def _learned_fields(cluster: Cluster) -> dict[str, Any]:
    """The fields of a cluster that a fit may change, as plain data."""
    plain = plain_spec(cluster)
    link = {"node": {"link": plain["node"]["link"]}} if cluster.node.link is not None else {}
    return {name: plain[name] for name in _LEARNED if name in plain} | link


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `after` that differ, in mappings key by key; numbers are rounded."""
    changes: dict[str, Any] = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict | None) and "low" not in value:
            inner = _changes(old or {}, value)
            changes |= {name: inner} if inner else {}
        elif value != old:
            # the ends of an interval belong together
            changes[name] = _rounded(value)
    return changes


def _rounded(value: Any) -> Any:
    """A number, also one with a unit, with few digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if not isinstance(value, str):
        return value
    for parse, write_value in _UNITS:
        with contextlib.suppress(UnitError):
            return write_value(parse(value))
    return value


def _sources(posterior: Posterior, scenario: Scenario, names: str) -> dict[str, str]:
    """The source of each constant that has moved."""
    sources = {}
    for index, constant in enumerate(posterior.constants):
        value = constant.value(scenario)
        if value is not None and posterior.has_moved(index):
            low, high = map(constant.format, posterior.interval(index, value))
            sources[constant.name] = f"fitted, 90 % interval {low} to {high}"
    noise = format_percent(posterior.noise)
    sources["fit"] = f"`scaleproof fit` on {date.today()}, errors of {noise} remain; runs: {names}"
    return sources
