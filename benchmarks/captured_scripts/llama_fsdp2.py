"""A Llama with 8 blocks of 4,096 under FSDP2, in bf16 with sums in 32 bits, clipped gradients, and AdamW with foreach."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

WIDTH, HEADS, KEY_HEADS, LAYERS, VOCABULARY, HIDDEN, LENGTH, BATCH, STEPS = 4096, 32, 8, 8, 32000, 14336, 4096, 2, 4


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        keys = WIDTH * KEY_HEADS // HEADS
        self.query, self.output = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = nn.Linear(WIDTH, keys, bias=False), nn.Linear(WIDTH, keys, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attends to earlier positions."""
        batch, length, width = x.shape

        def rotated(part: torch.Tensor) -> torch.Tensor:
            a, b = part.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).type_as(part)

        query = rotated(self.query(x).view(batch, length, HEADS, -1)).transpose(1, 2)
        key = rotated(self.key(x).view(batch, length, KEY_HEADS, -1)).transpose(1, 2)
        value = self.value(x).view(batch, length, KEY_HEADS, -1).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(attended.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(), nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.activated, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Attention, then a gated layer."""
        x = x + self.attention(self.norm1(x), cos, sin)
        h = self.norm2(x)
        return x + self.down(functional.silu(self.activated(h)) * self.up(h))


class Llama(nn.Module):
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device).float()
        angles = torch.outer(places, 1e4 ** -torch.linspace(0, 1, WIDTH // HEADS // 2, device=tokens.device))
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))


def main() -> None:
    """Trains."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))
    with torch.device("meta"):
        model = Llama()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    for _ in range(STEPS):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=device)
        functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


main()
