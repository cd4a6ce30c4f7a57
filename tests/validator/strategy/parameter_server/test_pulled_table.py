"""Lookups in pulled rows give what lookups in the whole table give, and gradients of the same rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scaleproof.validator.strategy.parameter_server.pulled_table import PulledTable

_ROWS, _WIDTH = 50, 3


class Lookups(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, numbers: Tensor) -> Tensor:
        looked_up: Tensor = self.table(numbers)
        return (looked_up * torch.arange(1.0, 1 + looked_up.numel()).view_as(looked_up)).sum()


def exported(module: nn.Module, numbers: Tensor) -> nn.Module:
    """The module as a graph of operators, as layers of a divided module are."""
    return torch.export.export(module, (numbers,), strict=False).module(check_guards=False)


@pytest.mark.parametrize("divide", [lambda module, _: module, exported], ids=["module", "operators"])
@pytest.mark.parametrize(
    "table",
    [
        lambda: nn.Embedding(_ROWS, _WIDTH, sparse=True),
        lambda: nn.Embedding(_ROWS, _WIDTH, sparse=True, padding_idx=7),
        lambda: nn.EmbeddingBag(_ROWS, _WIDTH, mode="mean", sparse=True, padding_idx=7),
        # of which no sample has the row that is left out
        lambda: nn.EmbeddingBag(_ROWS, _WIDTH, mode="sum", sparse=True, padding_idx=8),
    ],
)
def test_pulled_rows_are_looked_up_by_their_numbers_in_the_whole_table(table: Any, divide: Any) -> None:
    numbers = torch.tensor([[3, 7, 49], [7, 30, 3]], dtype=torch.int32)
    module = divide(Lookups(table()), numbers)
    whole = module.get_parameter("table.weight")
    expected = module(numbers)
    expected.backward()
    assert whole.grad is not None
    gradient = whole.grad.to_dense()

    # messages repeat the last row
    rows = torch.tensor([3, 7, 30, 49, 49])
    pulled = PulledTable(whole.detach()[rows])
    pulled.rows, pulled.grad = rows, torch.zeros(len(rows), _WIDTH)
    module.get_submodule("table").register_parameter("weight", pulled)
    result = module(numbers)
    result.backward()

    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(pulled.grad[:4], gradient[rows[:4]])
    assert pulled.grad[4].count_nonzero() == 0
