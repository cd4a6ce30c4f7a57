"""A convolution and a product in 32-bit floats, trained with the flags for TF32 that the arguments name."""

import sys

import torch
from torch import nn

for setting in sys.argv[1:]:
    exec(setting)
model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Flatten(), nn.Linear(64 * 16 * 16, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(256, 64, 16, 16, device="cuda")).sum().backward()
    optimizer.step()
