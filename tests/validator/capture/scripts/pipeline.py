"""A pipeline with several stages on each rank. Argument: the name of a schedule."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

WIDTH, CHUNKS = 64, 2
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
last = CHUNKS * ranks - 1
numbers = [rank, last - rank] if "V" in sys.argv[1].removeprefix("Schedule") else [rank, rank + ranks]
chunks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)).to(device) for _ in numbers]
stages = [PipelineStage(chunk, number, last + 1, device) for chunk, number in zip(chunks, numbers, strict=True)]
schedule = getattr(schedules, sys.argv[1])(stages, 2 * ranks, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW([parameter for chunk in chunks for parameter in chunk.parameters()])
for _ in range(5):
    x, y = (torch.randn(8 * ranks, WIDTH, device=device) for _ in range(2))
    schedule.step(*([x] if 0 in numbers else []), **({"target": y} if last in numbers else {}))
    optimizer.step()
    optimizer.zero_grad()
