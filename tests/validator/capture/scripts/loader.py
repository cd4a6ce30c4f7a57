"""Samples that other processes load."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WIDTH = 64


class Samples(Dataset):
    """Random samples of ten classes."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.randn(WIDTH), place % 10


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
samples = Samples()
loader = DataLoader(samples, 8, sampler=DistributedSampler(samples), num_workers=2, pin_memory=True, persistent_workers=True)
model = DistributedDataParallel(nn.Linear(WIDTH, 10).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True)).backward()
    optimizer.step()
    optimizer.zero_grad()
