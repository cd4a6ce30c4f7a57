"""ZeroRedundancyOptimizer under DistributedDataParallel, of a model with a buffer of 4 MiB unless its size is given."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
module = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 2048, bias=False)).cuda()
if size := int(sys.argv[1]):
    module.register_buffer("mask", torch.zeros(size, device="cuda"))
model = DistributedDataParallel(module)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, fused=True)
for _ in range(4):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
