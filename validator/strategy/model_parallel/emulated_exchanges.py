"""Exchanges of emulated layers: messages of the size that the scenario's layers would exchange, with test data.

Ranks that share an emulated layer all train all of it on the same samples, so that parameters do not show whether these
exchanges are correct. Their data does: zeros except for the first and last number of each part, which are the sender's place
counted from 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.model_parallel import expert
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.model_parallel.expert import wire_of
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives, both_ways, identity


class EmulatedExchanges:
    """Makes the exchanges of emulated layers. A pass waits for them before it computes, for hidden ones afterwards, and for
    all-to-alls that overlap with another microbatch's compute: emulated compute is the same time, whichever microbatch's. Of
    collectives in pieces that overlap with products it waits for one piece before, and for the others afterwards.

    teams: by the axis along which ranks exchange.
    """

    def __init__(self, teams: Mapping[str, PassCollectives], dtype: torch.dtype, scenario: Scenario) -> None:
        self._teams = teams
        self._dtype = dtype
        self._layout = cast(LayerCollectives, with_collectives(scenario.strategy.plan, job_of(scenario)).exchange)
        self._idle: defaultdict[tuple[str, str, int, torch.dtype], list[_ExchangeBuffers]] = defaultdict(list)
        self._begun = 0

    def check_step(self, expected: int) -> None:
        """Raises RunError where a step had fewer exchanges than expected. The first has more: stages infer shapes in it."""
        begun, self._begun = self._begun, 0
        if begun < expected:
            raise RunError(
                f"ranks that share layers made {begun} of a step's {expected} exchanges; please report this scenario"
            )

    def attach(self, module: nn.Module, layer: Layer, again: Sequence[Exchange]) -> None:
        """Adds the layer's exchanges to the module. again: those that recomputation repeats before the backward pass."""
        begun: list[_PendingExchange] = []
        forward = [exchange for exchange in layer.exchanges if not exchange.backward]
        behind = [*again, *(exchange for exchange in layer.exchanges if exchange.backward)]

        def begin(exchanges: Sequence[Exchange], x: Tensor) -> Tensor:
            for exchange in exchanges:
                moving = self._begin(exchange, len(x))
                if exchange.hidden or (exchange.routed is not None and self._layout.plan.overlap_experts):
                    begun.extend(moving)
                else:
                    for one in moving:
                        one.wait()
                    begun.extend(self._begin_others(exchange, len(x)))
            return identity(x)

        def end(x: Tensor) -> Tensor:
            while begun:
                begun.pop(0).wait()
            return identity(x)

        module.register_forward_pre_hook(lambda _, inputs: (both_ways(partial(begin, forward), end, inputs[0]), *inputs[1:]))
        module.register_forward_hook(lambda _, inputs, output: both_ways(end, partial(begin, behind), output))

    def _begin(self, exchange: Exchange, samples: int) -> list[_PendingExchange]:
        """Starts the collectives of an exchange, which move concurrently; of one in pieces, the first piece."""
        self._begun += 1
        routed, plan = exchange.routed, self._layout.plan
        if routed is None:
            return [self._begin_on(exchange.axis, exchange.op, self._first_elements(exchange, samples), self._dtype)]
        wire = wire_of(plan.combine_precision if routed.combines else plan.dispatch_precision) or self._dtype
        if not plan.deduplicated:
            return [self._begin_on("expert", "alltoall", exchange.elements * samples, wire)]
        copy = exchange.elements * samples / routed.active
        copies = zip(("between", "inside"), expert.copies(plan, routed, self._layout.mesh.passing("expert")), strict=True)
        return [self._begin_on(hop, "alltoall", math.ceil(copy * count), wire) for hop, count in copies]

    def _begin_others(self, exchange: Exchange, samples: int) -> list[_PendingExchange]:
        """Starts the pieces of an exchange behind the first one, if it has any."""
        if not self._layout.in_pieces(exchange):
            return []
        elements = exchange.elements * samples - self._first_elements(exchange, samples)
        return [self._begin_on(exchange.axis, exchange.op, elements, self._dtype)]

    def _first_elements(self, exchange: Exchange, samples: int) -> int:
        """Elements of the first piece of an exchange, or of the whole if it is in one piece."""
        pieces = self._teams[exchange.axis].team.size if self._layout.in_pieces(exchange) else 1
        return -(-exchange.elements * samples // pieces)

    def _begin_on(self, axis: str, op: str, elements: int, dtype: torch.dtype) -> _PendingExchange:
        """Starts one collective. elements: of all parts together."""
        collectives = self._teams[axis]
        team = collectives.team
        each = -(-elements // team.size)
        idle = self._idle[op, axis, each, dtype]
        buffers = idle.pop() if idle else _ExchangeBuffers(op, team, each, dtype)
        buffers.fill()
        work: Any
        if op == "all_reduce":
            work = dist.all_reduce(buffers.whole, group=team.group, async_op=True)
        elif op == "all_gather":
            work = collectives.begin_gather(buffers.whole, buffers.own)
        elif op == "alltoall":
            work = dist.all_to_all_single(buffers.theirs, buffers.whole, group=team.group, async_op=True)
        else:
            assert op == "reduce_scatter", f"{op} is no collective of layers"
            work = collectives.begin_scatter(buffers.own, buffers.whole)
        return _PendingExchange(collectives, buffers, work, idle)


class _ExchangeBuffers:
    """Buffers of one exchange at a time. whole: all parts. own: this rank's part. theirs: the result of an all-to-all."""

    def __init__(self, op: str, team: Team, each: int, dtype: torch.dtype) -> None:
        self.whole, self.own = torch.zeros(each * team.size, dtype=dtype), torch.zeros(each, dtype=dtype)
        self.theirs = torch.zeros_like(self.whole) if op == "alltoall" else self.whole
        self._op, self._place = op, team.place
        self._sent = self.own if op == "all_gather" else self.whole
        self._received = self.own if op == "reduce_scatter" else self.theirs
        places = torch.arange(1, team.size + 1, dtype=dtype).view(-1, 1)
        summed = op not in ("all_gather", "alltoall")
        self._expected = places.sum().view(1, 1).expand(len(self._received) // each, 1) if summed else places
        self._each = each
        # sums of integers, which short formats round
        self._tolerance = team.size * torch.finfo(dtype).eps

    def fill(self) -> None:
        self._ends(self._received)[:] = 0
        self._ends(self._sent)[:] = self._place + 1

    def check(self) -> None:
        """Raises RunError where the received numbers are not the expected ones."""
        ends = self._ends(self._received)
        if not bool(((ends - self._expected).abs() <= self._tolerance * self._expected).all()):
            wrong = f"{self._op} returned {ends[:, 0].tolist()} instead of {self._expected[:, 0].tolist()}"
            raise RunError(f"ranks that share layers: {wrong}; torch or its backend has an error, try another version")

    def _ends(self, flat: Tensor) -> Tensor:
        """The first and the last number of each part, as a view."""
        return flat.view(-1, self._each)[:, :: max(1, self._each - 1)]


class _PendingExchange:
    """A collective under way. idle: the list to which its buffers return."""

    def __init__(
        self, collectives: PassCollectives, buffers: _ExchangeBuffers, work: dist.Work, idle: list[_ExchangeBuffers]
    ) -> None:
        self._collectives, self._buffers, self._work, self._idle = collectives, buffers, work, idle

    def wait(self) -> None:
        with self._collectives.noted(self._buffers.whole):
            self._work.wait()
        self._buffers.check()
        self._idle.append(self._buffers)
