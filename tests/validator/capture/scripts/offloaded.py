"""Two wide layers, whose sharded parameters, gradients and states are on the host."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

width, pins = int(sys.argv[1]), sys.argv[2] == "pinned"
dist.init_process_group("cpu:gloo,cuda:nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(2)))
policy = CPUOffloadPolicy(pin_memory=pins)
for layer in model:
    fully_shard(layer, offload_policy=policy)
fully_shard(model, offload_policy=policy)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(8, width, device="cuda")).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
