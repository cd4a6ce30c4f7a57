"""An image classifier that Lightning Fabric trains: data parallelism, bf16, and samples from a DataLoader."""

import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(
    accelerator="cuda",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    precision="bf16-mixed",
)
fabric.launch()
model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 10))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=3e-4))
count = 128 * 8 * int(os.environ["WORLD_SIZE"])
data = TensorDataset(torch.zeros(1, 3, 32, 32).expand(count, -1, -1, -1), torch.zeros(count, dtype=torch.int64))
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=128))
for images, labels in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
