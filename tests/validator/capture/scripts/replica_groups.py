"""Data parallelism whose groups have other names, other ranks or other uses than usual, by the argument."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH = 128
way = sys.argv[1]
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
world = dist.get_world_size()
model: nn.Module = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()
if way == "mesh":
    fully_shard(model, mesh=init_device_mesh("cuda", (world,), mesh_dim_names=("everything",)))
elif way == "hybrid mesh":
    fully_shard(model, mesh=init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("across", "within")))
elif way == "hybrid fsdp1":
    mesh = init_device_mesh("cuda", (2, world // 2))
    strategy = ShardingStrategy.HYBRID_SHARD
    model = FullyShardedDataParallel(model, device_mesh=mesh, sharding_strategy=strategy, use_orig_params=True)
elif way == "new group":
    model = DistributedDataParallel(model, process_group=dist.new_group(range(world)))
elif way == "norms of nodes":
    groups = [dist.new_group(range(first, first + 4)) for first in range(0, world, 4)]
    norm = nn.SyncBatchNorm(WIDTH, process_group=groups[dist.get_rank() // 4]).cuda()
    model = DistributedDataParallel(nn.Sequential(model, norm))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    features = model(torch.randn(64, WIDTH, device="cuda"))
    if way in ("new group", "by hand"):
        # as contrastive losses compare samples of all ranks
        features = features @ torch.cat(torch.distributed.nn.all_gather(features)).T
    features.square().mean().backward()
    if way == "by hand":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
