"""Kernels of Triton: one that is tuned, whose work is not known, and one by whose name it is."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune(configs=[triton.Config({"block": 1024}), triton.Config({"block": 2048})], key=["number"])
@triton.jit
def double(source, target, number, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < number
    tl.store(target + places, 2 * tl.load(source + places, mask=inside), mask=inside)


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr):
    tl.store(c_ptr, tl.dot(tl.load(a_ptr), tl.load(b_ptr)))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        result = torch.empty_like(values)
        double[lambda meta: (triton.cdiv(values.numel(), meta["block"]),)](values, result, values.numel())
        return result

    @staticmethod
    def backward(ctx, gradient):
        result, square = torch.empty_like(gradient), torch.empty(512, 512, device="cuda")
        matmul_kernel[(1,)](gradient, square, result, 64, 512, 512, BLOCK=16)
        return result


model = nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    Double.apply(model(torch.randn(64, 512, device="cuda"))).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
