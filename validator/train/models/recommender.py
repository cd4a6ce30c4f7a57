"""Torch modules of recommenders: lookups in tables with a bottom MLP, an interaction, and the layers of a top MLP."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.recommender.dlrm import Dlrm
from scaleproof.simulator.model.recommender.parts import Recommender
from scaleproof.simulator.model.recommender.placement import each
from scaleproof.validator.train.models.wiring import DATA, Wire, Wiring, wiring_of


class Lookups(nn.ModuleDict):
    """Tables by number: (batch, lookups) rows of all tables → (batch, width), sums of each table's rows.

    They begin as in DLRM's code (arXiv 1906.00091): uniform within ±1/√rows.
    """

    def __init__(self, spec: Recommender) -> None:
        tables = each(spec.tables)
        super().__init__({str(n): nn.EmbeddingBag(table.rows, table.dim, mode="sum") for n, table in enumerate(tables)})
        self.spec, self.lookups = spec, [round(table.pooling) for table in tables]
        for table, bag in zip(tables, self.values(), strict=True):
            nn.init.uniform_(bag.get_parameter("weight"), -(table.rows**-0.5), table.rows**-0.5)

    def forward(self, rows: Tensor) -> Tensor:
        """The outputs of all tables in order."""
        pooled = self.pooled(dict(enumerate(torch.split(rows, self.lookups, -1))))
        return torch.cat([pooled[number] for number in range(len(self.lookups))], -1)

    def pooled(self, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """By table, sums of its rows."""
        return {number: self[str(number)](own) for number, own in rows.items()}

    def gathered(self) -> dict[str, Tensor]:
        """By name, tables of which each rank has a part; to be called on all ranks together."""
        return {}


class LookingUp(nn.Module):
    """The first layer of a recommender."""

    def __init__(self, spec: Recommender) -> None:
        super().__init__()
        self.lookups = Lookups(spec)


class Features(LookingUp):
    """The first layer: outputs of tables, and of the bottom MLPs over dense features or over looked-up rows."""

    def __init__(self, spec: Dlrm) -> None:
        super().__init__(spec)
        dims = [table.dim for table in each(spec.tables)]
        # outputs of tables that pass by the bottom MLPs, and widths of those that these read
        self.passed, self.read = {
            "towers": (0, [sum(dims[: len(dims) // 2]), sum(dims[len(dims) // 2 :])]),
            "neumf": (sum(dims[:2]), [sum(dims[2:])]),
        }.get(spec.interaction, (sum(dims), []))
        self.bottoms = nn.ModuleList(
            _mlp([width, *spec.bottom], spec.dropout) for width in self.read or [spec.dense] if spec.bottom
        )

    def forward(self, *data: Tensor) -> Tensor:
        """The outputs next to one another. data: dense features, if any, and numbers of rows."""
        outputs = self.lookups(data[-1])
        passed, *read = torch.split(outputs, [self.passed, *self.read], -1)
        inputs = read or [*data[:-1]]
        return torch.cat([passed, *(mlp(one) for mlp, one in zip(self.bottoms, inputs, strict=True))], -1)


class Interaction(nn.Module):
    """The interaction of outputs (batch, features), without parameters."""

    def __init__(self, spec: Dlrm) -> None:
        super().__init__()
        self.spec, self.dim = spec, spec.tables[0].dim

    def forward(self, x: Tensor) -> Tensor:
        """What the top MLP reads, or the logit."""
        spec, dim = self.spec, self.dim
        if spec.interaction == "dot":
            outputs = x.view(len(x), -1, dim)
            row, column = torch.tril_indices(outputs.shape[1], outputs.shape[1], -1, device=x.device)
            pairs = (outputs @ outputs.transpose(1, 2))[:, row, column]
            return torch.cat([outputs[:, -1], pairs], -1) if spec.bottom else pairs
        if spec.interaction == "neumf":
            return torch.cat([x[:, :dim] * x[:, dim : 2 * dim], x[:, 2 * dim :]], -1)
        if spec.interaction == "towers":
            left, right = x.chunk(2, -1)
            return left * right if spec.top else (left * right).sum(-1, keepdim=True)
        return x


class Cross(nn.Module):
    """A cross layer x₀ ⊙ (U V x + b) + x of DCN v2 (arXiv 2008.13535)."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        self.down = None if rank is None else nn.Linear(width, rank, bias=False)
        self.linear = nn.Linear(rank or width, width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        """The sum of the input and its products with the model's features."""
        crossed: Tensor = self.linear(x if self.down is None else self.down(x))
        return first * crossed + x


def layer(spec: Dlrm, index: int) -> nn.Module:
    """Layer number `index` of a recommender, as in `spec.build_layers()`."""
    if index == 0:
        return Features(spec)
    layers = spec.build_layers()
    if index <= spec.cross_layers:
        return Cross(layers[0].output_elements, spec.cross_rank)
    if not layers[index].tensors:
        return Interaction(spec)
    linear = nn.Linear(layers[index - 1].output_elements, layers[index].output_elements)
    return linear if index == len(layers) - 1 else nn.Sequential(linear, nn.ReLU())


def wiring(spec: Dlrm) -> Wiring:
    """The first layer reads dense features and numbers of rows, cross layers its output too."""
    _, *others = wiring_of(spec.build_layers())
    crossed, rest = others[: spec.cross_layers], others[spec.cross_layers :]
    data = tuple(Wire(DATA, place) for place in range(1 + bool(spec.dense)))
    return [data, *((Wire(0), reads[-1]) for reads in crossed), *rest]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of (batch, 1) logits of clicks."""
    return functional.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets.to(outputs.dtype))


def _mlp(widths: Sequence[int], dropout: float) -> nn.Sequential:
    layers = [
        one
        for inputs, outputs in itertools.pairwise(widths)
        for one in (nn.Linear(inputs, outputs), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else []))
    ]
    return nn.Sequential(*layers)
