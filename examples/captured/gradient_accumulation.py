"""Gradients of four small batches, which are summed over ranks once, with checkpointed layers and a compiled model."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, BATCH, LENGTH, ACCUMULATED = 1024, 6, 4, 512, 4


class Encoder(nn.Module):
    """Encoder layers that compute their activations again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All layers in turn."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def main() -> None:
    """Trains."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = DistributedDataParallel(torch.compile(Encoder().to(device)), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    for _ in range(6):
        for small in range(ACCUMULATED):
            waits = model.no_sync() if small < ACCUMULATED - 1 else contextlib.nullcontext()
            with waits, torch.autocast("cuda", torch.bfloat16):
                loss = model(torch.randn(BATCH, LENGTH, WIDTH, device=device)).float().square().mean() / ACCUMULATED
                loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
