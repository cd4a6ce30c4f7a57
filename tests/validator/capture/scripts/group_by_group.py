"""An optimizer that makes its states before training, and is then called for one parameter after another."""

import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(3))).cuda()
optimizer = torch.optim.Adam(model.parameters(), fused=True)
group = optimizer.param_groups[0]
parameters = list(model.parameters())


def step() -> None:
    """Updates each parameter by itself."""
    for parameter in parameters:
        group["params"] = [parameter]
        optimizer.step()


for parameter in parameters:
    parameter.grad = torch.zeros_like(parameter)
step()
for _ in range(5):
    optimizer.zero_grad()
    model(torch.rand(2, 64, device="cuda")).sum().backward()
    step()
