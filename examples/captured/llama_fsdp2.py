"""A Llama with fully sharded parameters (FSDP2) on a mesh of replicas and shards, and recomputed activations."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, width // heads * kv_heads, bias=False) for _ in range(2))
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attends to earlier positions."""
        batch, length, width = x.shape

        def rotated(part: torch.Tensor) -> torch.Tensor:
            a, b = part.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).type_as(part)

        query = rotated(self.wq(x).view(batch, length, self.heads, -1)).transpose(1, 2)
        key = rotated(self.wk(x).view(batch, length, self.kv_heads, -1)).transpose(1, 2)
        value = self.wv(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.wo(attended.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.w1, self.w3 = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attention, then a gated layer."""
        x = x + self.attention(self.norm1(x), cos, sin)
        h = self.norm2(x)
        return x + self.w2(functional.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    """A language model."""

    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def init_weights(self) -> None:
        """Fills parameters that were made without memory."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                module.reset_parameters()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device).float()
        angles = torch.outer(places, 1e4 ** -torch.linspace(0, 1, self.head_width // 2, device=tokens.device))
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    sizes = {"layers": 16, "width": 2048, "heads": 32, "kv-heads": 8, "hidden": 8192, "vocabulary": 128256, "length": 4096}
    for name, value in (sizes | {"batch": 1, "shards": 8, "dtype": "bfloat16"}).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--recompute", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action="store_true", help="compile each block")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    sizes = (dist.get_world_size() // options.shards, options.shards)
    mesh = init_device_mesh("cuda", sizes, mesh_dim_names=("replicate", "shard"))
    with torch.device("meta"):
        model = Llama(options.layers, options.width, options.heads, options.kv_heads, options.hidden, options.vocabulary)
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, options.dtype), reduce_dtype=torch.float32)
    for place, layer in enumerate(model.layers):
        block = checkpoint_wrapper(layer) if options.recompute else layer
        if options.compile:
            block.compile()
        model.layers[place] = fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(5):
        tokens = torch.randint(options.vocabulary, (options.batch, options.length + 1), device=device)
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
