"""A GPT, by default with 1.0 billion parameters, with replicas or a pipeline.

--parallel: ddp, zero_1 (DistributedDataParallel with ZeroRedundancyOptimizer), fsdp1 (FullyShardedDataParallel), 1f1b, or
interleaved (two stages on each rank). --dtype: of weights and activations. --autocast: to bf16. --master: the optimizer updates
copies in 32 bits, whose gradients are clipped.
"""

import argparse
import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then two linear layers."""
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Embedding(nn.Module):
    """Words and their positions."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.positions = nn.Embedding(options.length, options.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Activations of the first block."""
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


class Head(nn.Module):
    """Scores of the next word, with weights of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(options.width), nn.Linear(options.width, options.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A product behind a norm."""
        return self.words(self.norm(x))


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss, computed in 32 bits."""
    return functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())


def blocks_of(options: argparse.Namespace, stage: int = 0, stages: int = 1) -> nn.Sequential:
    """A stage's part of the model, with equally many blocks."""
    blocks: list[nn.Module] = [Block(options.width, options.heads) for _ in range(options.layers // stages)]
    first, last = [Embedding(options)] if stage == 0 else [], [Head(options)] if stage == stages - 1 else []
    return nn.Sequential(*first, *blocks, *last).to("cuda", getattr(torch, options.dtype))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    sizes = {"layers": 16, "width": 2048, "heads": 16, "vocabulary": 50304, "length": 1024, "batch": 8, "stages": 4, "steps": 4}
    for name, value in (sizes | {"dtype": "float32", "parallel": "ddp"}).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    for name in ("autocast", "master"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if options.parallel in ("1f1b", "interleaved"):
        train_pipeline(options)
    else:
        train_replicas(options)


def train_replicas(options: argparse.Namespace) -> None:
    """Trains with data parallelism."""
    model = blocks_of(options)
    weights = list(model.parameters())
    if options.parallel == "fsdp1":
        bf16 = torch.bfloat16
        precision = MixedPrecision(param_dtype=bf16, reduce_dtype=bf16, buffer_dtype=bf16)
        whole: nn.Module = FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=precision, use_orig_params=True
        )
        weights = list(whole.parameters())
    else:
        whole = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    masters: list[torch.Tensor] = [weight.detach().float() for weight in weights] if options.master else [*weights]
    adam = functools.partial(torch.optim.AdamW, lr=3e-4, fused=True)
    optimizer: torch.optim.Optimizer = adam(masters)
    if options.parallel == "zero_1":
        optimizer = ZeroRedundancyOptimizer(masters, torch.optim.AdamW, lr=3e-4, fused=True)
    for _ in range(options.steps):
        tokens = torch.randint(0, options.vocabulary, (options.batch, options.length + 1)).to("cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=options.autocast):
            scores = whole(tokens[:, :-1])
            loss = loss_of(scores, tokens[:, 1:])
        loss.backward()
        del scores, loss
        if options.master:
            for master, weight in zip(masters, weights, strict=True):
                assert weight.grad is not None
                master.grad = weight.grad.float()
            nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if options.master:
            torch._foreach_copy_([weight.detach() for weight in weights], masters)
        optimizer.zero_grad()
        whole.zero_grad()


def train_pipeline(options: argparse.Namespace) -> None:
    """Trains on one pipeline, a sample in each microbatch."""
    rank, ranks, device = dist.get_rank(), options.stages, torch.device("cuda", torch.cuda.current_device())
    chunks = 2 if options.parallel == "interleaved" else 1
    places = range(rank, ranks * chunks, ranks)
    modules = [blocks_of(options, place, ranks * chunks) for place in places]
    stages: list[_PipelineStageBase] = [
        PipelineStage(module, place, ranks * chunks, device) for module, place in zip(modules, places, strict=True)
    ]
    schedule = (
        ScheduleInterleaved1F1B(stages, options.batch, loss_of)
        if chunks > 1
        else Schedule1F1B(stages[0], options.batch, loss_of)
    )
    optimizer = torch.optim.AdamW((weight for module in modules for weight in module.parameters()), lr=3e-4, fused=True)
    for _ in range(options.steps):
        tokens = torch.randint(0, options.vocabulary, (options.batch, options.length + 1)).to(device)
        given = (tokens[:, :-1],) if rank == 0 else ()
        schedule.step(*given, target=tokens[:, 1:] if rank == ranks - 1 else None, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
