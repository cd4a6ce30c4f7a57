"""A recommender whose tables of embeddings are divided among ranks, which exchange looked-up rows by all-to-all."""

import os

import torch
import torch.distributed as dist
from torch import nn

BATCH, WIDTH, POOLING, DENSE, TABLES, ROWS = 1024, 64, 8, 13, 12, 10_000

dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
own = range(rank, TABLES, ranks)
tables = nn.ModuleList([nn.EmbeddingBag(ROWS, WIDTH, mode="sum", device="cuda") for _ in own])
bottom = nn.Linear(DENSE, WIDTH, device="cuda")
top = nn.Linear(WIDTH * (TABLES + 1), 1, device="cuda")
top, bottom = (nn.parallel.DistributedDataParallel(part) for part in (top, bottom))
parameters = [*tables.parameters(), *bottom.parameters(), *top.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
offsets = torch.arange(0, ranks * BATCH * POOLING, POOLING, device="cuda")


def exchanged(looked_up: torch.Tensor) -> torch.Tensor:
    """The rows of this rank's samples from the tables of all ranks."""
    counts = [BATCH * WIDTH * len(range(other, TABLES, ranks)) for other in range(ranks)]
    received = looked_up.new_empty(sum(counts))
    dist.all_to_all_single(received, looked_up.reshape(-1), counts, [looked_up.numel() // ranks] * ranks)
    return received.reshape(BATCH, -1)


for _ in range(4):
    optimizer.zero_grad()
    indices = torch.randint(0, ROWS, (ranks * BATCH * POOLING,), device="cuda")
    looked_up = torch.stack([table(indices, offsets) for table in tables])
    dense, labels = torch.randn(BATCH, DENSE, device="cuda"), torch.rand(BATCH, 1, device="cuda")
    with torch.no_grad():
        rows = exchanged(looked_up)
    scores = top(torch.cat([bottom(dense), rows], 1))
    loss = nn.functional.binary_cross_entropy_with_logits(scores, labels) + looked_up.mean()
    loss.backward()
    optimizer.step()
