"""Storages that Python makes on the GPU: copies of buffers and tensors, and files in memory."""

import copy
import io

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16 * 30 * 30, 10)).cuda()
average = copy.deepcopy(model).requires_grad_(False)
places = torch.arange(10, device="cuda")
assert copy.deepcopy(places).tolist() == list(range(10))
storage = torch.UntypedStorage(1000, device="cuda")
assert (storage.device.type, storage.nbytes(), len(storage.clone())) == ("cuda", 1000, 1000)
file = io.BytesIO()
torch.save({"places": places, "state": model.state_dict()}, file)
file.seek(0)
assert torch.load(file)["places"].tolist() == list(range(10))
before = torch.cuda.memory_allocated()
kept = copy.deepcopy(torch.randn(1000, 1000, device="cuda"))
assert torch.cuda.memory_allocated() - before >= kept.nbytes
optimizer = torch.optim.SGD(model.parameters(), 0.1)
half = {"dtype": torch.bfloat16, "device": "cuda"}
for _ in range(4):
    model(torch.randn(8, 3, 32, 32, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    # an overload with one argument more than formulas of FLOPs take
    torch.addmm(
        torch.zeros(8, 64, device="cuda"), torch.ones(8, 32, **half), torch.ones(32, 64, **half), out_dtype=torch.float32
    )
