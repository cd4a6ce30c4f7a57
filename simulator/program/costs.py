"""Costs of a program's tasks: functions that strategies write next to the tasks, and the columns that they give on one cluster.

A path is a function of a cluster's links, a duration one of a job's costs. The tasks of a step do not depend on either, so that
a program can be priced again on another cluster, for an interval, a point of a study, or a plan, without writing it again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaleproof.simulator.program.resources import Resources, ResourceTable, Routes, Rows, Use

# Clusters whose paths a program keeps: its own, and one with each quantity slower.
_MOST_CLUSTERS: Final = 12


@dataclass(frozen=True)
class Path:
    """Path of a transfer: latency, maximum rate of a single message, resources used meanwhile, and weight under contention."""

    latency_s: float
    max_Bps: float
    uses: tuple[Use, ...] = ()
    weight: float = 1.0


NO_PATH: Final = Path(0.0, 1.0)
# Number in place of a path of tasks that use the resources of their rank class.
OWN: Final = -1

# A path, or its function of the links of a cluster.
PathOf = Path | Callable[[Any], Path]
# Uses of resources by the work of a rank, or their function of the links of a cluster, which has the cores of nodes.
UsesOf = tuple[Use, ...] | Callable[[Any], tuple[Use, ...]]
# Seconds of tasks, or their function of the costs of a job; a pair adds the exposed seconds of collectives within them.
SecondsOf = ArrayLike | Callable[[Any], ArrayLike]


@dataclass(frozen=True)
class PassCommunication:
    """Collectives among ranks that share layers, of one microbatch.

    numbers: of the kinds of communication (`simulator.common.communication.number_of`), shape (kinds,). exposed_s,
    message_bytes, calls: of each kind in the forward and the backward pass over each layer, shape (kinds, 2, layers).
    """

    numbers: NDArray[np.int16]
    exposed_s: NDArray[np.float64]
    message_bytes: NDArray[np.float64]
    calls: NDArray[np.float64]

    def over(self, first: NDArray[np.int32], last: NDArray[np.int32], is_backward: NDArray[np.bool_]) -> PassTotals:
        """Totals of passes over the layers from `first` to `last`, all of shape (passes,)."""
        direction = is_backward.astype(np.int64)
        totals = []
        for values in (self.exposed_s, self.message_bytes, self.calls):
            before = np.cumsum(np.concatenate([np.zeros_like(values[..., :1]), values], axis=-1), axis=-1)
            totals.append(before[:, direction, last + 1] - before[:, direction, first])
        exposed_s, message_bytes, calls = totals
        end_s = np.cumsum(exposed_s, axis=0)
        end = np.divide(end_s, end_s[-1], out=np.zeros_like(end_s), where=end_s[-1] > 0)
        return PassTotals(
            np.concatenate([np.zeros_like(end[:1]), end[:-1]]), end, message_bytes, np.rint(calls).astype(np.int32)
        )


@dataclass(frozen=True)
class PassTotals:
    """Collectives within passes by kind, shape (kinds, passes). begin, end: of a kind within the exposed time of all kinds, one
    after another, as shares of it."""

    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    message_bytes: NDArray[np.float64]
    calls: NDArray[np.int32]


class Prices(Protocol):
    """Prices of a job on a cluster: the argument of durations."""

    @property
    def paths_depend_on(self) -> Hashable:
        """What paths depend on: equal values have the same paths."""

    def links(self, resources: ResourceTable) -> Any:
        """The argument of paths; adds the resources that they use."""

    def in_passes(self) -> Callable[[], PassCommunication] | None:
        """As in `Program`."""

    def at(self, job: Any) -> Prices | None:
        """The prices of another job; None if its tasks are other ones."""


class Duration(NamedTuple):
    """Seconds of some tasks of rank classes, before their slowdown. rows, ranks: shape (tasks,)."""

    rows: Rows
    ranks: Rows
    seconds: SecondsOf


class _PricedPaths(NamedTuple):
    """Paths on one cluster. columns: latency, rate, weight and route, shape (4, paths + 1). ranks: route of the work of each
    rank class."""

    columns: NDArray[np.float64]
    ranks: Rows
    resources: Resources
    routes: Routes


@dataclass(frozen=True)
class TaskCosts:
    """Costs of the tasks of a program.

    path: number of each task's path, OWN without one; rank: its rank class; amount: its bytes, or seconds if they are a number;
    update_s: of its server's update if that is a number; all of shape (tasks,). works: durations of compute and of services;
    updates: of updates of servers. delays: shares by which some transfers take longer than on their path alone. uses, slowdown:
    of rank classes. resources: those that do not depend on a cluster.
    """

    paths: Sequence[PathOf]
    path: Rows
    rank: Rows
    works: Sequence[Duration]
    updates: Sequence[Duration]
    delays: Sequence[tuple[Rows, SecondsOf]]
    uses: Sequence[UsesOf]
    slowdown: NDArray[np.float64]
    amount: NDArray[np.float64]
    update_s: NDArray[np.float64]
    resources: ResourceTable
    _known: dict[Hashable, _PricedPaths] = field(default_factory=dict, compare=False, repr=False)

    def columns(self, prices: Prices | None) -> dict[str, Any]:
        """The columns of a program that depend on prices, by name, with its resources and routes; prices: None if all costs are
        given as numbers."""
        paths = self._paths(prices)
        # the last column is that of OWN
        latency_s, max_rate, weight, route = paths.columns[:, self.path]
        amount, update_s = self.amount.copy(), self.update_s.copy()
        for work in self.works:
            seconds = _value(work.seconds, prices)
            if isinstance(seconds, tuple):
                seconds, latency_s[work.rows] = seconds
            amount[work.rows] = np.asarray(seconds) * self.slowdown[work.ranks]
        for update in self.updates:
            update_s[update.rows] = np.asarray(_value(update.seconds, prices)) * self.slowdown[update.ranks]
        for rows, share_of in self.delays:
            share = np.asarray(_value(share_of, prices))
            if share.any():
                latency_s[rows] += share * (latency_s[rows] + amount[rows] / max_rate[rows])
        route = np.where(self.path == OWN, paths.ranks[self.rank], route)
        return {
            "latency_s": latency_s, "amount": amount, "max_rate": max_rate, "weight": weight,
            "route": np.where((amount > 0) | (update_s > 0), route, 0).astype(np.int32),
            "update_s": update_s, "resources": paths.resources, "routes": paths.routes,
            "in_passes": None if prices is None else prices.in_passes(),
        }  # fmt: skip

    def _paths(self, prices: Prices | None) -> _PricedPaths:
        """Paths on a cluster; those of the latest clusters are kept."""
        depend_on = None if prices is None else prices.paths_depend_on
        known = self._known.pop(depend_on, None)
        if known is None:
            resources = self.resources.copy()
            links = None if prices is None else prices.links(resources)
            ranks = [resources.route(_value(uses, links)) for uses in self.uses]
            columns = np.zeros((4, len(self.paths) + 1))
            columns[:, OWN] = 0.0, 1.0, 1.0, 0
            for number, path_of in enumerate(self.paths):
                path = _value(path_of, links)
                columns[:, number] = path.latency_s, path.max_Bps, path.weight, resources.route(path.uses)
            known = _PricedPaths(columns, np.array(ranks, dtype=np.int64), *resources.built())
        self._known[depend_on] = known
        if len(self._known) > _MOST_CLUSTERS:
            del self._known[next(iter(self._known))]
        return known


def _value(cost: Any, argument: Any) -> Any:
    """A cost, which may be a function of the argument."""
    return cost(argument) if callable(cost) else cost
