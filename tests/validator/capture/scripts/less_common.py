"""Parts of PyTorch that few scripts use: synchronised norms, unused parameters, recurrent layers, hooks, sharded states."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64


class Model(nn.Module):
    """A recurrent layer, a norm over all ranks, and a parameter that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.norm, self.unused = nn.GRU(WIDTH, WIDTH), nn.SyncBatchNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.recurrent(values)[0].flatten(0, 1))
        return result


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(Model().cuda(), find_unused_parameters=True)
model.register_comm_hook(state=None, hook=default_hooks.bf16_compress_hook)
built_in = DistributedDataParallel(nn.Linear(WIDTH, WIDTH).cuda())
built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
for step in range(4):
    model(torch.randn(4, 8, WIDTH, device="cuda")).mean().backward()
    built_in(torch.randn(4, WIDTH, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        optimizer.consolidate_state_dict(to=0)
