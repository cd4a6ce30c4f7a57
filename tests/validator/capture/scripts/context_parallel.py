"""Attention over a sequence that ranks share."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

WIDTH, HEADS, LENGTH = 64, 4, 256
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
project = nn.Linear(WIDTH, 3 * WIDTH).cuda().bfloat16()
optimizer = torch.optim.AdamW(project.parameters())
for _ in range(5):
    x = torch.randn(2, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1], no_restore_buffers={x}):
        heads = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in project(x).chunk(3, -1))
        functional.scaled_dot_product_attention(*heads, is_causal=True).sum().backward()
    for parameter in project.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
