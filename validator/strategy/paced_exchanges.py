"""What paced layers exchange where ranks share them: as much as the scenario's layers would, and nothing but zeros.

Ranks that share a small layer all train all of it, on the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from simulator.model.layers import Layer
from simulator.model.operators import Exchange
from validator.strategy import collectives
from validator.strategy.lockstep import Lockstep, alike, both_ways


class PacedExchanges:
    """Exchanges hold a pass up before it computes; hidden ones go on meanwhile, and hold it up afterwards if they are not done.

    teams: by the axes along which ranks exchange.
    """

    def __init__(self, teams: Mapping[str, Lockstep], dtype: torch.dtype) -> None:
        self._teams = teams
        # zeros stay zeros whatever is done with them
        self._zeros = lru_cache(maxsize=256)(partial(torch.zeros, dtype=dtype))

    def attach(self, module: nn.Module, layer: Layer) -> None:
        """Has the module exchange what the layer does."""
        begun: list[_Moving] = []

        def begin(backward: bool, x: Tensor) -> Tensor:
            for exchange in layer.exchanges:
                if exchange.backward == backward:
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

        module.register_forward_pre_hook(lambda _, inputs: both_ways(partial(begin, False), end, inputs[0]))
        module.register_forward_hook(lambda _, inputs, output: both_ways(end, partial(begin, True), output))

    def _begin(self, exchange: Exchange, samples: int) -> _Moving:
        lockstep = self._teams[exchange.axis]
        team = lockstep.team
        each = -(-exchange.elements * samples // team.size)
        whole, own = self._zeros(each * team.size), self._zeros(each)
        work: Any
        if exchange.op == "all_reduce":
            work = dist.all_reduce(whole, group=team.group, async_op=True)
        elif exchange.op == "all_gather":
            work = collectives.all_gather(whole, own, team.group)
        else:
            assert exchange.op == "reduce_scatter", f"experts alone use {exchange.op}, and are not paced"
            work = collectives.reduce_scatter(own, whole, team.group)
        return _Moving(lockstep, whole, work)


class _Moving:
    """A collective that has begun."""

    def __init__(self, lockstep: Lockstep, whole: Tensor, work: dist.Work) -> None:
        self._lockstep, self._whole, self._work = lockstep, whole, work

    def wait(self) -> None:
        with self._lockstep.noted(self._whole):
            self._work.wait()
