"""Attention by blocks of a mask that the script makes, in a compiled function and in a compiled model."""

import sys

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 2, 128, 4, 512, 2
attend = torch.compile(flex_attention)


def causal(sample, head, query, key):
    """Whether a query sees a key."""
    return query >= key


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, mask: BlockMask) -> torch.Tensor:
        query, key, value = self.qkv(x).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = attend(query, key, value, block_mask=mask)
        result: torch.Tensor = x + self.projection(attended.transpose(1, 2).flatten(2))
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(causal, None, None, LENGTH, LENGTH)
        for block in self.blocks:
            x = block(x, mask)
        return x


model = Model().to("cuda", torch.bfloat16)
if "--compile" in sys.argv:
    model.compile()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(4):
    model(torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
