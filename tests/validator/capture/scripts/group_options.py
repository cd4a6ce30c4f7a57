"""Gradients summed over a group of all ranks that is made with options of NCCL."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
options.config.max_ctas = 8
group = dist.new_group(range(dist.get_world_size()), pg_options=options)
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
    optimizer.step()
