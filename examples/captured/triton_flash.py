"""A decoder with kernels from outside PyTorch: attention of flash_attn, and a norm that is written in Triton.

python examples/captured/triton_flash.py [--layers N --width N …]
"""

import argparse

import torch
import triton
import triton.language as tl
from flash_attn import flash_attn_func
from torch import distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


@triton.jit
def norm_forward(source, weight, target, scales, width, eps, block: tl.constexpr):
    row, places = tl.program_id(0), tl.arange(0, block)
    inside = places < width
    values = tl.load(source + row * width + places, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values) / width + eps)
    tl.store(scales + row, scale)
    tl.store(target + row * width + places, values * scale * tl.load(weight + places, mask=inside), mask=inside)


@triton.jit
def norm_backward(gradient, source, weight, scales, target, part, width, block: tl.constexpr):
    row, places = tl.program_id(0), tl.arange(0, block)
    inside = places < width
    values = tl.load(source + row * width + places, mask=inside, other=0.0).to(tl.float32) * tl.load(scales + row)
    given = tl.load(gradient + row * width + places, mask=inside, other=0.0).to(tl.float32)
    tl.atomic_add(part + places, given * values, mask=inside)
    weighted = given * tl.load(weight + places, mask=inside)
    result = (weighted - values * tl.sum(weighted * values) / width) * tl.load(scales + row)
    tl.store(target + row * width + places, result, mask=inside)


class Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, weight):
        flat = values.reshape(-1, values.shape[-1])
        result, scales = torch.empty_like(flat), torch.empty(len(flat), device=flat.device)
        block = triton.next_power_of_2(flat.shape[1])
        norm_forward[(len(flat),)](flat, weight, result, scales, flat.shape[1], 1e-6, block=block)
        ctx.save_for_backward(flat, weight, scales)
        return result.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        flat, weight, scales = ctx.saved_tensors
        given, result, part = gradient.reshape_as(flat), torch.empty_like(flat), torch.zeros_like(weight, dtype=torch.float32)
        block = triton.next_power_of_2(flat.shape[1])
        norm_backward[(len(flat),)](given, flat, weight, scales, result, part, flat.shape[1], block=block)
        return result.view_as(gradient), part.to(weight.dtype)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ParameterList([torch.ones(width) for _ in range(2)])
        self.packed, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        packed = self.packed(Normalise.apply(x, self.norms[0])).unflatten(-1, (3, self.heads, -1))
        x = x + self.out(flash_attn_func(*packed.unbind(2), causal=True).flatten(2))
        return x + self.down(functional.gelu(self.up(Normalise.apply(x, self.norms[1]))))


class Decoder(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.blocks = nn.Sequential(*(Block(options.width, options.heads) for _ in range(options.layers)))
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens)))


def main():
    parser = argparse.ArgumentParser()
    for name, size in (("layers", 12), ("width", 768), ("heads", 12), ("vocabulary", 50304), ("length", 1024), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()
    dist.init_process_group("nccl")
    model = DistributedDataParallel(Decoder(options).to("cuda", torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(10):
        tokens = torch.randint(options.vocabulary, (options.batch, options.length + 1), device="cuda")
        logits = model(tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
