"""Tensor and sequence parallelism: ranks share a layer's matrices, and with sequence parallelism the tokens in between.

Matrices are divided as in Megatron-LM (arXiv 1909.08053): columns of the first product of a branch and rows of the second, so
that a branch needs one sum; heads stay whole, and the vocabulary is divided in the embedding and the output. With sequence
parallelism (arXiv 2205.05198) each rank has a part of the tokens between branches: sums become all-gathers and reduce-scatters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn import functional

from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.model_parallel.overlapped_products import OverlappedProducts
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives
from scaleproof.validator.train.models.mixture import Expert, Mixture
from scaleproof.validator.train.models.recurrent import Mixer
from scaleproof.validator.train.models.transformer import Embedding

# of (batch, sequence, hidden)
_SEQUENCE: Final = 1


class _Cut(NamedTuple):
    """The dimension along which a parameter is divided, and the whole parameter's length in it."""

    dim: int
    whole: int


class TensorParallel:
    """Divides layers among the ranks along a mesh's axis 'tensor'. recorder: records their collectives.

    overlapped: overlaps collectives of sequence parallelism with the products next to them; None if they block the pass.
    """

    def __init__(
        self, mesh: DeviceMesh, recorder: Recorder, vocabulary: int, *, sequence: bool, overlap: bool, folds: bool
    ) -> None:
        """folds: whether each rank has whole experts, for its own tokens, instead of a part of every expert's matrices."""
        self.experts_style = FoldedExperts(self) if folds else ParallelExperts(self)
        self.mesh = mesh["tensor"]
        self.team = Team.along(mesh, "tensor")
        self.collectives = PassCollectives(recorder, self.team)
        self.sequence = sequence
        self.overlapped = OverlappedProducts(self.collectives) if overlap else None
        self.words = -(-vocabulary // self.team.size)
        self.own_words = max(0, min(self.words, vocabulary - self.team.place * self.words))
        self._cuts: dict[nn.Parameter, _Cut] = {}
        self._summands: set[nn.Parameter] = set()

    def divide(self, layer: nn.Module) -> None:
        """Reduces a layer to this rank's part."""
        plan: dict[str, ParallelStyle] = {
            "token": VocabParallelEmbedding(self),
            "output": ColumnParallelLinear(self),
            "mixture": self.experts_style,
        }
        plan |= {
            "qkv": ColumnParallelLinear(self),
            "projection": RowParallelLinear(self),
            "expand": ColumnParallelLinear(self),
            "contract": RowParallelLinear(self),
            "mixer": ParallelRecurrence(self),
        }
        parallelize_module(layer, self.mesh, {name: plan[name] for name, _ in layer.named_children() if name in plan})
        for name in ("query_norm", "key_norm"):
            # each rank normalises its own heads
            for parameter in getattr(layer, name).parameters() if hasattr(layer, name) else ():
                self.note_summand(parameter)
        if isinstance(layer, Embedding) and self.sequence:
            layer.positions = layer.positions.chunk(self.team.size)[self.team.place]

    def cut(self, module: nn.Module, name: str, dim: int) -> None:
        """Reduces a parameter to this rank's part, padded with zeros where ranks do not divide its length."""
        whole = getattr(module, name).detach()
        length = whole.shape[dim]
        each = -(-length // self.team.size)
        begin, end = (min(length, place * each) for place in (self.team.place, self.team.place + 1))
        own = whole.new_zeros([each if d == dim else size for d, size in enumerate(whole.shape)])
        own.narrow(dim, 0, end - begin).copy_(whole.narrow(dim, begin, end - begin))
        parameter = nn.Parameter(own)
        setattr(module, name, parameter)
        self._cuts[parameter] = _Cut(dim, length)

    def enter(self, x: Tensor) -> Tensor:
        """The input of a divided layer, for which all ranks need all tokens."""
        return self.collectives.gathered(x, _SEQUENCE) if self.sequence else self.collectives.entered(x)

    def leave(self, x: Tensor) -> Tensor:
        """The output of a divided layer, of which each rank has a summand for all tokens."""
        return self.collectives.scattered(x, _SEQUENCE) if self.sequence else self.collectives.left(x)

    def of_parts(self, module: nn.Module) -> list[nn.Parameter]:
        """Replicated parameters of whose gradients each rank computes a part: that of its tokens or of its outputs."""
        parts = self._summands | ({p for p in module.parameters() if p not in self._cuts} if self.sequence else set())
        return [parameter for parameter in module.parameters() if parameter in parts]

    def note_summand(self, parameter: nn.Parameter) -> None:
        """Notes that each rank computes a summand of the parameter's gradient."""
        self._summands.add(parameter)

    def whole(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters with the parts of all ranks gathered; to be called on all ranks."""
        return {name: self.joined(value, value) for name, value in parameters.items()}

    def joined(self, parameter: Tensor, value: Tensor) -> Tensor:
        """A value with the shape of this rank's part of a parameter, with the parts of all ranks gathered."""
        cut = self._cuts.get(parameter) if isinstance(parameter, nn.Parameter) else None
        return value if cut is None else self.collectives.together(value, cut.dim).narrow(cut.dim, 0, cut.whole)

    def replace(self, parameters: Iterable[tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Notes that parameters have been replaced by others with the same part. parameters: pairs of old and new ones."""
        for old, new in parameters:
            if old in self._cuts:
                self._cuts[new] = self._cuts.pop(old)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of (…, words) outputs, each rank with those of its words, against (…) class numbers.

        For each token ranks exchange the largest logit, the sum of exponentials and the target word's logit.
        """
        logits = outputs.flatten(0, -2)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.own_words < self.words:
            logits = logits.masked_fill(torch.arange(self.words, device=logits.device) >= self.own_words, -torch.inf)
        logits = logits - self.collectives.summed(logits.detach().amax(-1), dist.ReduceOp.MAX).unsqueeze(-1)
        exponents = self.collectives.left(logits.exp().sum(-1))
        row, inside = self.row_of(targets.flatten())
        right = logits.gather(-1, row.unsqueeze(-1)).squeeze(-1).masked_fill(~inside, 0.0)
        return (exponents.log() - self.collectives.left(right)).mean()

    def row_of(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Each word's row on this rank (0 for words of other ranks), and whether it is on this rank."""
        row = words - self.team.place * self.words
        inside = (row >= 0) & (row < self.words)
        return torch.where(inside, row, 0), inside


class _Style(ParallelStyle):
    """A way to divide a module, by `_apply`, which is private, as in torch 2.11 to 2.13."""

    def __init__(self, shared: TensorParallel) -> None:
        self.shared = shared


class ColumnParallelLinear(_Style):
    """A linear layer of which each rank computes some outputs for all tokens."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, _ in list(module.named_parameters()):
            self.shared.cut(module, name, 0)
        if self.shared.overlapped is not None:
            _replace_forward(module, partial(_multiply_columns, cast(nn.Linear, module), self.shared.overlapped))
        else:
            module.register_forward_pre_hook(lambda _, inputs: (self.shared.enter(inputs[0]),))
        return module


class RowParallelLinear(_Style):
    """A linear layer of which each rank reads some inputs: outputs are summed over ranks, then the bias is added."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.shared.cut(module, "weight", 1)
        _replace_forward(module, partial(_add_rows, cast(nn.Linear, module), self.shared))
        return module


class ParallelRecurrence(_Style):
    """A recurrence of which each rank has some of the states, with all keys that these read."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        mixer, shared = cast(Mixer, module), self.shared
        kind = mixer.spec.kind
        # what all states share, and each rank uses for its own
        replicated = {"gla": ("decay_down", "norm"), "gated_deltanet": ("norm",)}.get(kind, ())
        for part, name in [(one, name) for one in mixer.modules() for name, _ in one.named_parameters(recurse=False)]:
            if part in [getattr(mixer, one) for one in replicated]:
                shared.note_summand(part.get_parameter(name))
            else:
                # time steps, keys and queries of Mamba are sums over all channels
                shared.cut(part, name, 1 if part is getattr(mixer, "steps_and_keys", None) else 0)
        if kind == "mamba":
            mixer.summed = lambda part: shared.collectives.entered(shared.collectives.left(part))
        mixer.register_forward_pre_hook(lambda _, inputs: (shared.enter(inputs[0]),))
        return module


class ParallelExperts(_Style):
    """A mixture of which each rank has some hidden columns of every expert; outputs of all tokens are summed once."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for expert in (part for part in module.modules() if isinstance(part, Expert)):
            self.shared.cut(expert.up, "weight", 0)
            self.shared.cut(expert.down, "weight", 1)
        for parameter in cast(Mixture, module).router.parameters():
            self.shared.note_summand(parameter)
        module.register_forward_pre_hook(lambda _, inputs: (self.shared.enter(inputs[0]),))
        module.register_forward_hook(lambda _, inputs, outputs: self.shared.leave(outputs))
        return module


class FoldedExperts(_Style):
    """A mixture of which each rank has whole experts and its own tokens; shared experts, which all tokens pass, are divided."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        shared = cast(Mixture, module).shared
        if shared is not None:
            self.shared.cut(shared.up, "weight", 0)
            self.shared.cut(shared.down, "weight", 1)
            shared.register_forward_pre_hook(lambda _, inputs: (self.shared.enter(inputs[0]),))
            shared.register_forward_hook(lambda _, inputs, outputs: self.shared.leave(outputs))
        return module


class VocabParallelEmbedding(_Style):
    """An embedding of which each rank has some words; the rows that ranks look up are summed."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.shared.cut(module, "weight", 0)
        _replace_forward(module, partial(_look_up, cast(nn.Embedding, module), self.shared))
        return module


def _replace_forward(module: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
    module.forward = forward


def _multiply_columns(module: nn.Linear, overlapped: OverlappedProducts, x: Tensor) -> Tensor:
    return overlapped.column(x, module.weight, module.bias)


def _add_rows(module: nn.Linear, shared: TensorParallel, x: Tensor) -> Tensor:
    if shared.overlapped is not None:
        summed = shared.overlapped.row(x, module.weight)
    else:
        summed = shared.leave(functional.linear(x, module.weight))
    return summed if module.bias is None else summed + module.bias


def _look_up(module: nn.Embedding, shared: TensorParallel, tokens: Tensor) -> Tensor:
    row, inside = shared.row_of(tokens)
    return shared.leave(functional.embedding(row, module.weight).masked_fill(~inside.unsqueeze(-1), 0.0))
