"""FullyShardedDataParallel, which flattens the parameters of each block."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WIDTH = 64
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Block(nn.Sequential):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


model = FullyShardedDataParallel(
    nn.Sequential(Block(), Block()).cuda(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True,
    mixed_precision=MixedPrecision(torch.bfloat16, torch.float32), device_id=torch.cuda.current_device(),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(8, WIDTH, device="cuda")).float().sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
