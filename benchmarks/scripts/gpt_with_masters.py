"""A GPT with 12 blocks of 1,024 under DistributedDataParallel, with fused AdamW.

--dtype: of weights and activations. --master: the optimizer updates copies in 32 bits, whose gradients are clipped, as the
framework pytorch-ddp assumes of training in 16 bits.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH, STEPS = 12, 1024, 16, 50304, 1024, 8, 4


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then two linear layers."""
        batch, length, width = x.shape
        heads = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A language model whose output head has weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss, computed in 32 bits."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).view(-1, VOCABULARY).float(), targets.reshape(-1))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--master", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    gpt = Gpt().to(device, getattr(torch, options.dtype))
    model, weights = DistributedDataParallel(gpt, device_ids=[device.index]), list(gpt.parameters())
    masters = [weight.detach().float() for weight in weights] if options.master else weights
    optimizer = torch.optim.AdamW(masters, lr=3e-4, fused=True)
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1)).to(device)
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        if options.master:
            for master, weight in zip(masters, weights, strict=True):
                master.grad = weight.grad.float()
            nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if options.master:
            torch._foreach_copy_([weight.detach() for weight in weights], masters)
        optimizer.zero_grad()
        model.zero_grad()


main()
