"""Plan: which probes run where, on which ranks, with how much of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Gpt, Mlp
from scaleproof.validator.calibration.sites import Site
from scaleproof.validator.probe.pairs import RankPair

# How much of the time each has.
SHARES: Final = {
    "matmul": 6.0,
    "memory": 3.0,
    "launch": 1.0,
    "host_copy": 1.0,
    "optimizer": 5.0,
    "layer": 24.0,
    "message": 8.0,
    "collective": 10.0,
    "overlap": 2.0,
    "update": 2.0,
    "loading": 1.0,
}
NAMES: Final = tuple(SHARES)
# Of what a rank computes by itself. They are run together, unless some but layers are asked for.
DEVICE: Final = frozenset({"matmul", "memory", "launch", "host_copy", "optimizer", "layer"})
# What is sent: small ones for the latency, and large ones, which time goes to.
MESSAGE_BYTES: Final = (4, 64, 1024, *(4**power for power in range(6, 13)))
STREAM_BYTES: Final = (4, 256, 4096, 2**16, 2**18)
COLLECTIVE_BYTES: Final = (4, 2**12, *(4**power for power in range(8, 13)))
_EXAMPLES: Final = 2
# Messages and collectives of a network take longer than those of a machine's memory.
_NETWORK_WEIGHT: Final = 2.0


@dataclass(frozen=True)
class ProbePlan:
    """What to measure.

    models: whose layers. names: of the probes, all if empty. groups: sizes of those that collectives are measured over; 2, half
    and all if empty. budget_s: for all probes together. timeout_s: a probe that takes so much longer than it may has failed.
    """

    models: Sequence[Gpt | Mlp]
    names: Sequence[str] = ()
    groups: Sequence[int] = ()
    precision: str = "fp32"
    budget_s: float = 35.0
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if unknown := [name for name in self.names if name not in NAMES]:
            raise InputError(f"--probe {unknown[0]}: no such probe; give one of {', '.join(NAMES)}")
        if any(ranks < 2 for ranks in self.groups):
            raise InputError("--groups: a group has at least 2 ranks")

    @property
    def ranks(self) -> int:
        """As many as the groups need, where ranks are started here."""
        return max(self.groups, default=4)


@dataclass(frozen=True)
class Task:
    """One call of a probe on the first ranks of a site, on all if None.

    name: the probe's. what: for people. arguments: but for the seconds that it may take, which come last.
    """

    name: str
    what: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    budget_s: float
    ranks: int | None = None


def tasks(plan: ProbePlan, site: Site, cluster: Cluster | None) -> list[Task]:
    """What is to be run, in order, each with its part of the time.

    Raises InputError where nothing describes the machines, or a group has more ranks than there are.
    """
    machines = len(site.heads)
    if machines > (cluster.nodes if cluster else 1):
        known = f"{cluster.name or 'the cluster'} has {cluster.nodes}" if cluster else "nothing says how they are joined"
        raise InputError(
            f"ranks are on {machines} machines, and {known}; describe all of them in a file, and name it by --cluster"
        )
    if (most := max(plan.groups, default=0)) > site.ranks:
        raise InputError(f"--groups {most}: there are {site.ranks} ranks; give groups of at most so many")
    found = [*_device(plan, site), *_network(plan, site, cluster), *_host(plan)]
    if plan.names:
        found = [task for task in found if task.name in plan.names]
    scale = plan.budget_s / sum(task.budget_s for task in found) if found else 0.0
    return [replace(task, budget_s=task.budget_s * scale) for task in found]


def groups_of(plan: ProbePlan, site: Site) -> list[list[int]]:
    """The ranks of each group that collectives are measured over: of one node, one rank of each of several nodes, all."""
    nodes = len(site.heads)
    ladder = [site.heads, list(range(site.ranks)) if nodes == 1 else site.ranks_of(0)]
    sizes = plan.groups
    found = [ranks[:size] for ranks in ladder for size in (sizes or _ladder(len(ranks))) if 2 <= size <= len(ranks)]
    return [list(ranks) for ranks in dict.fromkeys(map(tuple, [*found, *([range(site.ranks)] if nodes > 1 else [])]))]


def _some(pairs: Sequence[RankPair], group: str) -> Sequence[RankPair]:
    """Pairs of one class, no two with an end in common."""
    found: list[RankPair] = []
    for pair in pairs:
        if pair.group == group and not any({pair.first, pair.second} & {one.first, one.second} for one in found):
            found.append(pair)
    return found[:_EXAMPLES]


def _ladder(ranks: int) -> Sequence[int]:
    """2, half and all."""
    return sorted({2, ranks // 2, ranks})


def _network(plan: ProbePlan, site: Site, cluster: Cluster | None) -> Iterator[Task]:
    """What goes between ranks, where there are several."""
    from scaleproof.validator.probe import collectives, network, overlap, pairs

    if site.ranks < 2:
        return
    several = len(site.heads) > 1
    weight = _NETWORK_WEIGHT if several else 1.0
    where = pairs.places(site.nodes, cluster, site.sockets) if cluster else [pairs.RankPlace(0, 0, one) for one in site.sockets]
    chosen = pairs.choose(where)
    examples = [pair for group in dict.fromkeys(pair.group for pair in chosen) for pair in _some(chosen, group)]

    def task(name: str, what: str, function: Callable[..., Any], share: float, *arguments: Any) -> Task:
        return Task(name, what, function, arguments, weight * SHARES[name] * share)

    between = f"{len(chosen)} pairs of ranks" if len(chosen) > 1 else "two ranks"
    yield task("message", f"messages between {between}", network.messages, 0.5, chosen, MESSAGE_BYTES)
    if several:
        yield task("message", "messages in a row", network.streams, 0.3, examples, STREAM_BYTES)
        yield task("message", "messages beside others", network.loaded, 0.1, examples[:1], (2**20,))
    if len(site.heads) > 2:
        yield task("message", "messages of many to one", network.incast, 0.1, [site.heads], (4096, 2**20))
    groups = groups_of(plan, site)
    sums, others = collectives.OPS[:1], collectives.OPS[1:]
    for what, ops in (("allreduce", sums), ("other collectives", others)):
        told = f"{what} over {', '.join(dict.fromkeys(str(len(ranks)) for ranks in groups))} ranks"
        yield task("collective", told, collectives.collectives, 0.5, groups, site.nodes, ops, COLLECTIVE_BYTES)
    yield task("overlap", "computation beside communication", overlap.overlap, 1.0, [list(range(site.ranks))], 2**22, 256)


def _device(plan: ProbePlan, site: Site) -> Iterator[Task]:
    """What a rank computes: one alone, then as many at once as there are cores, to see what they share.

    Layers bring what is fitted with them, since a file's device comes from all of it.
    """
    from scaleproof.validator.calibration.fit import device
    from scaleproof.validator.probe import compute

    models, precision = tuple(plan.models), plan.precision
    if "layer" in plan.names or DEVICE.isdisjoint(plan.names):
        share = sum(SHARES[name] for name in DEVICE)
        yield Task("layer", "what one rank computes", device.probe, (models, precision), 0.8 * share, 1)
        if site.at_once > 1:
            what = f"layers of {site.at_once} ranks at once"
            yield Task("layer", what, device.probe, (models, precision), 0.2 * share, site.at_once)
        return
    each: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "matmul": (compute.products, (compute.SHAPES, (precision,))),
        "memory": (compute.memory, (compute.SIZES_BYTES, precision)),
        "launch": (compute.launches, ()),
        "host_copy": (compute.host_copies, (compute.SIZES_BYTES,)),
        "optimizer": (compute.optimizers, (models[:1], precision, ("sgd", "momentum", "adam"))),
    }
    for name, (function, arguments) in each.items():
        yield Task(name, name, function, arguments, SHARES[name], 1)


def _host(plan: ProbePlan) -> Iterator[Task]:
    """What one rank does for the others and for itself."""
    from scaleproof.validator.probe import loading, servers

    share = SHARES["update"]
    yield Task("update", "updates of a server", servers.updates, ((1, 4), ("sgd", "adam"), servers.SIZES), share, 1)
    yield Task("loading", "batches", loading.loading, (plan.models[0], (8, 64), None), SHARES["loading"], 1)
