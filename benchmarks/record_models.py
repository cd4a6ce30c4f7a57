"""Records modules of timm, torchvision, diffusers and transformers, and some that are written here, for models by name.

python benchmarks/record_models.py NAME...  records modules again; `timm` and `timm:NAME@SIZE` are of timm.
Needs these packages. Writes scenarios/models/recorded.jsonl.xz, which `scaleproof.simulator.model.recorded` reads.
"""

from __future__ import annotations

import functools
import lzma
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.recorded import FILE, encoded
from scaleproof.simulator.model.tracing.torch_module import trace_of
from scaleproof.validator.capture.packages.torchvision import declare_vision

BATCH = 7


def random(*sides: int) -> Tensor:
    """A tensor of a batch."""
    return torch.randn(BATCH, *sides)


class Called(nn.Module):
    """A module that is called by names of arguments, and returns some attributes of its result."""

    def __init__(self, module: nn.Module, names: Sequence[str], picked: Sequence[str] = (), **fixed: Any) -> None:
        super().__init__()
        self.module, self.names, self.picked, self.fixed = module, names, picked, fixed

    def forward(self, *given: Tensor) -> Any:
        """Calls the module with the given tensors and the fixed arguments."""
        returned = self.module(**dict(zip(self.names, given, strict=True)), **self.fixed)
        return tuple(getattr(returned, name) for name in self.picked) if self.picked else returned


def unet(context: int, side: int, **changes: Any) -> Any:
    """The U-Net of a Stable Diffusion of version 1 or 2, for latent images (arXiv 2112.10752)."""
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(sample_size=side, cross_attention_dim=context, attention_head_dim=8, **changes)
    names = "sample", "timestep", "encoder_hidden_states"
    return Called(module, names, return_dict=False), random(4, side, side), torch.ones(BATCH), random(77, context)


