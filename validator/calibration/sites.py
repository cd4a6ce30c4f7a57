"""Sites on which probes run: processes of this machine, hosts of a lab, or ranks started by torchrun or srun, behind one
interface."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError, RankError, one_line
from scaleproof.validator.launch.hosts import LOOPBACK, Host
from scaleproof.validator.launch.launch import job_folder, launch, require_torch
from scaleproof.validator.launch.preflight.memory_check import MOST_RANKS
from scaleproof.validator.launch.rank_environment import ContactLostError
from scaleproof.validator.measure import MeasureOptions, On, check_interface, meet_others, where_to
from scaleproof.validator.probe.pairs import socket as socket_of_cores
from scaleproof.validator.record.cpu_usage import usable

if TYPE_CHECKING:
    from scaleproof.validator.launch.rendezvous import Meeting


class Site(ABC):
    """Ranks on which probes run.

    nodes: node of each rank. sockets: socket of the cores that each rank may use, None if they are on several. lab: provenance
    of a lab. is_reporter: whether this process prints and writes results.
    """

    is_reporter: bool = True

    def __init__(self, on: On, nodes: Sequence[int], sockets: Sequence[int | None], lab: dict[str, str] | None = None) -> None:
        self.on = on
        self.nodes = tuple(nodes)
        self.sockets = tuple(sockets)
        self.lab = lab or {}

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
        return self.ranks

    def ranks_of(self, node: int) -> list[int]:
        """Ranks on a node."""
        return [rank for rank, own in enumerate(self.nodes) if own == node]

    @abstractmethod
    def run(self, function: Callable[..., Any], *args: Any, ranks: int | None = None, timeout_s: float = 60.0) -> Any:
        """Calls `function(*args)` on the first `ranks` ranks, all of them if None, which form a process group.

        Returns the result on the first rank; None on a rank that was started from outside and takes no part. As with
        `launch.run_on_ranks`, functions are found by name and results are plain data. Raises RankError naming the rank that
        failed or hung, and ContactLostError if nothing more can be run.
        """


class _Started(Site):
    """Ranks that are started for each probe and end with it."""

    def __init__(
        self, on: On, nodes: Sequence[int], hosts: Sequence[Host], accelerator: bool, lab: dict[str, str] | None = None
    ) -> None:
        super().__init__(on, nodes, [socket_of_cores()] * len(nodes), lab)
        self._hosts = hosts
        self._cores = self.ranks if accelerator else len(usable())
        self._accelerator = accelerator

    def run(self, function: Callable[..., Any], *args: Any, ranks: int | None = None, timeout_s: float = 60.0) -> Any:
        count = ranks or self.ranks
        with job_folder() as folder:
            hosts = self._hosts[:count]
            return launch(folder, function, count, args, timeout_s=timeout_s, accelerator=self._accelerator, hosts=hosts)[0]

    @property
    def concurrent(self) -> int:
        return min(self.ranks, self._cores)


class _Joined(Site):
    """Ranks started by torchrun or srun, each of which runs the same probes in the same order."""

    def __init__(self, meeting: Meeting, accelerator: bool) -> None:
        names = meeting.together(socket.gethostname)
        hosts = list(dict.fromkeys(names))
        super().__init__("cluster", [hosts.index(name) for name in names], meeting.together(socket_of_cores))
        self.is_reporter = meeting.place.rank == 0
        self._meeting = meeting
        self._accelerator = accelerator

    def run(self, function: Callable[..., Any], *args: Any, ranks: int | None = None, timeout_s: float = 60.0) -> Any:
        import torch.distributed as dist

        from scaleproof.validator.launch import rank

        count, place = ranks or self.ranks, self._meeting.place
        store = self._meeting.new_group_store()
        result, failure = None, {}
        try:
            if place.rank < count:
                rank.join(replace(place, ranks=count), store, timeout_s, self._accelerator)
                result = function(*args)
                # a rank that leaves early looks dead to its peers
                dist.barrier()
        except Exception as error:
            failure = {"error": one_line(error), "by_peer": rank.is_communication(error)}
        finally:
            rank.leave()
        _raise_failure(self._meeting.agree(failure, patience_s=timeout_s))
        return result


def _raise_failure(failures: Sequence[Any]) -> None:
    """Raises RankError naming the rank that caused the failure rather than its peers; ContactLostError if a rank no longer
    responds."""
    if None in failures:
        raise ContactLostError(f"rank {failures.index(None)} no longer responds; look at its output")
    failed = [(failure["by_peer"], rank) for rank, failure in enumerate(failures) if failure]
    if failed:
        _, rank = min(failed)
        raise RankError(f"rank {rank} failed: {failures[rank]['error']}")


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
        yield _Joined(meet_others(watch), accelerator)
    elif where == "local":
        if ranks > MOST_RANKS:
            raise InputError(f"{ranks} ranks: at most {MOST_RANKS} can run on one machine; use several machines (--on cluster)")
        yield _Started("local", [0] * ranks, [Host(interface=watch.interface or LOOPBACK)] * ranks, accelerator)
    elif cluster is None:
        raise InputError("--on netlab builds the network of a cluster; name the cluster with --cluster, such as netlab-500mbit")
    else:
        with _lab(cluster, hosts) as lab:
            yield lab


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
        nodes = [node for node in range(count) for _ in range(ranks_per_node)]
        facts = report.provenance() | ({"warnings": "; ".join(report.warnings)} if report.warnings else {})
        yield _Started("netlab", nodes, [Host(lab.namespace(node), lab.interface) for node in nodes], False, facts)


def _enough_hosts(cluster: Cluster) -> int:
    """Number of hosts: four, or more if needed for two hosts under a second switch."""
    per_leaf = getattr(cluster.network.topology, "per_leaf", 0) if cluster.network else 0
    return max(4, per_leaf + 2 if 0 < per_leaf < cluster.nodes else 0)
