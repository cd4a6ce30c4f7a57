"""Torch modules of recurrences: Mamba, Mamba-2, gated linear attention and gated DeltaNet in decoder blocks, and the layers of
recurrent networks."""

from __future__ import annotations

from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.recurrent_network import RecurrentNetwork
from scaleproof.simulator.model.transformer.recurrent import DECAY_RANK, Recurrence

# The largest initial decay of Mamba-2 (arXiv 2405.21060), and the temperature of the decays of gated linear attention (arXiv
# 2312.06635, section 4.4).
_LARGEST_DECAY: Final = 16.0
_TEMPERATURE: Final = 16.0


class Mixer(nn.Module):
    """The recurrence of a branch up to its output projection: (batch, tokens, hidden) → (batch, tokens, inner)."""

    def __init__(self, hidden: int, spec: Recurrence) -> None:
        super().__init__()
        self.spec = spec
        keys, inner, heads = spec.key_columns // 2, spec.inner, spec.heads
        self.keys, self.convolved = keys, spec.convolved
        self.input = nn.Linear(hidden, spec.columns, bias=False)
        if spec.kind == "gla":
            self.decay_down = nn.Linear(hidden, DECAY_RANK, bias=False)
            self.decay_up = nn.Linear(DECAY_RANK, keys)
        if spec.convolution:
            has_bias = spec.kind in ("mamba", "mamba2")
            self.convolution = nn.Conv1d(self.convolved, self.convolved, spec.convolution, groups=self.convolved, bias=has_bias)
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
        spec, inner = self.spec, self.spec.inner
        projected = self.input(x)
        gate, mixed, rest = projected.split([inner, self.convolved, projected.shape[-1] - inner - self.convolved], -1)
        if spec.convolution:
            padded = functional.pad(mixed.transpose(1, 2), (spec.convolution - 1, 0))
            mixed = functional.silu(self.convolution(padded)).transpose(1, 2)
        if spec.kind == "mamba":
            return self._selective(mixed) * functional.silu(gate)
        value, key, query = mixed.split([inner, self.keys, self.keys], -1)
        value = value.reshape(*value.shape[:-1], spec.heads, spec.value_width)
        key, query = (self._of_states(one) for one in (key, query))
        if spec.kind == "gla":
            logs: Tensor = functional.logsigmoid(self.decay_up(self.decay_down(x)))
            decays = logs.view(*logs.shape[:-1], -1, spec.width) / _TEMPERATURE
            output = recurrent_outputs(query, key, value, decays.exp())
        elif spec.kind == "mamba2":
            steps = functional.softplus(rest + self.step_bias)
            decays = torch.exp(-steps * self.decay.exp())[..., None].expand_as(key)
            output = recurrent_outputs(query, key * steps[..., None], value, decays) + value * self.skip[:, None]
        else:
            steps, strength = rest.chunk(2, -1)
            decays = torch.exp(-functional.softplus(steps + self.step_bias) * self.decay.exp())[..., None].expand_as(key)
            key, query = (functional.normalize(one, dim=-1) for one in (key, query))
            output = recurrent_outputs(query, key, value, decays, strength.sigmoid())
        if spec.kind == "mamba2":
            return cast(Tensor, self.norm(output.flatten(-2) * functional.silu(gate)))
        return cast(Tensor, self.norm(output).flatten(-2) * functional.silu(gate))

    def _of_states(self, keys: Tensor) -> Tensor:
        """Keys (batch, tokens, states, width) of all states, some of which share them."""
        shared = keys.reshape(*keys.shape[:-1], -1, self.spec.width)
        return shared.repeat_interleave(self.spec.heads // shared.shape[-2], dim=-2)

    def _selective(self, value: Tensor) -> Tensor:
        """Mamba's outputs, whose decays depend on the channel and the element of the state."""
        given = self.steps_and_keys(value)
        steps, key, query = given.split([self.rank, self.spec.width, self.spec.width], -1)
        steps = functional.softplus(self.steps(steps))[..., None]
        key, query = (one[:, :, None].expand(*value.shape, self.spec.width) for one in (key, query))
        decays = torch.exp(-steps * self.decay.exp())
        return recurrent_outputs(query, key * steps, value[..., None], decays).squeeze(-1) + value * self.skip


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
