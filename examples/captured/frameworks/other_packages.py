"""Models and losses of smaller packages, with data parallelism and bf16, as their documentation trains them."""

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("package")
for name, value in {"batch": 4, "length": 512, "width": 512, "layers": 4, "vocabulary": 8000, "size": 256, "steps": 5}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
Made = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def images(channels: int = 3) -> Tensor:
    return torch.rand(options.batch, channels, options.size, options.size, device=device)


def tokens() -> Tensor:
    return torch.randint(options.vocabulary, (options.batch, options.length), device=device)


def x_transformers() -> Made:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=options.width, depth=options.layers, heads=8, rotary_pos_emb=True, attn_flash=True)
    net = TransformerWrapper(num_tokens=options.vocabulary, max_seq_len=options.length, attn_layers=layers)
    return AutoregressiveWrapper(net), lambda model: model(tokens())


def vit_pytorch() -> Made:
    from vit_pytorch import ViT

    sizes = {"image_size": options.size, "patch_size": 16, "num_classes": 1000, "dim": options.width, "depth": options.layers}
    net = ViT(**sizes, heads=8, mlp_dim=4 * options.width)
    return net, lambda model: functional.cross_entropy(model(images()), torch.randint(1000, (options.batch,), device=device))


def segmentation_models_pytorch() -> Made:
    import segmentation_models_pytorch as segmentation

    net = segmentation.Unet("resnet34", encoder_weights=None, classes=8)
    dice = segmentation.losses.DiceLoss("multiclass")
    masks = torch.randint(8, (options.batch, options.size, options.size), device=device)
    return net, lambda model: dice(model(images()), masks)


def monai() -> Made:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    net = UNet(spatial_dims=3, in_channels=1, out_channels=3, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2)
    error = DiceCELoss(to_onehot_y=True, softmax=True)
    volume = torch.rand(options.batch, 1, 64, 64, 64, device=device)
    labels = torch.randint(3, (options.batch, 1, 64, 64, 64), device=device)
    return net, lambda model: error(model(volume), labels)


def torch_geometric() -> Made:
    from torch_geometric.nn import GCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(options.width, options.width), GCNConv(options.width, 16)

        def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
            return self.second(functional.relu(self.first(nodes, edges)), edges)

    nodes, edges = torch.rand(4096, options.width, device=device), torch.randint(4096, (2, 32768), device=device)
    return Net(), lambda model: functional.cross_entropy(model(nodes, edges), torch.randint(16, (4096,), device=device))


def diffusers() -> Made:
    from diffusers import DDPMScheduler, UNet2DConditionModel

    net = UNet2DConditionModel(
        sample_size=32, block_out_channels=(64, 128), layers_per_block=1, cross_attention_dim=256, norm_num_groups=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    schedule = DDPMScheduler(num_train_timesteps=1000)

    def loss(model: nn.Module) -> Tensor:
        latents, text = torch.randn(options.batch, 4, 32, 32, device=device), torch.randn(options.batch, 77, 256, device=device)
        noise, times = torch.randn_like(latents), torch.randint(1000, (options.batch,), device=device)
        return functional.mse_loss(model(schedule.add_noise(latents, noise, times), times, text).sample.float(), noise)

    return net, loss


def open_clip() -> Made:
    from open_clip import ClipLoss, create_model

    net = create_model("ViT-B-32", precision="amp_bf16")
    loss = ClipLoss(local_loss=True, gather_with_grad=True, rank=dist.get_rank(), world_size=dist.get_world_size())
    text = torch.randint(49000, (options.batch, 77), device=device)
    pixels = torch.rand(options.batch, 3, 224, 224, device=device)
    return net, lambda model: loss(*model(pixels, text))


net, loss = globals()[options.package]()
model = DistributedDataParallel(net.to(device), device_ids=[device.index])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(options.steps):
    with torch.autocast("cuda", torch.bfloat16):
        error = loss(model)
    optimizer.zero_grad(set_to_none=True)
    error.backward()
    optimizer.step()
