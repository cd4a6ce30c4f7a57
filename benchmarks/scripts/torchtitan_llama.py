"""A Llama as torchtitan trains it: FSDP2, tensor and sequence parallelism, recomputation by operator, and compiled blocks.

Written for captures, in the order in which torchtitan applies its parts: tensor parallelism, recomputation, compilation,
sharding. Products, attention and sums of shards are kept in selective recomputation, except every second product.
"""

from __future__ import annotations

import argparse
import functools
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
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
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_ATEN = torch.ops.aten
_KEPT = {
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
_STEPS = 3


def rotated(part: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Queries or keys turned by their positions, as complex numbers of 32 bits."""
    pairs = torch.view_as_complex(part.float().reshape(*part.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, :, None]).flatten(3).type_as(part)


class Attention(nn.Module):
    """Grouped-query attention of the heads that a rank has."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.head_width, self.shared = width // heads, heads // key_heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, key_heads * self.head_width, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Attends to earlier positions."""
        batch, length, _ = x.shape
        query, key, value = (part(x).view(batch, length, -1, self.head_width) for part in (self.wq, self.wk, self.wv))
        query, key = rotated(query, angles), rotated(key, angles)
        if self.shared > 1:
            key, value = (part.repeat_interleave(self.shared, 2) for part in (key, value))
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(attended.transpose(1, 2).contiguous().view(batch, length, -1))


class FeedForward(nn.Module):
    """A gated layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two layers to the larger width, and one back."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.attention = Attention(options.width, options.heads, options.key_heads)
        self.feed_forward = FeedForward(options.width, options.hidden)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(options.width), nn.RMSNorm(options.width)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Attention, then the gated layer."""
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """A language model."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.head_width = options.width // options.heads
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.layers = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm, self.output = nn.RMSNorm(options.width), nn.Linear(options.width, options.vocabulary, bias=False)
        self.angles: torch.Tensor | None = None

    def init_weights(self, length: int) -> None:
        """Fills parameters that were made without memory, and the angles of all positions."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.RMSNorm):
                module.reset_parameters()
        rates = 5e5 ** -torch.arange(0, 1, 2 / self.head_width, device="cuda")
        angles = torch.outer(torch.arange(length, device="cuda").float(), rates)
        self.angles = torch.polar(torch.ones_like(angles), angles)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next tokens."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.angles)
        return self.output(self.norm(x))


def split_tensors(model: Llama, mesh: DeviceMesh) -> None:
    """Applies tensor parallelism, with sequences split between products."""
    of_model: dict[str, Any] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, of_model)
    gathered = functools.partial(PrepareModuleInput, input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None))
    for layer in model.layers:
        of_block: dict[str, Any] = {
            "attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel(), "attention": gathered(),
            "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        }  # fmt: skip
        of_block |= {f"attention.w{name}": ColwiseParallel() for name in "qkv"}
        of_block |= {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
        of_block |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")}
        parallelize_module(layer, mesh, of_block)


def selected() -> tuple[Any, Any]:
    """Contexts of selective recomputation: products are kept, except every second, and so are attention and sums of shards."""
    products = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_: object, **__: object) -> CheckpointPolicy:
        if operator == _ATEN.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        else:
            kept = operator in _KEPT
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recomputing(block: nn.Module, recompute: str) -> nn.Module:
    """The block with recomputation of all of it, of selected operators, or of nothing."""
    if recompute == "none":
        return block
    contexts: dict[str, Any] = {"context_fn": selected} if recompute == "selective" else {}
    return checkpoint_wrapper(block, preserve_rng_state=False, **contexts)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    sizes = {"layers": 4, "width": 1024, "heads": 16, "key-heads": 8, "hidden": 4096, "vocabulary": 32000, "length": 2048}
    for name, value in (sizes | {"batch": 2, "tensor": 1}).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="selective")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--keep-gathered", action="store_true", help="parameters stay gathered until the backward pass")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size() // options.tensor, options.tensor), mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = Llama(options)
    if options.tensor > 1:
        split_tensors(model, mesh["tp"])
    shard = functools.partial(
        fully_shard,
        mesh=mesh["dp"],
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        reshard_after_forward=False if options.keep_gathered else None,
    )
    for place, layer in enumerate(model.layers):
        block = recomputing(layer, options.recompute)
        if options.compile:
            block.compile(fullgraph=True)
        shard(block)
        model.layers[place] = block
    shard(model)
    model.to_empty(device="cuda")
    model.init_weights(options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    for _ in range(_STEPS + 2):
        tokens = torch.randint(options.vocabulary, (options.batch, options.length + 1), device=device)
        optimizer.zero_grad()
        with loss_parallel():
            scores = model(tokens[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
