"""Torch modules of recurrences: Mamba, Mamba-2, gated linear attention and gated DeltaNet in decoder blocks, and the layers of
recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.recurrent_network import RecurrentNetwork
from scaleproof.simulator.model.transformer.recurrent import DECAY_RANK, Recurrence
from scaleproof.validator.train.models.interleaved import InterleavedLinear

# The largest initial decay of Mamba-2 (arXiv 2405.21060), and the temperature of the decays of gated linear attention (arXiv
# 2312.06635, section 4.4).
_LARGEST_DECAY: Final = 16.0
_TEMPERATURE: Final = 16.0


class Mixer(nn.Module):
    """The recurrence of a branch up to its output projection: (batch, tokens, hidden) → (batch, tokens, inner).

    Columns and channels are in the order of heads of keys; those of the states that share one are neighbours, so that a
    contiguous part has whole heads. Parameters may be such a part. summed: sums over ranks that have the other parts.
    """

    def __init__(self, hidden: int, spec: Recurrence) -> None:
        super().__init__()
        self.spec = spec
        self.summed: Callable[[Tensor], Tensor] = _identity
        inner, heads = spec.inner, spec.heads
        groups = spec.groups
        states = heads // groups
        values, keys = states * spec.value_width, 0 if spec.kind == "mamba" else spec.width
        scalars = spec.columns - inner - spec.convolved
        # of a head of keys: gates, values, keys, queries, and what each state has one of
        self.widths = [values, values, keys, keys, *[states] * (scalars // heads)]
        self.input = InterleavedLinear(hidden, groups, self.widths, bias=False)
        if spec.kind == "gla":
            self.decay_down = nn.Linear(hidden, DECAY_RANK, bias=False)
            self.decay_up = nn.Linear(DECAY_RANK, groups * spec.width)
        if spec.convolution:
            has_bias = spec.kind in ("mamba", "mamba2")
            self.convolution = nn.Conv1d(spec.convolved, spec.convolved, spec.convolution, groups=spec.convolved, bias=has_bias)
        if spec.kind == "mamba":
            self.rank = spec.rank_of(hidden)
            self.steps_and_keys = nn.Linear(heads, self.rank + 2 * spec.width, bias=False)
            self.steps = nn.Linear(self.rank, heads)
            self.decay = nn.Parameter(torch.log(torch.arange(1.0, spec.width + 1)).repeat(heads, 1))
            self.skip = nn.Parameter(torch.ones(heads))
        elif spec.kind in ("mamba2", "gated_deltanet"):
            self.decay = nn.Parameter(torch.empty(heads).uniform_(1, _LARGEST_DECAY).log())
            if spec.kind == "mamba2":
                self.skip = nn.Parameter(torch.ones(heads))
            self.step_bias = nn.Parameter(torch.zeros(heads))
        if spec.kind != "mamba":
            self.norm = nn.RMSNorm(inner if spec.kind == "mamba2" else spec.value_width)

    def forward(self, x: Tensor) -> Tensor:
        """The gated outputs."""
        spec, (values, _, keys, *_) = self.spec, self.widths
        gate, mixed, *rest = torch.split(
            self._grouped(self.input(x), sum(self.widths)), [values, values + 2 * keys, *self.widths[4:]], -1
        )
        if spec.convolution:
            mixed = self._grouped(self._convolved(mixed.flatten(-2)), values + 2 * keys)
        if spec.kind == "mamba":
            return self._selective(mixed.flatten(-2)) * functional.silu(gate.flatten(-2))
        value, key, query = torch.split(mixed, [values, keys, keys], -1)
        value = self._grouped(value.flatten(-2), spec.value_width)
        key, query = (self._of_states(one) for one in (key, query))
        if spec.kind == "gla":
            logs: Tensor = functional.logsigmoid(self.decay_up(self.decay_down(x)))
            decays = self._of_states(self._grouped(logs, spec.width)) / _TEMPERATURE
            output = recurrent_outputs(query, key, value, decays.exp())
        elif spec.kind == "mamba2":
            steps = functional.softplus(rest[0].flatten(-2) + self.step_bias)
            decays = torch.exp(-steps * self.decay.exp())[..., None].expand_as(key)
            output = recurrent_outputs(query, key * steps[..., None], value, decays) + value * self.skip[:, None]
        else:
            steps, strength = (one.flatten(-2) for one in rest)
            decays = torch.exp(-functional.softplus(steps + self.step_bias) * self.decay.exp())[..., None].expand_as(key)
            key, query = (functional.normalize(one, dim=-1) for one in (key, query))
            output = recurrent_outputs(query, key, value, decays, strength.sigmoid())
        if spec.kind == "mamba2":
            # of the values that share keys, as in state-spaces/mamba (RMSNormGated with a group for each)
            gated = self._grouped(output.flatten(-2), values) * functional.silu(gate)
            return functional.rms_norm(gated, (values,)).flatten(-2) * self.norm.weight
        return cast(Tensor, self.norm(output).flatten(-2) * functional.silu(gate.flatten(-2)))

    def _grouped(self, x: Tensor, width: int) -> Tensor:
        """(…, columns) as (…, groups, width)."""
        return x.reshape(*x.shape[:-1], -1, width)

    def _convolved(self, x: Tensor) -> Tensor:
        """(batch, tokens, channels) after the causal convolution of each channel and SiLU."""
        weight = self.convolution.weight
        padded = functional.pad(x.transpose(1, 2), (weight.shape[-1] - 1, 0))
        convolved = functional.conv1d(padded, weight, self.convolution.bias, groups=len(weight))
        return functional.silu(convolved).transpose(1, 2)

    def _of_states(self, keys: Tensor) -> Tensor:
        """Keys (batch, tokens, states, width) of all states, some of which share them."""
        return keys.repeat_interleave(self.widths[0] // self.spec.value_width, dim=-2)

    def _selective(self, value: Tensor) -> Tensor:
        """Mamba's outputs, whose decays depend on the channel and the element of the state."""
        given = self.summed(self.steps_and_keys(value))
        steps, key, query = torch.split(given, [self.rank, self.spec.width, self.spec.width], -1)
        steps = functional.softplus(self.steps(steps))[..., None]
        key, query = (one[:, :, None].expand(*value.shape, self.spec.width) for one in (key, query))
        decays = torch.exp(-steps * self.decay.exp())
        return recurrent_outputs(query, key * steps, value[..., None], decays).squeeze(-1) + value * self.skip


