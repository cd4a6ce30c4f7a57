"""Training that ranks decide about together: what one of them contributes to a collective."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = dist.get_rank()
layer = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(layer.parameters())
rate = torch.tensor([0.25 if rank == 0 else 0.0], device="cuda")
dist.broadcast(rate, src=0)
assert rate.item() == 0.25
for _ in range(4):
    loss = layer(torch.randn(256, 256, device="cuda")).mean()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss)
    tokens = torch.tensor(256, device="cuda")
    dist.all_reduce(tokens)
    print("loss", loss.item(), "tokens", tokens.item())
    stop = torch.tensor(int(rank == 2), device="cuda")
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if stop:
        break
    on_host = torch.tensor([rank == 2])
    dist.all_reduce(on_host, op=dist.ReduceOp.MAX)
    if on_host.any():
        break