def sdxl() -> Any:
    """The U-Net of Stable Diffusion XL for images of 1,024 pixels (arXiv 2307.01952)."""
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        sample_size=128, cross_attention_dim=2048, attention_head_dim=[5, 10, 20], block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), transformer_layers_per_block=[1, 2, 10],
        use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )  # fmt: skip

    class Sdxl(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unet = module

        def forward(self, image: Tensor, time: Tensor, text: Tensor, pooled: Tensor, sizes: Tensor) -> Any:
            added = {"text_embeds": pooled, "time_ids": sizes}
            return self.unet(image, time, text, added_cond_kwargs=added, return_dict=False)

    return Sdxl(), random(4, 128, 128), torch.ones(BATCH), random(77, 2048), random(1280), random(6)


class DiT(nn.Module):
    """DiT-XL/2 for latent images of 32 pixels (arXiv 2212.09748)."""

    def __init__(self, depth: int = 28, width: int = 1152, heads: int = 16, patch: int = 2, channels: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(depth))
        self.last = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.head = nn.Linear(width, patch * patch * 2 * channels)

    def forward(self, image: Tensor, time: Tensor, label: Tensor) -> Tensor:
        """The noise and its variance, patch by patch."""
        tokens = self.patches(image).flatten(2).transpose(1, 2)
        condition = self.time(time) + self.classes(label)
        for block in self.blocks:
            tokens = block(tokens, condition)
        shift, scale = self.last(condition).unsqueeze(1).chunk(2, -1)
        result: Tensor = self.head(self.norm(tokens) * (1 + scale) + shift)
        return result


class DiTBlock(nn.Module):
    """A transformer block whose norms are shifted and scaled by the condition (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        """Attention and an MLP, each with a shift, a scale and a gate."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).unsqueeze(1).chunk(6, -1)
        heads = self.qkv(self.norm1(tokens) * (1 + scale1) + shift1).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = tokens + gate1 * self.projection(mixed)
        result: Tensor = tokens + gate2 * self.mlp(self.norm2(tokens) * (1 + scale2) + shift2)
        return result


def dit() -> Any:
    """DiT-XL/2 with sinusoids of the time as input."""
    return DiT(), random(4, 32, 32), random(256), torch.ones(BATCH, dtype=torch.long)


def sd3() -> Any:
    """The MMDiT of Stable Diffusion 3 medium for images of 1,024 pixels (arXiv 2403.03206)."""
    from diffusers import SD3Transformer2DModel

    module = SD3Transformer2DModel(
        sample_size=128, in_channels=16, num_layers=24, num_attention_heads=24, attention_head_dim=64,
        joint_attention_dim=4096, caption_projection_dim=1536, pooled_projection_dim=2048, out_channels=16,
        pos_embed_max_size=192,
    )  # fmt: skip
    names = "hidden_states", "encoder_hidden_states", "pooled_projections", "timestep"
    inputs = random(16, 128, 128), random(333, 4096), random(2048), torch.ones(BATCH)
    return Called(module, names, return_dict=False), *inputs


def flux() -> Any:
    """The transformer of FLUX.1 dev for images of 1,024 pixels."""
    from diffusers import FluxTransformer2DModel

    module = FluxTransformer2DModel(guidance_embeds=True)
    fixed: dict[str, Any] = {"img_ids": torch.zeros(4096, 3), "txt_ids": torch.zeros(512, 3), "return_dict": False}
    names = "hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "guidance"
    inputs = random(4096, 64), random(512, 4096), random(768), torch.ones(BATCH), torch.ones(BATCH)
    return Called(module, names, **fixed), *inputs


def towers(kind: str, text: dict[str, int], vision: dict[str, int], words: int) -> Any:
    """An image and a text tower with a contrastive loss, of transformers; the loss over other workers' pairs is not part."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, projection_dim=text["hidden_size"])
    module = getattr(transformers, f"{kind}Model")(config)
    called = Called(module, ("pixel_values", "input_ids"), ("image_embeds", "text_embeds"))
    return called, random(3, 224, 224), torch.ones(BATCH, words, dtype=torch.long)


def sizes(hidden: int, layers: int, **more: int) -> dict[str, int]:
    """Fields of a transformer of transformers."""
    usual = {"intermediate_size": 4 * hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64}
    return {"hidden_size": hidden, **usual, **more}


class Whisper(nn.Module):
    """Whisper, which reads 80 bands of 3,000 frames (arXiv 2212.04356)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.sound = nn.Sequential(
            nn.Conv1d(80, width, 3, padding=1), nn.GELU(), nn.Conv1d(width, width, 3, stride=2, padding=1), nn.GELU()
        )
        self.words, self.positions = nn.Embedding(51865, width), nn.Embedding(448, width)
        self.transformer = nn.Transformer(
            width, width // 64, layers, layers, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )

    def forward(self, sound: Tensor, words: Tensor) -> Tensor:
        """Scores of the next words."""
        tokens = self.words(words) + self.positions.weight
        mask = self.transformer.generate_square_subsequent_mask(words.shape[1])
        found = self.transformer(self.sound(sound).transpose(1, 2), tokens, tgt_mask=mask, tgt_is_causal=True)
        return functional.linear(found, self.words.weight)


def whisper(width: int, layers: int) -> Any:
    """Whisper with 30 s of sound and 448 words."""
    return Whisper(width, layers), random(80, 3000), torch.ones(BATCH, 448, dtype=torch.long)


def wav2vec2(samples: int = 160_000) -> Any:
    """Wav2Vec 2.0 base with samples of sound at 16 kHz, by default 10 s, fine-tuned with CTC (arXiv 2006.11477)."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    module = Wav2Vec2ForCTC(Wav2Vec2Config(mask_time_prob=0.0, layerdrop=0.0))
    return Called(module, ("input_values",), ("logits",)), random(samples)


def mae(hidden: int, layers: int, heads: int, patch: int = 16) -> Any:
    """A masked autoencoder, which encodes a quarter of the patches (arXiv 2111.06377)."""
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    config = ViTMAEConfig(**{**sizes(hidden, layers), "num_attention_heads": heads}, patch_size=patch)
    return Called(ViTMAEForPreTraining(config), ("pixel_values",), ("logits",)), random(3, 224, 224)


class Detr(nn.Module):
    """DETR: a ResNet-50 with frozen norms, six encoder and six decoder blocks, 100 queries (arXiv 2005.12872)."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        from torchvision.models import resnet50
        from torchvision.ops import FrozenBatchNorm2d

        self.backbone = nn.Sequential(*list(resnet50(norm_layer=FrozenBatchNorm2d).children())[:-2])
        self.project = nn.Conv2d(2048, width, 1)
        self.transformer = nn.Transformer(width, 8, 6, 6, 2048, batch_first=True)
        self.queries = nn.Embedding(100, width)
        self.classes, self.boxes = nn.Linear(width, 92), nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )  # fmt: skip

    def forward(self, image: Tensor) -> Any:
        """Classes and boxes of the queries."""
        tokens = self.project(self.backbone(image)).flatten(2).transpose(1, 2)
        found = self.transformer(tokens, self.queries.weight.expand(len(image), -1, -1))
        return self.classes(found), self.boxes(found)


def detr(width: int = 1088) -> Any:
    """DETR for images of 800 pixels by a width; 1,088 is the mean of COCO's with the shorter side scaled to 800."""
    return Detr(), random(3, 800, width)


class UNet(nn.Module):
    """A U-Net of two convolutions for each size in two or three dimensions; each step up also reads the image on the way down.

    widths: channels of each size. norm: "instance", or "pool" for max-pools in place of strides and no norms. padding: of
    convolutions; without it, images become smaller, and those on the way down are cropped.
    """

    def __init__(
        self,
        dimensions: int,
        channels: int,
        classes: int,
        widths: Sequence[int],
        norm: str,
        activation: type[nn.Module],
        padding: int = 1,
    ) -> None:
        super().__init__()
        make = functools.partial(getattr, nn)
        convolution, self.pooled = make(f"Conv{dimensions}d"), norm == "pool"
        up, pool = make(f"ConvTranspose{dimensions}d"), make(f"MaxPool{dimensions}d")

        def block(read: int, written: int, stride: int = 1) -> nn.Sequential:
            parts: list[nn.Module] = []
            for number in range(2):
                step = stride if number == 0 else 1
                parts.append(convolution(read if number == 0 else written, written, 3, step, padding))
                if norm == "instance":
                    parts.append(make(f"InstanceNorm{dimensions}d")(written, affine=True))
                parts.append(activation())
            return nn.Sequential(*parts)

        reads = [channels, *widths[:-1]]
        strides = [1] * len(widths) if self.pooled else [1, *[2] * (len(widths) - 1)]
        self.down = nn.ModuleList(block(*sides) for sides in zip(reads, widths, strides, strict=True))
        self.pool = pool(2)
        steps = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(up(below, above, 2, 2) for below, above in steps)
        self.joined = nn.ModuleList(block(2 * above, above) for _, above in steps)
        self.head = convolution(widths[0], classes, 1)

    def forward(self, image: Tensor) -> Any:
        """Scores of each class for each pixel."""
        images = []
        for number, block in enumerate(self.down):
            image = block(self.pool(image) if self.pooled and number else image)
            images.append(image)
        for up, joined, skipped in zip(self.up, self.joined, images[-2::-1], strict=True):
            image = up(image)
            skipped = skipped[..., : image.shape[-2], : image.shape[-1]]
            image = joined(torch.cat((image, skipped), 1))
        return self.head(image)


def nnunet(dimensions: int, sides: Sequence[int], channels: int, widths: Sequence[int]) -> Any:
    """nnU-Net as NVIDIA's DeepLearningExamples configure it: instance norms, leaky ReLUs, strides in place of pools."""
    return UNet(dimensions, channels, 4, widths, "instance", nn.LeakyReLU), random(channels, *sides)


def plain_unet(side: int, widths: Sequence[int], classes: int = 2) -> Any:
    """A U-Net with max-pools and without norms, for one channel; the original one of 572 pixels without padding (arXiv
    1505.04597)."""
    return UNet(2, 1, classes, widths, "pool", nn.ReLU, padding=int(side != 572)), random(1, side, side)


class Ssd300(nn.Module):
    """SSD with the first three stages of a ResNet-50 (arXiv 1512.02325, NVIDIA's DeepLearningExamples)."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet50

        backbone = resnet50()
        block = backbone.layer3[0]
        block.conv1.stride = block.conv2.stride = block.downsample[0].stride = (1, 1)
        self.backbone = nn.Sequential(*list(backbone.children())[:7])
        widths, inner = (1024, 512, 512, 256, 256, 256), (256, 256, 128, 128, 128)
        self.more = nn.ModuleList()
        for number, middle in enumerate(inner):
            stride, padding = (2, 1) if number < 3 else (1, 0)
            self.more.append(nn.Sequential(
                nn.Conv2d(widths[number], middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(True),
                nn.Conv2d(middle, widths[number + 1], 3, stride, padding, bias=False), nn.BatchNorm2d(widths[number + 1]),
                nn.ReLU(True),
            ))  # fmt: skip
        boxes = zip(widths, (4, 6, 6, 6, 4, 4), strict=True)
        self.heads = nn.ModuleList(nn.Conv2d(width, count * 85, 3, padding=1) for width, count in boxes)

    def forward(self, image: Tensor) -> Any:
        """Boxes and their classes on images of six sizes."""
        image = self.backbone(image)
        found = [self.heads[0](image)]
        for block, head in zip(self.more, self.heads[1:], strict=True):
            image = block(image)
            found.append(head(image))
        return found


def ssd300() -> Any:
    """SSD300 with a ResNet-50."""
    return Ssd300(), random(3, 300, 300)


class Detector(nn.Module):
    """Backbone, feature pyramid and dense heads of a detector of torchvision, without the search for boxes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        from torchvision.models import detection, resnet50, resnext50_32x4d
        from torchvision.models.detection.backbone_utils import _resnet_fpn_extractor
        from torchvision.ops.feature_pyramid_network import LastLevelP6P7

        if name != "maskrcnn-r50":
            levels = LastLevelP6P7(256, 256)
            backbone = resnext50_32x4d() if name == "retinanet-resnext50" else resnet50()
            extractor = _resnet_fpn_extractor(backbone, 3, returned_layers=[2, 3, 4], extra_blocks=levels)
            found = detection.RetinaNet(extractor, 264 if name == "retinanet-resnext50" else 91)
            self.heads, self.rois = nn.ModuleList([found.head]), nn.ModuleList()
        else:
            found = detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
            self.heads = nn.ModuleList([found.rpn.head])
            rois = found.roi_heads
            boxes = nn.Sequential(rois.box_head, nn.Linear(1024, 91 * 5))
            self.rois = nn.ModuleList([boxes, nn.Sequential(rois.mask_head, rois.mask_predictor)])
        self.backbone = found.backbone

    def forward(self, image: Tensor) -> Any:
        """Scores and boxes, with 512 regions of an image for boxes and 128 for masks, as in training."""
        features = list(self.backbone(image).values())
        found = [head(features) for head in self.heads]
        for roi, (count, side) in zip(self.rois, ((512, 7), (128, 14)), strict=False):
            found.append(roi(features[0][:, :, :side, :side].repeat(count, 1, 1, 1)))
        return found


def detector(name: str, *sides: int) -> Any:
    """A detector of torchvision."""
    return Detector(name), random(3, *sides)


# Modules by name, with the side of their images, or 0. Those that end in a number of pixels or samples have the input for
# which OpenVINO's Open Model Zoo prints GFLOPs.
MODULES: dict[str, tuple[int, Callable[[], Any]]] = {
    "sd15-unet": (512, functools.partial(unet, 768, 64)),
    "sd21-unet": (512, functools.partial(unet, 1024, 64, use_linear_projection=True)),
    "sdxl-unet": (1024, sdxl), "dit-xl-2": (256, dit), "sd3-medium": (1024, sd3), "flux-dev": (1024, flux),
    "clip-vit-l-14": (224, functools.partial(
        towers, "CLIP", sizes(768, 12, eos_token_id=2), sizes(1024, 24, patch_size=14, image_size=224), 77)),
    "siglip-b-16": (224, functools.partial(
        towers, "Siglip", sizes(768, 12, vocab_size=32000, max_position_embeddings=64),
        sizes(768, 12, patch_size=16, image_size=224), 64)),
    "whisper-small": (0, functools.partial(whisper, 768, 12)), "whisper-large-v2": (0, functools.partial(whisper, 1280, 32)),
    "wav2vec2-base": (0, wav2vec2), "wav2vec2-base-30480": (0, functools.partial(wav2vec2, 30_480)),
    "mae-vit-b": (224, functools.partial(mae, 768, 12, 12)), "mae-vit-l": (224, functools.partial(mae, 1024, 24, 16)),
    "mae-vit-h": (224, functools.partial(mae, 1280, 32, 16, 14)), "detr-r50": (800, detr),
    "detr-r50-1137": (800, functools.partial(detr, 1137)),
    "nnunet-2d": (192, functools.partial(nnunet, 2, (192, 160), 4, (32, 64, 128, 256, 512, 512))),
    "nnunet-3d": (128, functools.partial(nnunet, 3, (128, 128, 128), 4, (32, 64, 128, 256, 320, 320))),
    "unet-3d-brats": (128, functools.partial(nnunet, 3, (128, 128, 128), 4, (32, 64, 128, 256, 320))),
    "unet-medical": (572, functools.partial(plain_unet, 572, (64, 128, 256, 512, 1024))),
    "unet-industrial": (512, functools.partial(plain_unet, 512, (32, 64, 128, 256), 1)),
    "ssd300-r50": (300, ssd300), "ssd320-r50-fpn": (320, functools.partial(detector, "ssd320-r50-fpn", 320, 320)),
    "retinanet-resnext50": (800, functools.partial(detector, "retinanet-resnext50", 800, 800)),
    "maskrcnn-r50": (800, functools.partial(detector, "maskrcnn-r50", 800, 1344)),
}  # fmt: skip


def recorded(name: str) -> tuple[str, int, tuple[Layer, ...]]:
    """Name, side and layers of a module."""
    if name in MODULES:
        return name, MODULES[name][0], trace_of(f"python:record_models:build_{name}", Path(__file__).parent).layers
    side = name.partition("@")[2] or _own_side(name)
    return name.partition("@")[0], int(side), trace_of(name, Path()).layers


def _own_side(name: str) -> int:
    if name.startswith("torchvision:"):
        return 224
    import timm

    return int(timm.get_pretrained_cfg(name.removeprefix("timm:")).input_size[-1])


def __getattr__(name: str) -> Any:
    if name.startswith("build_"):
        return MODULES[name.removeprefix("build_")][1]
    raise AttributeError(name)


def _main(names: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    declare_vision()
    lines: dict[tuple[str, int], str] = {}
    order: dict[str, list[int]] = {}
    if FILE.exists():
        for line in lzma.decompress(FILE.read_bytes()).decode().splitlines():
            name, pixels, rest = line.split("\t")
            lines[name, int(pixels)] = rest
            order.setdefault(name, []).append(int(pixels))
    if "timm" in names:
        import timm
        from timm.models._registry import _deprecated_models

        for old, new in _deprecated_models.items():
            # names of older versions stand for a module of another name
            lines[f"timm:{old}", 0], order[f"timm:{old}"] = f"=timm:{new.partition('.')[0]}", [0]
        names = [*(name for name in names if name != "timm"), *(f"timm:{name}" for name in timm.list_models())]
    for wanted in names:
        try:
            name, side, layers = recorded(wanted)
        except Exception as error:  # modules that cannot be traced are left out, and named
            print(f"{wanted}: {error}"[:200], flush=True)
            continue
        lines[name, side] = encoded(layers)
        if side not in order.setdefault(name, []):
            order[name].append(side)
        millions = sum(layer.parameters for layer in layers) / 1e6
        multiplies = sum(layer.forward_flops for layer in layers) / 2e9
        print(f"{wanted}: {millions:.2f} M parameters, {multiplies:.2f} G multiply-adds", flush=True)
    text = "\n".join(f"{name}\t{side}\t{lines[name, side]}" for name in sorted(order) for side in order[name])
    FILE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    _main(sys.argv[1:])
