"""Training a part of a model: frozen layers, and low-rank adapters next to frozen linear layers (LoRA, DoRA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import torch
from torch import Tensor, nn

from scaleproof.simulator.model.adapters import Adapters, ProductParts, parts_of
from scaleproof.simulator.model.fine_tuning import FineTuning, frozen_layers
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul
from scaleproof.validator.train.models.interleaved import InterleavedLinear


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module that are trained, in order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def freeze(module: nn.Module, layers: Sequence[Layer], number: int, tuning: FineTuning) -> None:
    """Freezes the module of layer `number`, unless it is trained, and adds the adapters that it then has. layers: of the whole
    model, as without fine-tuning."""
    if number not in frozen_layers(layers, tuning):
        return
    module.requires_grad_(False)
    if tuning.adapters is None:
        return
    products = [operator for operator in layers[number].operators if isinstance(operator, Matmul)]
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    for product, part in zip(products, linear, strict=True):
        both = parts_of(layers[number], product)
        _add_adapters(part, both, tuning.adapters, tuning.is_fused)


def _add_adapters(linear: nn.Linear, both: ProductParts, spec: Adapters, is_fused: bool) -> None:
    """Adds adapters to the columns of a linear layer that have some."""
    chosen = both.chosen(spec.targets, is_fused)
    if not chosen:
        return
    widths = [linear.out_features]
    parts = both.split
    if both.whole in chosen:
        parts = (both.whole,)
    elif isinstance(linear, InterleavedLinear):
        widths = linear.widths
    elif len(parts) > 1:
        widths = [part.columns for part in parts]
    adapters = AdapterGroup(linear, widths, [part in chosen for part in parts], spec)
    linear.adapters = adapters
    linear.register_forward_hook(adapters.add)


class AdapterGroup(nn.ModuleList):
    """The adapters of a linear layer's products. widths: columns of each product in a group of neighbouring columns; has: which
    products have an adapter."""

    def __init__(self, linear: nn.Linear, widths: Sequence[int], has: Sequence[bool], spec: Adapters) -> None:
        self._widths, self._places = list(widths), [place for place, one in enumerate(has) if one]
        groups = linear.out_features // sum(widths)
        super().__init__(_ADAPTERS[spec.kind](linear.in_features, groups * widths[place], spec) for place in self._places)
        for adapter, place in zip(self, self._places, strict=True):
            cast(Lora, adapter).begin(self._rows(linear.weight)[place])

    def add(self, linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The output of the linear layer with those of the adapters, as its forward hook."""
        weight, bias = cast(Tensor, linear.weight), cast("Tensor | None", linear.bias)
        weights = self._rows(weight)
        biases = [None] * len(weights) if bias is None else self._rows(bias)
        columns = list(torch.split(output.view(*output.shape[:-1], -1, sum(self._widths)), self._widths, -1))
        for adapter, place in zip(self, self._places, strict=True):
            own = adapter(*inputs, columns[place].flatten(-2), weights[place], biases[place])
            columns[place] = own.view_as(columns[place])
        return torch.cat(columns, -1).flatten(-2)

    def _rows(self, parameter: Tensor) -> list[Tensor]:
        """Each product's rows of a parameter of the linear layer."""
        groups = parameter.detach().view(-1, sum(self._widths), *parameter.shape[1:])
        return [one.flatten(0, 1) for one in torch.split(groups, self._widths, 1)]


class Lora(nn.Module):
    """A low-rank product that is added to a frozen one: (…, inputs) → (…, columns) (arXiv 2106.09685)."""

    def __init__(self, inputs: int, columns: int, spec: Adapters) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(inputs, spec.rank, bias=False), nn.Linear(spec.rank, columns, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale, self.dropout = 1.0 if spec.alpha is None else spec.alpha / spec.rank, nn.Dropout(spec.dropout)

    def begin(self, weight: Tensor) -> None:
        """Sets what begins with values of the frozen weights; nothing here."""

    def forward(self, x: Tensor, output: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The sum of both products. output: of the frozen product. weight, bias: of the frozen product."""
        return output + self.added(x)

    def added(self, x: Tensor) -> Tensor:
        """The output of the low-rank product."""
        return cast(Tensor, self.up(self.down(self.dropout(x))) * self.scale)


class Dora(Lora):
    """A low-rank product with trained norms of the columns of the whole weights (arXiv 2402.09353)."""

    def __init__(self, inputs: int, columns: int, spec: Adapters) -> None:
        super().__init__(inputs, columns, spec)
        # a list, so that it follows the products
        self.magnitudes = nn.ParameterList([torch.empty(columns)])

    def begin(self, weight: Tensor) -> None:
        """Begins with the norms of the frozen weights."""
        with torch.no_grad():
            self.magnitudes[0].copy_(weight.norm(dim=1))

    def forward(self, x: Tensor, output: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The sum of both products, with its trained norms."""
        # norms have no gradients (section 4.3)
        norms = (weight + self.scale * self.up.weight.detach() @ self.down.weight.detach()).norm(dim=1)
        product = output if bias is None else output - bias
        result = (product + self.added(x)) * (self.magnitudes[0] / norms)
        return cast(Tensor, result if bias is None else result + bias)


_ADAPTERS: Final[dict[str, type[Lora]]] = {"lora": Lora, "dora": Dora}
