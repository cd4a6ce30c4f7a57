"""A Llama with mixtures of experts: experts are divided over all ranks, all other parameters are sharded by FSDP2.

Tokens travel to the ranks of their experts and back by all-to-alls. The products of a rank's experts are one grouped kernel.
"""

from __future__ import annotations

import argparse
import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torchtitan_llama import Attention, Llama

_STEPS = 3


class Exchange(torch.autograd.Function):
    """Sends rows to other ranks; gradients travel back."""

    @staticmethod
    def forward(ctx, rows, received, sent):  # noqa: D102
        ctx.sizes = sent, received
        result = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(result, rows, received, sent)
        return result

    @staticmethod
    def backward(ctx, gradient):  # noqa: D102
        received, sent = ctx.sizes
        result = gradient.new_empty(sum(received), gradient.shape[1])
        dist.all_to_all_single(result, gradient.contiguous(), received, sent)
        return result, None, None


class Experts(nn.Module):
    """The gated experts of a rank."""

    def __init__(self, width: int, hidden: int, local: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(local, width, 2 * hidden))
        self.down = nn.Parameter(torch.empty(local, hidden, width))

    def forward(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Results of rows in the order of experts, the rows of each of which end at a place."""
        gating, up = torch._grouped_mm(rows, self.up, offs=ends).chunk(2, -1)
        return torch._grouped_mm(functional.silu(gating) * up, self.down, offs=ends)


class Mixture(nn.Module):
    """A mixture of experts in place of a gated layer."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.count, self.active, self.ranks = options.experts, options.active, dist.get_world_size()
        self.router = nn.Linear(options.width, options.experts, bias=False)
        self.experts = Experts(options.width, options.hidden, options.experts // self.ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what the chosen experts compute."""
        tokens = x.flatten(0, 1)
        weights, experts = self.router(tokens).float().softmax(-1).topk(self.active, -1)
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.count)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent, received = (each.view(self.ranks, -1).sum(1).tolist() for each in (counts, arriving))
        rows = Exchange.apply(tokens[order // self.active], received, sent)
        local = self.count // self.ranks
        own = torch.arange(local, device=x.device).repeat(self.ranks).repeat_interleave(arriving)
        grouped = own.argsort(stable=True)
        ends = arriving.view(self.ranks, -1).sum(0).cumsum(0).to(torch.int32)
        back = Exchange.apply(self.experts(rows[grouped], ends)[grouped.argsort()], sent, received)
        weighted = back * weights.flatten()[order, None].to(back.dtype)
        return torch.zeros_like(tokens).index_add(0, order // self.active, weighted).view_as(x)


class Block(nn.Module):
    """A transformer block with a mixture."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.attention = Attention(options.width, options.heads, options.heads)
        self.mixture = Mixture(options)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(options.width), nn.RMSNorm(options.width)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Attention, then the mixture."""
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.mixture(self.ffn_norm(x))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    sizes = {"layers": 8, "width": 2048, "heads": 16, "hidden": 2048, "experts": 32, "active": 4, "vocabulary": 32000}
    for name, value in (sizes | {"length": 4096, "batch": 2}).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh("cuda", (1, dist.get_world_size()), mesh_dim_names=("expert_replicas", "dp_shard"))
    with torch.device("meta"):
        model = Llama(argparse.Namespace(**vars(options), key_heads=options.heads))
        model.layers = nn.ModuleList(Block(options) for _ in range(options.layers))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard = functools.partial(fully_shard, mp_policy=policy)
    for layer in model.layers:
        shard(layer.mixture.experts, mesh=mesh["expert_replicas"])
        shard(layer, mesh=mesh["dp_shard"])
    shard(model, mesh=mesh["dp_shard"])
    model.to_empty(device=device)
    model.init_weights(options.length)
    for layer in model.layers:
        for weight in layer.mixture.experts.parameters():
            nn.init.normal_(weight, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for _ in range(_STEPS + 2):
        tokens = torch.randint(options.vocabulary, (options.batch, options.length + 1), device=device)
        optimizer.zero_grad()
        scores = model(tokens[:, :-1])
        functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
