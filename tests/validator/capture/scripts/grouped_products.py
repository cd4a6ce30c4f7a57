"""Experts whose products are one kernel for all of them, of rows that a router sorts, by both names of the function."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

EXPERTS, CHOICES, WIDTH, HIDDEN, TOKENS = 4, 2, 64, 128, 255

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.up = (nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH)) for _ in range(2))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN))
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, tokens):
        scores, chosen = self.router(tokens).softmax(-1).topk(CHOICES, -1)
        counts = torch.histc(chosen.flatten().float(), bins=EXPERTS, min=0, max=EXPERTS)
        order = torch.argsort(chosen.flatten(), stable=True)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        rows = tokens[order // CHOICES].bfloat16()
        first, up, down = (one.bfloat16().transpose(-2, -1) for one in (self.first, self.up, self.down))
        inner = functional.silu(torch._grouped_mm(rows, first, offs=ends)) * torch._grouped_mm(rows, up, offs=ends)
        made = functional.grouped_mm(inner, down, offs=ends).float() * scores.flatten()[order].unsqueeze(-1)
        return tokens.index_add(0, order // CHOICES, made)


model = Experts().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(TOKENS, WIDTH, device="cuda")).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
