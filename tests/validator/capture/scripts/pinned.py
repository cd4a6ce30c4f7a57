"""A layer whose gradients are copied to pinned memory while the script goes on."""

import torch
from torch import nn

layer = nn.Linear(64, 64, bias=False).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
pinned = torch.empty(64, 64, pin_memory=True)
for _ in range(4):
    optimizer.zero_grad()
    layer(torch.randn(8, 64, device="cuda")).sum().backward()
    pinned.copy_(layer.weight.grad, non_blocking=True)
    layer.weight.grad.to("cpu", non_blocking=True)
    optimizer.step()
