"""Feed-forward and attention layers with tensor and sequence parallelism (DTensor), sharded over replicas by FSDP2."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

# sizes may be given as arguments
WIDTH, HEADS, HIDDEN, LAYERS, VOCABULARY, LENGTH, BATCH = map(int, sys.argv[1:] or (2048, 16, 8192, 4, 32768, 2048, 2))


class Attention(nn.Module):
    """Attention of the heads that a rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attends to earlier positions."""
        batch, length, _ = x.shape
        parts = (part(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for part in (self.wq, self.wk, self.wv))
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.wo(attended.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """A gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers to a larger width, and one back."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the gated layer."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next tokens."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def main() -> None:
    """Trains."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    degree = min(4, dist.get_world_size())
    mesh = init_device_mesh("cuda", (dist.get_world_size() // degree, degree), mesh_dim_names=("dp", "tp"))
    model = Model().cuda()
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh["tp"], plan)
    for layer in model.layers:
        gathers = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        plan = {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        plan |= {"attention": PrepareModuleInput(**gathers), "feed_forward": PrepareModuleInput(**gathers)}
        plan |= {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan |= {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
        plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")}
        parallelize_module(layer, mesh["tp"], plan)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(5):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1)).cuda()
        with loss_parallel():
            loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
