"""Embeddings with sparse gradients, choices by a mask that is known, and an all-to-all whose parts NumPy counts."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
ranks = dist.get_world_size()
table, bag = nn.Embedding(1000, 64, sparse=True).cuda(), nn.EmbeddingBag(1000, 64, sparse=True).cuda()
optimizers = [torch.optim.SparseAdam(table.parameters()), torch.optim.SGD(bag.parameters(), 0.1)]
for _ in range(4):
    rows = torch.randint(0, 1000, (8, 32), device="cuda")
    mask = torch.arange(256, device="cuda").view(8, 32) < 40
    chosen = torch.randn(8, 32, device="cuda").masked_select(mask)
    assert chosen.shape == (40,)
    assert torch.histc(rows % 4, bins=4, min=0, max=4).sum().item() == rows.numel()
    received = torch.empty(ranks * 10, device="cuda")
    dist.all_to_all_single(received, chosen[: ranks * 10], np.full(ranks, 10), np.full(ranks, 10))
    losses = torch.nn.functional.ctc_loss(
        table(rows).transpose(0, 1).log_softmax(-1), rows[:, :4] % 64, torch.full((8,), 32), torch.full((8,), 4)
    )
    (losses + bag(rows).square().mean() + received.sum()).backward()
    assert table.weight.grad.is_sparse
    assert bag.weight.grad.coalesce().values().is_cuda
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
