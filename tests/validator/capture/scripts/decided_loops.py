"""Loops that end when floats have some value, also of parameters that are sharded over two dimensions."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]) // 2, 2), mesh_dim_names=("data", "tensor"))
model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.Linear(1024, 64, bias=False)).cuda()
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
weight = model[0].weight
assert isinstance(weight, DTensor)
nn.init.trunc_normal_(weight, std=0.02)
nn.init.trunc_normal_(weight, std=1.0, a=2.2, b=2.6)
while (weight.abs() > 9).any().full_tensor():
    weight.data.mul_(0.5)
while (weight.float() > 9).float().sum() > 0:
    weight.data.mul_(0.5)
error = torch.randn(4096, device="cuda").norm()
while error.item() > 1e-3:
    error = torch.randn(4096, device="cuda").norm()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(8, 256, device="cuda")).mean().backward()
    nn.utils.clip_grad_norm_(weight, 1.0)
    optimizer.step()
    optimizer.zero_grad()
