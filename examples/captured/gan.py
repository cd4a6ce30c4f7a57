"""A GAN: two networks, two optimizers, and two backward passes in each step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NOISE, CHANNELS, BATCH = 128, 64, 64


def up(inputs: int, outputs: int) -> list[nn.Module]:
    """Doubles the image."""
    return [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True)]


def down(inputs: int, outputs: int) -> list[nn.Module]:
    """Halves the image."""
    return [nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]


def main() -> None:
    """Trains."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    c = CHANNELS
    first = nn.ConvTranspose2d(NOISE, 8 * c, 4, bias=False)
    generator = nn.Sequential(
        first, *up(8 * c, 4 * c), *up(4 * c, 2 * c), *up(2 * c, c), nn.ConvTranspose2d(c, 3, 4, 2, 1), nn.Tanh()
    )
    layers = [*down(3, c), *down(c, 2 * c), *down(2 * c, 4 * c), *down(4 * c, 8 * c)]
    discriminator = nn.Sequential(*layers, nn.Conv2d(8 * c, 1, 4), nn.Flatten(0))
    generator = DistributedDataParallel(generator.to(device), device_ids=[device.index])
    discriminator = DistributedDataParallel(discriminator.to(device), device_ids=[device.index])
    optimizers = [torch.optim.Adam(model.parameters(), lr=2e-4) for model in (discriminator, generator)]
    loss_of = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(BATCH, device=device), torch.zeros(BATCH, device=device)
    for _ in range(6):
        images = torch.randn(BATCH, 3, 64, 64, device=device)
        made = generator(torch.randn(BATCH, NOISE, 1, 1, device=device))
        optimizers[0].zero_grad()
        scores = discriminator(torch.cat((images, made.detach())))
        loss_of(scores, torch.cat((real, fake))).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss_of(discriminator(made), real).backward()
        optimizers[1].step()
    dist.destroy_process_group()


main()
