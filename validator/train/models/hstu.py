"""Torch modules of recommenders of sequences: looked-up tokens, blocks with pointwise attention, and an MLP over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.recommender.hstu import Hstu
from scaleproof.simulator.model.recommender.placement import each
from scaleproof.validator.train.models.attention import within_documents
from scaleproof.validator.train.models.recommender import LookingUp
from scaleproof.validator.train.models.transformer import IGNORED
from scaleproof.validator.train.models.wiring import DATA, Wire, Wiring, wiring_of

# Standard deviation of initial biases, and the logarithm that one range of times covers, in HSTU's code
# (facebookresearch/generative-recommenders).
_DEVIATION: Final = 0.02
_RANGE: Final = 0.301


class Tokens(LookingUp):
    """The first layer: (batch, tokens, lookups) numbers of rows → (batch, tokens, hidden), sums or turns of tables' rows."""

    def __init__(self, spec: Hstu) -> None:
        super().__init__(spec)
        self.count, self.interleaved = len(each(spec.tables)), spec.interleaved

    def forward(self, rows: Tensor) -> Tensor:
        """The tokens."""
        outputs: Tensor = self.lookups(rows.flatten(0, 1))
        of_tables = outputs.view(*rows.shape[:2], self.count, -1)
        return of_tables.flatten(1, 2) if self.interleaved else of_tables.sum(2)


class RelativeBias(nn.Module):
    """Learned biases of the scores of two tokens: of their distances in position, and of ranges of those in time."""

    def __init__(self, spec: Hstu) -> None:
        super().__init__()
        weights = [nn.Parameter(_DEVIATION * torch.randn(size)) for size in spec.bias_tensors]
        self.position = weights[0]
        self.time = weights[1] if spec.time_buckets else None
        self.longest = spec.positions or spec.sequence

    def forward(self, tokens: int, times: Tensor | None) -> Tensor:
        """(1 or batch, 1, queries, keys) biases. times: (batch, tokens)."""
        place = torch.arange(tokens, device=self.position.device)
        bias = self.position[place[None, :] - place[:, None] + self.longest - 1][None, None]
        if self.time is None or times is None:
            return bias
        passed = (times[:, :, None] - times[:, None, :]).abs().clamp(min=1).to(torch.float64)
        number = (passed.log() / _RANGE).long().clamp(max=len(self.time) - 1)
        return bias + self.time[number][:, None]


@dataclass(frozen=True)
class PointwiseAttention:
    """Attention that weighs values by the SiLU of scores over a number, the longest sequence, in place of a softmax."""

    bias: RelativeBias
    longest: int

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, times: Tensor | None = None) -> Tensor:
        """The mixed values: (batch, heads, tokens, width of values). times: (batch, 1, tokens, 1)."""
        tokens = query.shape[-2]
        scores = query @ key.mT + self.bias(tokens, None if times is None else times.flatten(1))
        weights = functional.silu(scores) / self.longest
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
        return weights.masked_fill(~seen, 0.0) @ value


class HstuBlock(nn.Module):
    """A block: (batch, tokens, hidden) → the same shape."""

    def __init__(self, spec: Hstu) -> None:
        super().__init__()
        self.heads, self.values, self.keys = spec.heads, spec.values, spec.heads * spec.width
        self.reads_times = spec.time_buckets > 0
        self.projected = nn.Linear(spec.hidden, 2 * (self.values + self.keys), bias=False)
        nn.init.normal_(self.projected.weight, std=_DEVIATION)
        self.bias = RelativeBias(spec)
        self.projection = nn.Linear(self.values, spec.hidden)
        nn.init.xavier_uniform_(self.projection.weight)
        self.longest = spec.positions or spec.sequence

    def forward(self, x: Tensor, *data: Tensor) -> Tensor:
        """The block's output. data: times of tokens (batch, tokens) if it reads them, then numbers (batch, tokens) of their
        documents, to which alone they attend, if there are any."""
        projected = functional.silu(self.projected(_normed(x)))
        gate, *mixed = torch.split(projected, [self.values, self.values, self.keys, self.keys], -1)
        value, query, key = (one.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for one in mixed)
        times = (data[0][:, None, :, None],) if self.reads_times else ()
        documents = data[len(times) :]
        attend = PointwiseAttention(self.bias, self.longest)
        attended = within_documents(attend, documents[0]) if documents else attend
        output = attended(query, key, value, *times).transpose(1, 2).flatten(-2)
        return x + self.projection(_normed(output) * gate)  # type: ignore[no-any-return]


class FirstOfEach(nn.Module):
    """A layer over one token of `count` each: the first one of every turn of tables."""

    def __init__(self, count: int, layer: nn.Module) -> None:
        super().__init__()
        self.count, self.layer = count, layer

    def forward(self, x: Tensor) -> Tensor:
        """The layer's outputs for these tokens."""
        return self.layer(x[:, :: self.count])  # type: ignore[no-any-return]


def layer(spec: Hstu, index: int) -> nn.Module:
    """Layer number `index` of the model, as in `spec.build_layers()`."""
    if index == 0:
        return Tokens(spec)
    if index <= spec.layers:
        return HstuBlock(spec)
    number, widths = index - spec.layers - 1, [spec.hidden, *spec.top]
    linear = nn.Linear(widths[number], widths[number + 1])
    module = linear if number == len(spec.top) - 1 else nn.Sequential(linear, nn.ReLU())
    return FirstOfEach(len(each(spec.tables)), module) if spec.interleaved and number == 0 else module


def wiring(spec: Hstu) -> Wiring:
    """Blocks read the times of tokens too, where there are any."""
    first, *others = wiring_of(spec.build_layers())
    times = (Wire(DATA, 1),) if spec.time_buckets else ()
    return [first, *((*reads, *times) for reads in others[: spec.layers]), *others[spec.layers :]]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of the mean cross entropy of (batch, tokens, tasks) logits, other than those of ignored tokens."""
    counted = targets != IGNORED
    losses = functional.binary_cross_entropy_with_logits(outputs, targets.clamp(min=0).to(outputs.dtype), reduction="none")
    of_samples = (losses * counted).flatten(1).sum(1) / counted.flatten(1).sum(1)
    return of_samples.mean()


def _normed(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])
