"""Checkpoints that are renamed, looked at, and read back by other ranks. Arguments: a folder in which real.pt exists."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder = Path(sys.argv[1])
dist.init_process_group("nccl")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.randn(8, 64, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1:
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, folder / "part.pt")
            assert os.path.getsize(folder / "part.pt")
            os.replace(folder / "part.pt", folder / "last.pt")
            os.link(folder / "last.pt", folder / "link.pt")
            torch.save(model.state_dict(), folder / "other.pt")
            os.replace(folder / "other.pt", folder / "real.pt")
            torch.save(model.state_dict(), folder / "real.pt")
        dist.barrier()
        saved = torch.load(folder / "last.pt", map_location="cpu", weights_only=True)
        assert saved["step"] == step
        assert saved["model"]["module.weight"].shape == (64, 64)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert next(iter(torch.load(folder / "last.pt", map_location="cuda")["model"].values())).is_cuda
        dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "parts")
        assert (folder / "parts" / ".metadata").exists()
        dcp.load({"model": model.state_dict()}, checkpoint_id=folder / "parts")
        dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder / "later").result()
