"""A gated layer that is called by keywords alone."""

import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.gate(rows)) * self.up(rows)


layer = Gated().cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    layer(rows=torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
