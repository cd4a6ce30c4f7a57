"""Classes of equivalent ranks of parameter servers, and their nodes. Equivalent ranks on equivalent nodes form one class."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple


class RankClass(NamedTuple):
    """`each` equivalent ranks on every one of `nodes` equivalent nodes; `node`, `device` and `rank` are the first's."""

    node: int
    nodes: int
    each: int
    rank: int
    device: int
    is_server: bool

    @property
    def ranks(self) -> int:
        """Number of ranks of the class."""
        return self.nodes * self.each

    @property
    def name(self) -> str:
        """Name of the class, such as '4 workers' or 'server 5'."""
        role = "server" if self.is_server else "worker"
        return f"{self.ranks} {role}s" if self.ranks > 1 else f"{role} {self.rank}"


class WorkerGroup(NamedTuple):
    """Worker classes that communicate with the servers as one, through `leader`: all of a node's, or one class.

    workers: the ranks of the first node.
    """

    leader: RankClass
    members: tuple[RankClass, ...]
    workers: tuple[int, ...]


class OnNode(NamedTuple):
    """Ranks on a node."""

    workers: Sequence[int]
    servers: Sequence[int]


def placed(workers: int, servers: int, devices: int, dedicated: bool) -> dict[int, OnNode]:
    """Ranks on each node: workers fill nodes of `devices`; servers have separate nodes, or are distributed over the workers'
    nodes."""
    worker_nodes = -(-workers // devices)
    nodes = {node: OnNode(range(node * devices, min((node + 1) * devices, workers)), []) for node in range(worker_nodes)}
    for number in range(servers):
        node = worker_nodes + number if dedicated else number % worker_nodes
        ranks = nodes.setdefault(node, OnNode([], []))
        nodes[node] = ranks._replace(servers=[*ranks.servers, workers + number])
    return nodes


def classes(
    nodes: Mapping[int, OnNode], devices: int, kind: Callable[[int], Hashable], is_alone: Callable[[int], bool]
) -> list[RankClass]:
    """Classes of equivalent ranks: ranks of the same kind on a node, and on nodes with ranks of the same kinds, except separate
    nodes."""
    equivalent: dict[Hashable, list[int]] = {}
    for node, ranks in nodes.items():
        kinds = tuple(tuple(map(kind, some)) for some in ranks)
        equivalent.setdefault((kinds, node if is_alone(node) else None), []).append(node)
    result = []
    for equivalent_nodes in equivalent.values():
        for ranks_of_role, is_server in zip(nodes[equivalent_nodes[0]], (False, True), strict=True):
            members: dict[Hashable, list[int]] = {}
            for rank in ranks_of_role:
                members.setdefault(kind(rank), []).append(rank)
            for first, *others in members.values():
                device = ranks_of_role.index(first) % devices
                result.append(RankClass(equivalent_nodes[0], len(equivalent_nodes), 1 + len(others), first, device, is_server))
    return result


def worker_groups(rank_classes: Sequence[RankClass], nodes: Mapping[int, OnNode], by_node: bool) -> list[WorkerGroup]:
    """Groups of worker classes: those of a node, or single classes."""
    workers = [one for one in rank_classes if not one.is_server]
    if not by_node:
        return [WorkerGroup(one, (one,), ()) for one in workers]
    by_leader_node = {
        node: tuple(one for one in workers if one.node == node) for node in dict.fromkeys(one.node for one in workers)
    }
    return [
        WorkerGroup(members[0]._replace(each=1), members, tuple(nodes[node].workers))
        for node, members in by_leader_node.items()
    ]
