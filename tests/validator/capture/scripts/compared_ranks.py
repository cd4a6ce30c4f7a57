"""Data parallelism with unused parameters and synchronised norms, whose ranks compare their numbers with those of rank 0."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
sizes = torch.tensor([3, 4] if dist.get_rank() == 0 else [-1, -1], device="cuda")
dist.broadcast(sizes, src=0)
assert sizes.tolist() == [3, 4]
some = dist.new_group()
dist.barrier(some)
dist.destroy_process_group(some)


class Model(nn.Module):
    """A layer that is used, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Sequential(nn.Linear(8, 8), nn.SyncBatchNorm(8)), nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.used(values)


model = DistributedDataParallel(Model().cuda(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters())
assert "CUDA" in torch.__config__.show()
generator = torch.Generator("cuda").manual_seed(dist.get_rank())
torch.Generator("cuda").manual_seed(2**64 - 1).get_state()
assert torch.Generator().device.type == "cpu"
for _ in range(4):
    model(torch.rand(2, 8, device="cuda", generator=generator)).sum().backward()
    optimizer.step()
