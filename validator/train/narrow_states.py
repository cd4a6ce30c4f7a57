"""Optimizer states in 32, 16 or 8 bits, whatever the precision of the parameters.

States of 8 bits are quantised by blocks of 256 elements with one scale in 32 bits, to the nearest of 256 values that are dense
near zero (arXiv 2110.02861, section 2.2; bitsandbytes' create_dynamic_map); tensors of few elements have 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from scaleproof.simulator.cluster.device.device import LEAST_NARROW_STATES, STATE_BLOCK, StateBits
from scaleproof.validator.train.master_copies import part_of

_DECADES: Final = 7
_WIDE: Final = torch.float32
# States that are never negative, by the names of torch's Adam and of LAMB.
_SQUARES: Final = ("exp_avg_sq", "second")


class NarrowStates(torch.optim.Optimizer):
    """Updates one parameter after the other by an optimizer of its own, whose states are widened before and narrowed after."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        build: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
        bits: StateBits,
    ) -> None:
        """build: the optimizer of a parameter."""
        given = list(parameters)
        super().__init__(given, {})
        # of sharded parameters, this rank's parts
        self._pairs = [(parameter, nn.Parameter(part_of(parameter.detach()))) for parameter in given]
        self._optimizers = [build([own]) for _, own in self._pairs]
        self._narrow = _NARROW[bits]
        self._states: list[dict[str, Narrow]] = [{} for _ in given]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Updates all parameters that have a gradient."""
        for (parameter, own), optimizer, states in zip(self._pairs, self._optimizers, self._states, strict=True):
            if parameter.grad is None:
                continue
            own.data, own.grad = part_of(parameter.detach()), part_of(parameter.grad)
            state = optimizer.state[own]
            state.update({name: narrow.widened(own) for name, narrow in states.items()})
            optimizer.step()
            own.grad = None
            for name in [name for name, value in state.items() if isinstance(value, Tensor) and value.dim()]:
                values = state.pop(name)
                if name not in states:
                    states[name] = self._narrow(values, name not in _SQUARES)
                states[name].keep(values)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all states between steps, other than numbers of steps."""
        return sum(narrow.stored_bytes for states in self._states for narrow in states.values())


class Narrow(Protocol):
    """A state between steps."""

    def widened(self, like: Tensor) -> Tensor:
        """The state in the precision and on the device of a parameter."""

    def keep(self, values: Tensor) -> None:
        """Replaces the state by the nearest one to these values."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of the state."""


class _Cast(NamedTuple):
    """A state in another precision."""

    values: Tensor

    def widened(self, like: Tensor) -> Tensor:
        """The state in the precision of a parameter."""
        return self.values.to(like.dtype)

    def keep(self, values: Tensor) -> None:
        """Casts the values."""
        self.values.copy_(values)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the values."""
        return self.values.nbytes


class _Quantised(NamedTuple):
    """A state of 8 bits. scales: the largest absolute value of each block."""

    codes: Tensor
    scales: Tensor
    shape: torch.Size
    is_signed: bool

    @classmethod
    def like(cls, values: Tensor, is_signed: bool) -> _Quantised | _Cast:
        """A state of 8 bits; of 32 bits where there are few elements."""
        if values.numel() < LEAST_NARROW_STATES:
            return _Cast(torch.empty_like(values, dtype=_WIDE))
        codes = torch.empty(values.numel(), dtype=torch.uint8, device=values.device)
        scales = torch.empty(-(-values.numel() // STATE_BLOCK), dtype=_WIDE, device=values.device)
        return cls(codes, scales, values.shape, is_signed)

    def keep(self, values: Tensor) -> None:
        """Rounds the values to the nearest levels."""
        flat = values.flatten().to(_WIDE)
        blocks = nn.functional.pad(flat, (0, -len(flat) % STATE_BLOCK)).view(-1, STATE_BLOCK)
        torch.amax(blocks.abs(), 1, out=self.scales)
        levels = _levels(self.is_signed).to(flat.device)
        shares = blocks / self.scales.clamp_min(torch.finfo(_WIDE).tiny)[:, None]
        self.codes.copy_(torch.bucketize(shares, (levels[1:] + levels[:-1]) / 2, out_int32=True).view(-1)[: len(flat)])

    def widened(self, like: Tensor) -> Tensor:
        """The state in the precision of a parameter."""
        values = _levels(self.is_signed).to(self.codes.device)[self.codes.int()]
        scales = self.scales.repeat_interleave(STATE_BLOCK)[: len(values)]
        return (values * scales).view(self.shape).to(like.dtype)

    @property
    def stored_bytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes


@cache
def _levels(is_signed: bool) -> Tensor:
    """The 256 values of a code, ascending: in each of seven decades twice as many as in the smaller one, zero and one."""
    values = [0.0, 1.0]
    for decade in range(_DECADES):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not is_signed)) + 1)
        means = ((edges[1:] + edges[:-1]) / 2 * 10.0 ** (decade - _DECADES + 1)).tolist()
        values += means + [-mean for mean in means if is_signed]
    return torch.tensor(sorted(values), dtype=_WIDE)


# By bits, a state of the size of a tensor, given whether it may be negative.
_NARROW: Final[dict[int, Callable[[Tensor, bool], Narrow]]] = {
    8: _Quantised.like,
    16: lambda values, _: _Cast(torch.empty_like(values, dtype=torch.bfloat16)),
    32: lambda values, _: _Cast(torch.empty_like(values, dtype=_WIDE)),
}
