"""A mixture of experts whose tokens travel to the ranks of their experts, as the router decides."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

# sizes may be given as arguments
WIDTH, HIDDEN, EXPERTS, CHOSEN, LAYERS, TOKENS = map(int, sys.argv[1:] or (2048, 1024, 64, 4, 2, 4096))


class Exchange(torch.autograd.Function):
    """Sends rows to other ranks; gradients travel back."""

    @staticmethod
    def forward(ctx, rows, received, sent, group):  # noqa: D102
        ctx.sizes, ctx.group = (sent, received), group
        result = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
        return result

    @staticmethod
    def backward(ctx, gradient):  # noqa: D102
        received, sent = ctx.sizes
        result = gradient.new_empty(sum(received), gradient.shape[1])
        dist.all_to_all_single(result, gradient.contiguous(), received, sent, group=ctx.group)
        return result, None, None, None


class MixtureOfExperts(nn.Module):
    """Experts, of which each rank of a group has some."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)
        self.local = EXPERTS // self.ranks
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.ParameterList(nn.Parameter(torch.empty(WIDTH, HIDDEN)) for _ in range(self.local))
        self.down = nn.ParameterList(nn.Parameter(torch.empty(HIDDEN, WIDTH)) for _ in range(self.local))
        for weight in (*self.up, *self.down):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what the chosen experts compute."""
        weights, experts = self.router(x).float().softmax(-1).topk(CHOSEN, -1)
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=EXPERTS)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent = counts.view(self.ranks, -1).sum(1).tolist()
        received = arriving.view(self.ranks, -1).sum(1).tolist()
        rows = Exchange.apply(x[order // CHOSEN], received, sent, self.group)
        own = torch.arange(self.local, device=x.device).repeat(self.ranks).repeat_interleave(arriving)
        grouped = own.argsort(stable=True)
        sizes = arriving.view(self.ranks, -1).sum(0).tolist()
        parts = rows[grouped].split(sizes)
        computed = [functional.silu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down, strict=True)]
        back = Exchange.apply(torch.cat(computed)[grouped.argsort()], sent, received, self.group)
        return x.index_add(0, order // CHOSEN, back * weights.flatten()[order, None].to(back.dtype))


def main() -> None:
    """Trains."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    members, rank = min(8, dist.get_world_size()), dist.get_rank()
    groups = [dist.new_group(range(first, first + members)) for first in range(0, dist.get_world_size(), members)]
    layers = (MixtureOfExperts(groups[rank // members]) for _ in range(LAYERS))
    model = nn.Sequential(*layers).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(5):
        model(torch.randn(TOKENS, WIDTH, device=device, dtype=torch.bfloat16)).float().square().mean().backward()
        for layer in model:
            dist.all_reduce(layer.router.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
