"""CPU time of DeepSpeed's ZeRO between kernels: hooks of modules and of gradients, on one process without a device.

A small Llama-like model, whose kernels take next to no time, runs by itself, with stage 2 and with stage 3. What stage 2 adds
to a backward pass are hooks of gradients, what stage 3 adds to a forward pass those of modules. Times count for the host of a
GPU relative to those of a kernel's launch, which the model by itself shows.

Run: python benchmarks/deepspeed_hooks.py, with DeepSpeed installed (0.19.8 was; 0.12.6 needs changes to start on processors).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

_HIDDEN: Final = 64
_HEADS: Final = 4
_BLOCKS: Final = 12
_TOKENS: Final = 8
_WORDS: Final = 128
# Kernels that a block launches forward: two norms of 8, rotation of 10, six products, attention with a copy, gating, two sums.
_KERNELS: Final = 39
_WARM_UP: Final = 24
_MEASURED: Final = 80


class _Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(_HIDDEN, _HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        angle = torch.ones(tokens, _HIDDEN // _HEADS, dtype=x.dtype)
        q, k, v = (product(x).view(batch, tokens, _HEADS, -1).transpose(1, 2) for product in (self.q, self.k, self.v))
        q, k = (one * angle + _turned(one) * angle for one in (q, k))
        return self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, _HIDDEN))  # type: ignore[no-any-return]


def _turned(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(_HIDDEN, 2 * _HIDDEN, bias=False) for _ in range(2))
        self.down, self.act = nn.Linear(2 * _HIDDEN, _HIDDEN, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention, self.second, self.mlp = _Norm(), _Attention(), _Norm(), _Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))  # type: ignore[no-any-return]


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(_WORDS, _HIDDEN), nn.Linear(_HIDDEN, _WORDS, bias=False)
        self.blocks, self.norm = nn.ModuleList(_Block() for _ in range(_BLOCKS)), _Norm()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return cross_entropy(self.head(self.norm(x)).float().view(-1, _WORDS), tokens.view(-1))


def _passes_s(
    model: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Any], end: Callable[[], Any]
) -> tuple[float, ...]:
    """Median CPU seconds of the forward and of the backward pass."""
    tokens, found = torch.zeros(1, _TOKENS, dtype=torch.long), list[tuple[float, float]]()
    for _ in range(_WARM_UP + _MEASURED):
        begin_s = time.process_time()
        loss = model(tokens)
        middle_s = time.process_time()
        backward(loss)
        found.append((middle_s - begin_s, time.process_time() - middle_s))
        end()
    return tuple(statistics.median(times) for times in zip(*found[_WARM_UP:], strict=True))


def _alone_s() -> tuple[float, ...]:
    model = _Model().bfloat16()
    return _passes_s(model, torch.Tensor.backward, lambda: model.zero_grad(set_to_none=True))


def _zero_s(stage: int) -> tuple[float, ...]:
    """The passes of all microbatches with a stage of ZeRO, with buckets as Transformers fills in where they are `auto`."""
    import deepspeed  # type: ignore[import-not-found]

    model = _Model()
    zero = {
        "stage": stage, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": _HIDDEN**2,
        "stage3_prefetch_bucket_size": int(0.9 * _HIDDEN**2), "stage3_param_persistence_threshold": 10 * _HIDDEN,
    }  # fmt: skip
    config = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True, "zero_optimization": zero,
    }  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config, optimizer=optimizer)
    return _passes_s(engine, engine.backward, engine.step)


def main() -> None:
    """Prints microseconds of a kernel's launch, of a module's hooks in both passes, and of a gradient's hook."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }  # fmt: skip
    torch.set_num_threads(1)
    modules = sum(1 for module in _Model().modules() if not isinstance(module, nn.ModuleList))
    gradients = sum(1 for _ in _Model().parameters())
    alone, second, third = _alone_s(), _zero_s(2), _zero_s(3)
    gradient_s = (second[1] - alone[1]) / gradients
    forward_s, backward_s = (third[0] - alone[0]) / modules, (third[1] - second[1]) / modules
    print(f"launch of a kernel   {1e6 * alone[0] / _BLOCKS / _KERNELS:5.0f} us")
    print(f"hooks of a module    {1e6 * forward_s:5.0f} us forward, {1e6 * backward_s:.0f} us backward")
    print(f"hook of a gradient   {1e6 * gradient_s:5.0f} us")


if __name__ == "__main__":
    main()