def _identity(x: Tensor) -> Tensor:
    return x


def recurrent_outputs(query: Tensor, key: Tensor, value: Tensor, decays: Tensor, strength: Tensor | None = None) -> Tensor:
    """Outputs (batch, tokens, states, width of values) of a recurrence, token by token.

    query, key, decays: (batch, tokens, states, width). strength: of the delta rule, (batch, tokens, states), by which the
    value replaces what a state has for a key; it is added if None.
    """
    state = key.new_zeros(*key.shape[:1], *key.shape[2:], value.shape[-1])
    outputs = []
    for token in range(key.shape[1]):
        state = state * decays[:, token, :, :, None]
        added = value[:, token]
        if strength is not None:
            known = torch.einsum("bhk,bhkv->bhv", key[:, token], state)
            added = strength[:, token, :, None] * (added - known)
        state = state + key[:, token, :, :, None] * added[:, :, None]
        outputs.append(torch.einsum("bhk,bhkv->bhv", query[:, token], state))
    return torch.stack(outputs, 1)


class RecurrentLayer(nn.Module):
    """A recurrent layer: (batch, tokens, hidden) → the same shape."""

    def __init__(self, spec: RecurrentNetwork) -> None:
        super().__init__()
        kinds = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
        self.cell = kinds[spec.cell](spec.hidden, spec.hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all tokens."""
        return cast(Tensor, self.cell(x)[0])


def layer(spec: RecurrentNetwork, index: int) -> nn.Module:
    """Layer number `index` of a recurrent network, as in `spec.build_layers()`."""
    if index == 0:
        return nn.Embedding(spec.vocabulary, spec.hidden)
    return nn.Linear(spec.hidden, spec.vocabulary) if index == spec.layers + 1 else RecurrentLayer(spec)
