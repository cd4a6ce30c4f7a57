"""Sites on which probes run: processes of this machine, hosts of a lab, or ranks started by torchrun or srun, behind one
interface."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.validator.launch.job import LOOPBACK, Host
from scaleproof.validator.launch.launch import JobOptions, LocalRanks, Ranks, require_torch
from scaleproof.validator.measure import MeasureOptions, On, meet_others, where_to
from scaleproof.validator.preflight.checks import check_interface
from scaleproof.validator.preflight.memory_check import MOST_RANKS
from scaleproof.validator.probe.pairs import socket as socket_of_cores
from scaleproof.validator.record.cpu_usage import usable

if TYPE_CHECKING:
    from scaleproof.validator.launch.rendezvous import Meeting


@dataclass(frozen=True)
class Site:
    """Ranks on which probes run.

    group: runs functions on them. nodes: node of each rank. sockets: socket of the cores that each rank may use, None if they
    are on several. cores: that ranks share, None if each has its own or a GPU. lab: provenance of a lab. is_reporter: whether
    this process prints and writes results.
    """

    on: On
    group: Ranks
    nodes: tuple[int, ...]
    sockets: tuple[int | None, ...]
    accelerator: bool = False
    cores: int | None = None
    lab: dict[str, str] = field(default_factory=dict)
    is_reporter: bool = True

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.nodes)

    @property
    def heads(self) -> list[int]:
        """First rank of each node."""
        return [self.nodes.index(node) for node in sorted(set(self.nodes))]

    @property
    def concurrent(self) -> int:
        """Number of ranks that compute concurrently without sharing a core."""
        return min(self.ranks, self.cores or self.ranks)

    def ranks_of(self, node: int) -> list[int]:
        """Ranks on a node."""
        return [rank for rank, own in enumerate(self.nodes) if own == node]

    @property
    def starts_ranks(self) -> bool:
        """Whether each call starts new processes, rather than running in those that another launcher has started."""
        return isinstance(self.group, LocalRanks)

    def recorded_by_all(
        self, function: Callable[..., Any], *args: Any, ranks: int | None, timeout_s: float, progress: Callable[[int], None]
    ) -> tuple[Sequence[bytes], RankError | None]:
        """What the first `ranks` ranks record while each calls `function(*args)`, and the error that ended it, if any.

        ranks: all if None. progress: called with the step of the slowest rank when it changes. What ranks record that another
        launcher has started is lost if there is an error.
        """
        kept: list[bytes] = []

        def keep(recorded: Sequence[bytes], logs: Sequence[Path]) -> str:
            kept[:] = recorded
            return ""

        options = JobOptions(timeout_s, self.accelerator, progress=progress, keep=keep)
        try:
            return [ended.recorded for ended in self.group.first(ranks or self.ranks).run(function, args, options)], None
        except RankError as error:
            return kept, error


@contextmanager
def site(on: On | None, cluster: Cluster | None, ranks: int, watch: MeasureOptions, hosts: int | None = None) -> Iterator[Site]:
    """Site on which probes run within the context.

    cluster: description of the site; netlab requires it and builds its network. If its nodes give no cores, ranks of this
    machine and of a cluster compute on GPUs if there are any. ranks: number started on this machine. hosts: number of hosts of
    a lab. Raises InputError for invalid combinations, RunError if this machine cannot build a lab, RankError if the ranks do
    not meet.
    """
    require_torch()
    where = where_to(on)
    accelerator = cluster is not None and cluster.node.cores is None
    if hosts is not None and where != "netlab":
        raise InputError(f"--hosts {hosts}: only a lab has hosts to choose; remove it, or measure with --on netlab")
    check_interface(where, watch.interface)
    if where == "cluster":
        yield _external(meet_others(watch), accelerator)
    elif where == "local":
        if ranks > MOST_RANKS:
            raise InputError(f"{ranks} ranks: at most {MOST_RANKS} can run on one machine; use several machines (--on cluster)")
        group = LocalRanks([Host(interface=watch.interface or LOOPBACK)] * ranks)
        cores = None if accelerator else len(usable())
        yield Site("local", group, (0,) * ranks, (socket_of_cores(),) * ranks, accelerator, cores)
    elif cluster is None:
        raise InputError("--on netlab builds the network of a cluster; name the cluster with --cluster, such as netlab-500mbit")
    else:
        with _lab(cluster, hosts) as lab:
            yield lab


def _external(meeting: Meeting, accelerator: bool) -> Site:
    """Ranks started by torchrun or srun, of which this process is one."""
    from scaleproof.validator.launch.external import ExternalRanks

    place = meeting.place
    names = meeting.together(socket.gethostname)
    hosts = list(dict.fromkeys(names))
    nodes, sockets = tuple(hosts.index(name) for name in names), tuple(meeting.together(socket_of_cores))
    group = ExternalRanks(meeting, place.ranks, patient=True)
    return Site("cluster", group, nodes, sockets, accelerator, is_reporter=place.rank == 0)


@contextmanager
def _lab(cluster: Cluster, hosts: int | None) -> Iterator[Site]:
    """First hosts of a cluster as network namespaces, with one rank each, or two if nodes have several devices."""
    from scaleproof.validator.netlab.lab import Netlab

    count = hosts or min(cluster.nodes, _enough_hosts(cluster))
    if not 2 <= count <= cluster.nodes:
        raise InputError(
            f"--hosts {count}: {cluster.name or 'the cluster'} has {cluster.nodes} nodes; give 2 to {cluster.nodes}"
        )
    ranks_per_node = min(2, cluster.node.devices)
    with Netlab(cluster.model_copy(update={"nodes": count})) as lab:
        report = lab.self_test()
        nodes = tuple(node for node in range(count) for _ in range(ranks_per_node))
        group = LocalRanks([Host(lab.namespace(node), lab.interface) for node in nodes])
        facts = report.provenance() | ({"warnings": "; ".join(report.warnings)} if report.warnings else {})
        yield Site("netlab", group, nodes, (socket_of_cores(),) * len(nodes), cores=len(usable()), lab=facts)


def _enough_hosts(cluster: Cluster) -> int:
    """Number of hosts: four, or more if needed for two hosts under a second switch."""
    per_leaf = getattr(cluster.network.topology, "per_leaf", 0) if cluster.network else 0
    return max(4, per_leaf + 2 if 0 < per_leaf < cluster.nodes else 0)
