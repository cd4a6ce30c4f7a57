"""Classification of images with the calls of timm's and torchvision's training scripts: DDP, AMP, EMA, and mixing."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("package", choices=["timm", "torchvision"])
parser.add_argument("--model", default="resnet50")
for name, value in {"batch": 32, "size": 224, "workers": 0, "steps": 6}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()

dist.init_process_group("nccl", init_method="env://")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.backends.cudnn.benchmark = True

if options.package == "timm":
    from timm import create_model, data, loss, optim, scheduler, utils

    model = create_model(options.model, num_classes=1000).to(device=device, memory_format=torch.channels_last)
    average = utils.ModelEmaV3(model, decay=0.9999)
    optimizer = optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    mix = data.Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=1000)
    criterion = loss.SoftTargetCrossEntropy()
    schedule, _ = scheduler.create_scheduler_v2(optimizer, "cosine", num_epochs=10)
    scaler = utils.NativeScaler()
else:
    import torchvision

    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torchvision.models.get_model(options.model)).to(device)
    average, mix = None, None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    scaler = torch.amp.GradScaler("cuda")

replica = DistributedDataParallel(model, device_ids=[device.index])
for step in range(options.steps):
    images = torch.rand(options.batch, 3, options.size, options.size).to(device, non_blocking=True)
    labels = torch.randint(1000, (options.batch,)).to(device, non_blocking=True)
    if mix is not None:
        images, labels = mix(images.contiguous(memory_format=torch.channels_last), labels)
    with torch.autocast("cuda", torch.bfloat16 if options.package == "timm" else torch.float16):
        error = criterion(replica(images), labels)
    optimizer.zero_grad()
    if options.package == "timm":
        scaler(error, optimizer, clip_grad=1.0, parameters=model.parameters())
        average.update(model, step=step)
    else:
        scaler.scale(error).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.synchronize()
with tempfile.TemporaryDirectory() as folder:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(folder, "last.pth"))
