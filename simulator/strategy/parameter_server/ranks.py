"""Which ranks of parameter servers are alike, and on which nodes they are. Alike ranks on alike nodes are one class."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple


class RankClass(NamedTuple):
    """`each` alike ranks on every one of `nodes` alike nodes; `node`, `device` and `rank` are the first's."""

    node: int
    nodes: int
    each: int
    rank: int
    device: int
    is_server: bool

    @property
    def ranks(self) -> int:
        return self.nodes * self.each

    @property
    def name(self) -> str:
        role = "server" if self.is_server else "worker"
        return f"{self.ranks} {role}s" if self.ranks > 1 else f"{role} {self.rank}"


class Crew(NamedTuple):
    """Worker classes that talk to the servers as one: all of a node's, or one class. `leader` does it for them.

    workers: the ranks of the first node.
    """

    leader: RankClass
    members: tuple[RankClass, ...]
    workers: tuple[int, ...]


class OnNode(NamedTuple):
    """The ranks on a node."""

    workers: Sequence[int]
    servers: Sequence[int]


def placed(workers: int, servers: int, devices: int, dedicated: bool) -> dict[int, OnNode]:
    """The ranks on each node: workers fill nodes of `devices`; servers have nodes of their own, or take theirs in turn."""
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
    """Ranks of one kind on a node are alike, and so are nodes with ranks of the same kinds, but for those that stand alone."""
    alike: dict[Hashable, list[int]] = {}
    for node, ranks in nodes.items():
        kinds = tuple(tuple(map(kind, some)) for some in ranks)
        alike.setdefault((kinds, node if is_alone(node) else None), []).append(node)
    result = []
    for same in alike.values():
        for some, is_server in zip(nodes[same[0]], (False, True), strict=True):
            members: dict[Hashable, list[int]] = {}
            for rank in some:
                members.setdefault(kind(rank), []).append(rank)
            for first, *others in members.values():
                device = some.index(first) % devices
                result.append(RankClass(same[0], len(same), 1 + len(others), first, device, is_server))
    return result


def crews(alike: Sequence[RankClass], nodes: Mapping[int, OnNode], by_node: bool) -> list[Crew]:
    """The worker classes by who talks to the servers."""
    workers = [one for one in alike if not one.is_server]
    if not by_node:
        return [Crew(one, (one,), ()) for one in workers]
    together = {node: tuple(one for one in workers if one.node == node) for node in dict.fromkeys(one.node for one in workers)}
    return [Crew(members[0]._replace(each=1), members, tuple(nodes[node].workers)) for node, members in together.items()]
