"""Rows that are repeated as often as unknown values say, with and without a known number of results."""

import torch
from torch import nn

layer = nn.Linear(64, 64, bias=False).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    rows = torch.randn(512, 64, device="cuda")
    counts = (rows.sum(1) > 0).long()
    total = layer(rows.repeat_interleave(counts, 0)).sum() + layer(rows.repeat_interleave(counts, 0, output_size=768)).sum()
    total.backward()
    optimizer.step()
