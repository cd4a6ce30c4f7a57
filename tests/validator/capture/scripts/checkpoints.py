"""Checkpoints of sharded parameters. Arguments: a folder, and 'load' to begin from it."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

WIDTH = 64
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = fully_shard(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).cuda())
optimizer = torch.optim.AdamW(model.parameters())
if "load" in sys.argv:
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=sys.argv[1])
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
for step in range(5):
    model(torch.randn(8, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        dcp.save({"model": get_state_dict(model, optimizer)[0]}, checkpoint_id=sys.argv[1])
        torch.save(model.state_dict(), f"{sys.argv[1]}/whole.pt")
