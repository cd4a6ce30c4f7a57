"""Collectives message by message, as a Program for the engines; `collective_time` evaluates a formula instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS
from scaleproof.simulator.cluster.collectives.cost import modelled_costing, placed, rotates
from scaleproof.simulator.cluster.collectives.groups import NETWORK_SWITCH, NODE_SWITCH, Group, Op, Round
from scaleproof.simulator.cluster.collectives.link_traffic import channels_of, node_orders
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.engine import simulate
from scaleproof.simulator.program import Path, Program, ProgramBuilder
from scaleproof.simulator.strategy.layout.resource_map import ResourceMap

# A program of this size takes 10 s to build on a 2-core virtual machine.
_MOST_MESSAGES: Final = 500_000
# Pieces that data is cut into at most by pipelined algorithms.
_MOST_PIECES: Final = 256


def message_time(op: Op, size_bytes: float, group: Group, cluster: Cluster, algorithm: str, pieces: int | None = None) -> float:
    """Seconds of a collective from the first message to the last, each of which is simulated on its route through the cluster.

    pieces: number of pieces that are pipelined; if None, the best number for pipelined algorithms, else 1. Raises what
    `expand` raises.
    """
    if group.size == 1:
        return 0.0
    pieces = pieces or _best_pieces(op, size_bytes, group, cluster, algorithm)
    program, steps = expand(op, size_bytes, group, cluster, algorithm, pieces)
    return float(simulate(program, steps).end_s.max())


def _best_pieces(op: Op, size_bytes: float, group: Group, cluster: Cluster, algorithm: str) -> int:
    """The number of pieces that minimises the time: p pieces through r rounds of latency a, of data that takes T in all, take
    (r − 1 + p) (a + T / p), which is least at p = √((r − 1) T / a) (Thakur et al. 2005)."""
    if op not in ALGORITHMS[algorithm].pipelined:
        return 1
    rounds = sum(step.times for step in ALGORITHMS[algorithm].rounds(op, placed(group, cluster, algorithm)))
    cost = modelled_costing(op, group, cluster, algorithm)(size_bytes)
    latency_s = max(cost.latency_s / rounds, 1e-9)
    return min(_MOST_PIECES, max(1, round(math.sqrt((rounds - 1) * (cost.seconds - cost.latency_s) / latency_s))))


def expand(op: Op, size_bytes: float, group: Group, cluster: Cluster, algorithm: str, pieces: int = 1) -> tuple[Program, int]:
    """A collective's messages as a Program, and the number of its steps to run; rank classes are the members in order, then
    the switches.

    A message starts after everything that its sender has sent and received before. pieces: number of pieces of the data that
    are pipelined. Raises InputError for too many messages, or links that the algorithm needs but the cluster lacks.
    """
    group = placed(group, cluster, algorithm)
    rounds = ALGORITHMS[algorithm].rounds(op, group)
    # a program is a step that repeats: identical rounds are its repetitions
    repeats = pieces == 1 and all(step is rounds[0] for step in rounds)
    steps = sum(step.times for step in rounds) if repeats else 1
    repeated = rounds[:1] if repeats else [step for step in rounds for _ in range(step.times)]
    inside = channels_of(op, group, cluster.node, rotates(cluster, algorithm))
    channels = [order[members] for order in node_orders(op, group, cluster.network) for members in inside]
    messages = sum(len(step.source) for step in repeated) * len(channels) * pieces
    if messages > _MOST_MESSAGES:
        raise InputError(f"{messages} messages are too many to time one by one; give at most {_MOST_MESSAGES}")
    sender = _Sender(cluster, group, repeats=repeats, at_once=ALGORITHMS[algorithm].at_once)
    for members in channels:
        sender.send(repeated, members.tolist(), size_bytes / len(channels) / pieces, pieces)
    return sender.builder.build(), steps


class _Sender:
    """Adds messages to a program."""

    def __init__(self, cluster: Cluster, group: Group, repeats: bool, at_once: bool) -> None:
        self.builder = ProgramBuilder()
        self.repeats = repeats
        self.at_once = at_once
        self._resources = ResourceMap(cluster, self.builder.resources)
        nodes = group.node_numbers[group.node_of]
        self._places: list[tuple[int, int]] = list(zip(nodes.tolist(), group.device_of.tolist(), strict=True))
        self._ranks = [self.builder.rank(f"rank {rank}") for rank in group.ranks]
        self._switches: dict[str, int] = {}

    def send(self, rounds: Sequence[Round], members: Sequence[int], size_bytes: float, pieces: int) -> None:
        """Adds all messages of one channel. members: the rank of each position in the rounds."""
        before: list[list[int]] = []
        for _ in range(pieces):
            before = self._send_piece(rounds, members, size_bytes, before)

    def _send_piece(
        self, rounds: Sequence[Round], members: Sequence[int], size_bytes: float, before: list[list[int]]
    ) -> list[list[int]]:
        """Adds the messages of one piece and returns their rows by round.

        Each message follows its sender's last one, and the same message of the preceding piece in `before`.
        """
        latest: dict[int, list[int]] = {}
        rows: list[list[int]] = []
        for number, step in enumerate(rounds):
            touched: dict[int, list[int]] = {}
            rows.append([])
            senders = []
            columns = (step.source.tolist(), step.target.tolist(), (step.share * size_bytes).tolist())
            for i, (source, target, message_bytes) in enumerate(zip(*columns, strict=True)):
                sender, receiver = self._rank(source, target, members), self._rank(target, source, members)
                after = [] if self.at_once else latest.get(sender, [])
                after = [*after, before[number][i]] if before else after
                path = self._path(source, target, members, message_bytes)
                rows[-1].append(self.builder.transfer(sender, receiver, message_bytes, path, Phase.SYNCHRONISE, after))
                senders.append(sender)
                for rank in (sender, receiver):
                    touched.setdefault(rank, []).append(rows[-1][-1])
            latest |= touched
            if self.repeats:
                for row, sender in zip(rows[-1], senders, strict=True):
                    self.builder.carry(row, touched[sender])
        return rows

    def _rank(self, end: int, other: int, members: Sequence[int]) -> int:
        """The rank class of one end of a message; a switch has its own class."""
        if end >= 0:
            return self._ranks[members[end]]
        name = "network switch" if end == NETWORK_SWITCH else f"node {self._places[members[other]][0]} switch"
        if name not in self._switches:
            self._switches[name] = self.builder.rank(name)
        return self._switches[name]

    def _path(self, source: int, target: int, members: Sequence[int], size_bytes: float) -> Path:
        if source >= 0 and target >= 0:
            return self._resources.message(self._places[members[source]], self._places[members[target]], size_bytes)
        place = self._places[members[max(source, target)]]
        return self._resources.half(place, size_bytes, outward=target < 0, inside=NODE_SWITCH in (source, target))
