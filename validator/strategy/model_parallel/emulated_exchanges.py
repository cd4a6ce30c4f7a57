"""What paced layers exchange where ranks share them: as much as the scenario's layers would, and nothing that is trained on.

Ranks that share a small layer all train all of it, on the same samples, so parameters do not tell whether these exchanges are
right. What they bring does: zeros but for the first and the last number of each part, which are the sender's place from 1 on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives, alike, both_ways


class PacedExchanges:
    """Exchanges hold a pass up before it computes; hidden ones go on meanwhile, and hold it up afterwards if they are not done.

    teams: by the axes along which ranks exchange.
    """

    def __init__(self, teams: Mapping[str, PassCollectives], dtype: torch.dtype) -> None:
        self._teams = teams
        self._dtype = dtype
        self._idle: defaultdict[tuple[str, str, int], list[_ExchangeBuffers]] = defaultdict(list)
        self._begun = 0

    def check_step(self, expected: int) -> None:
        """Raises RunError where a step had fewer. The first has more: stages learn the shapes that they pass on."""
        begun, self._begun = self._begun, 0
        if begun < expected:
            raise RunError(f"ranks that share layers made {begun} of a step's {expected} exchanges; tell us of this scenario")

    def attach(self, module: nn.Module, layer: Layer, again: Sequence[Exchange]) -> None:
        """Has the module exchange what the layer does. again: what recomputation repeats before the backward pass."""
        begun: list[_Moving] = []
        forward = [exchange for exchange in layer.exchanges if not exchange.backward]
        behind = [*again, *(exchange for exchange in layer.exchanges if exchange.backward)]

        def begin(exchanges: Sequence[Exchange], x: Tensor) -> Tensor:
            for exchange in exchanges:
                moving = self._begin(exchange, len(x))
                if exchange.hidden:
                    begun.append(moving)
                else:
                    moving.wait()
            return alike(x)

        def end(x: Tensor) -> Tensor:
            while begun:
                begun.pop(0).wait()
            return alike(x)

        module.register_forward_pre_hook(lambda _, inputs: both_ways(partial(begin, forward), end, inputs[0]))
        module.register_forward_hook(lambda _, inputs, output: both_ways(end, partial(begin, behind), output))

    def _begin(self, exchange: Exchange, samples: int) -> _Moving:
        self._begun += 1
        collectives = self._teams[exchange.axis]
        team = collectives.team
        each = -(-exchange.elements * samples // team.size)
        idle = self._idle[exchange.op, exchange.axis, each]
        buffers = idle.pop() if idle else _ExchangeBuffers(exchange.op, team, each, self._dtype)
        buffers.fill()
        work: Any
        if exchange.op == "all_reduce":
            work = dist.all_reduce(buffers.whole, group=team.group, async_op=True)
        elif exchange.op == "all_gather":
            work = collectives.begin_gather(buffers.whole, buffers.own)
        elif exchange.op == "alltoall":
            work = dist.all_to_all_single(buffers.theirs, buffers.whole, group=team.group, async_op=True)
        else:
            assert exchange.op == "reduce_scatter", f"experts alone use {exchange.op}, and are not paced"
            work = collectives.begin_scatter(buffers.own, buffers.whole)
        return _Moving(collectives, buffers, work, idle)


class _ExchangeBuffers:
    """What one exchange at a time sends and brings. whole: of all the team. own: a part. theirs: what an all-to-all brings."""

    def __init__(self, op: str, team: Team, each: int, dtype: torch.dtype) -> None:
        self.whole, self.own = torch.zeros(each * team.size, dtype=dtype), torch.zeros(each, dtype=dtype)
        self.theirs = torch.zeros_like(self.whole) if op == "alltoall" else self.whole
        self._op, self._place = op, team.place
        self._sent = self.own if op == "all_gather" else self.whole
        self._brought = self.own if op == "reduce_scatter" else self.theirs
        places = torch.arange(1, team.size + 1, dtype=dtype).view(-1, 1)
        summed = op not in ("all_gather", "alltoall")
        self._expected = places.sum().view(1, 1).expand(len(self._brought) // each, 1) if summed else places
        self._each = each
        # sums of whole numbers, which short formats round
        self._tolerance = team.size * torch.finfo(dtype).eps

    def fill(self) -> None:
        self._ends(self._brought)[:] = 0
        self._ends(self._sent)[:] = self._place + 1

    def check(self) -> None:
        """Raises RunError where something else came than was sent."""
        ends = self._ends(self._brought)
        if not bool(((ends - self._expected).abs() <= self._tolerance * self._expected).all()):
            told = f"{self._op} brought {ends[:, 0].tolist()} instead of {self._expected[:, 0].tolist()}"
            raise RunError(f"ranks that share layers: {told}; torch or its backend exchanges wrongly, try another version")

    def _ends(self, flat: Tensor) -> Tensor:
        """The first and the last number of each part, as a view."""
        return flat.view(-1, self._each)[:, :: max(1, self._each - 1)]


class _Moving:
    """A collective that has begun. idle: where its buffers go afterwards."""

    def __init__(
        self, collectives: PassCollectives, buffers: _ExchangeBuffers, work: dist.Work, idle: list[_ExchangeBuffers]
    ) -> None:
        self._collectives, self._buffers, self._work, self._idle = collectives, buffers, work, idle

    def wait(self) -> None:
        with self._collectives.noted(self._buffers.whole):
            self._work.wait()
        self._buffers.check()
        self._idle.append(self._buffers)
