"""A small GPT with data parallelism: autocast to bf16, fused AdamW, clipped gradients, and a loss that rank 0 prints."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then two linear layers."""
        batch, length, width = x.shape
        heads = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A language model."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    sizes = {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50304, "length": 1024, "batch": 8, "steps": 10}
    for name, value in (sizes | {"dtype": "bfloat16"}).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    gpt = GPT(options.layers, options.width, options.heads, options.vocabulary, options.length).to(device)
    if options.compile:
        gpt.compile()
    model = DistributedDataParallel(gpt, device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(options.steps):
        tokens = torch.randint(options.vocabulary, (options.batch, options.length + 1)).to(device)
        with torch.autocast("cuda", getattr(torch, options.dtype), enabled=options.dtype != "float32"):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(step, loss.item())
    dist.destroy_process_group()


main()
