"""A convolutional network in half precision with scaled losses (GradScaler), samples from a DataLoader, and a checkpoint."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    """Synthetic images."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3, 64, 64), place % 100


def block(inputs: int, outputs: int) -> nn.Sequential:
    """A convolution that halves the image."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(True))


def main() -> None:
    """Trains."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    layers = [block(*sizes) for sizes in ((3, 64), (64, 128), (128, 256), (256, 512))]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)).to(device)
    model = DistributedDataParallel(network.to(memory_format=torch.channels_last), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    data = Images()
    loader = DataLoader(data, batch_size=64, sampler=DistributedSampler(data), pin_memory=True)
    for step, (images, labels) in enumerate(loader):
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.float16):
            loss = nn.functional.cross_entropy(model(images), labels.to(device, non_blocking=True))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step == 1 and dist.get_rank() == 0:
            with tempfile.TemporaryFile() as file:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        if step == 5:
            break
    dist.destroy_process_group()


main()
