"""Small models of images as users would write them: a vision transformer, a diffusion U-Net, and two towers.

Give them as modules of your own, with sizes in brackets: `python:scaleproof.validator.train.models.vision:unet(channels=32)`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.validator.train.models.attention import Attend
from scaleproof.validator.train.models.transformer import Block, BlockShape

# Samples of the examples, a prime number, so that tracing finds the dimension of samples; steps of diffusion (arXiv 2006.11239,
# section 4).
_EXAMPLES: Final = 7
_STEPS: Final = 1000
# Groups of a group norm.
_GROUPS: Final = 4


def _block(hidden: int, heads: int, tokens: int, causal: bool = False) -> Block:
    """A transformer block with norms before attention and MLP."""
    return Block(BlockShape(hidden, heads, heads, hidden // heads, 4 * hidden, tokens), Attend(causal))


class Patches(nn.Module):
    """Patches of an image, a class token in front, and positions: (batch, 3, side, side) → (batch, 1 + patches, hidden)."""

    def __init__(self, image: int, patch: int, hidden: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, hidden, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.randn(1, 1 + (image // patch) ** 2, hidden) * 0.02)

    def forward(self, image: Tensor) -> Tensor:
        """The embedded patches."""
        x = self.convolution(image).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.positions


class TokenHead(nn.Module):
    """A norm and a product of one token: (batch, tokens, hidden) → (batch, outputs)."""

    def __init__(self, hidden: int, outputs: int, token: int) -> None:
        super().__init__()
        self.token, self.norm, self.linear = token, nn.LayerNorm(hidden), nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        return self.linear(self.norm(x[:, self.token]))  # type: ignore[no-any-return]


def image_tower(image: int, patch: int, hidden: int, layers: int, heads: int, outputs: int) -> nn.Sequential:
    """A vision transformer (arXiv 2010.11929)."""
    blocks = (_block(hidden, heads, 1 + (image // patch) ** 2) for _ in range(layers))
    return nn.Sequential(Patches(image, patch, hidden), *blocks, TokenHead(hidden, outputs, 0))


def vit(
    image: int = 32, patch: int = 8, hidden: int = 32, layers: int = 2, heads: int = 2, classes: int = 10
) -> dict[str, Any]:
    """A vision transformer that classifies images."""
    return {
        "module": image_tower(image, patch, hidden, layers, heads, classes),
        "inputs": torch.randn(_EXAMPLES, 3, image, image),
        "targets": torch.randint(classes, (_EXAMPLES,)),
        "loss": functional.cross_entropy,
    }


class TimedBlock(nn.Module):
    """Two convolutions with group norms, the time added between them; the second one is depthwise, with a product behind it, if
    `depthwise`. (batch, inputs, side, side) → (batch, outputs, side, side)."""

    def __init__(self, inputs: int, outputs: int, time: int, depthwise: bool) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(_GROUPS, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time, self.second_norm = nn.Linear(time, outputs), nn.GroupNorm(_GROUPS, outputs)
        second = nn.Conv2d(outputs, outputs, 3, padding=1, groups=outputs if depthwise else 1)
        self.second = nn.Sequential(second, nn.Conv2d(outputs, outputs, 1)) if depthwise else second
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """The block's output."""
        y = self.first(functional.silu(self.first_norm(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(functional.silu(self.second_norm(y)))  # type: ignore[no-any-return]


class AttentionTo(nn.Module):
    """Attention of positions to tokens of a width: (batch, positions, channels) → the same shape."""

    def __init__(self, channels: int, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.attend = heads, Attend(causal=False)
        self.query, self.key_value = nn.Linear(channels, channels), nn.Linear(width, 2 * channels)
        self.projection = nn.Linear(channels, channels)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """The mixed values."""
        rows = self.query(x), *self.key_value(tokens).chunk(2, -1)
        mixed = self.attend(*(row.unflatten(-1, (self.heads, -1)).transpose(1, 2) for row in rows))
        return self.projection(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Reads(nn.Module):
    """Attention of an image's positions to each other, and to words."""

    def __init__(self, channels: int, heads: int, width: int) -> None:
        super().__init__()
        self.norm, self.own = nn.GroupNorm(_GROUPS, channels), AttentionTo(channels, heads, channels)
        self.words_norm, self.words = nn.LayerNorm(channels), AttentionTo(channels, heads, width)

    def forward(self, image: Tensor, words: Tensor) -> Tensor:
        """The image with what it has read."""
        x = self.norm(image).flatten(2).transpose(1, 2)
        x = x + self.own(x, x)
        x = x + self.words(self.words_norm(x), words)
        return image + x.transpose(1, 2).unflatten(2, image.shape[2:])  # type: ignore[no-any-return]


class Stage(nn.Module):
    """A residual block and attention, before a change of size, if there is any."""

    def __init__(self, inputs: int, outputs: int, time: int, heads: int, words: int, depthwise: bool, resize: str) -> None:
        super().__init__()
        self.block, self.reads = TimedBlock(inputs, outputs, time, depthwise), Reads(outputs, heads, words)
        self.resize: nn.Module = nn.Identity()
        if resize == "down":
            self.resize = nn.Conv2d(outputs, outputs, 3, stride=2, padding=1)
        elif resize == "up":
            self.resize = nn.Sequential(nn.Upsample(scale_factor=2.0), nn.Conv2d(outputs, outputs, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor, words: Tensor, *skipped: Tensor) -> tuple[Tensor, Tensor]:
        """The image for the next stage, and the one before the change of size. skipped: the image of the way down."""
        x = self.reads(self.block(torch.cat([x, *skipped], 1), time), words)
        return self.resize(x), x


class Times(nn.Module):
    """Embedding of steps of diffusion by waves and an MLP: (batch,) → (batch, width)."""

    waves: Tensor

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.register_buffer("waves", 10_000.0 ** -torch.linspace(0, 1, channels // 2), persistent=False)
        self.mlp = nn.Sequential(nn.Linear(2 * (channels // 2), width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, step: Tensor) -> Tensor:
        """The embedded steps."""
        angles = step[:, None] * self.waves
        return self.mlp(torch.cat([angles.sin(), angles.cos()], -1))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """A U-Net that predicts the noise in an image at a step of diffusion, given words, and its loss.

    The size halves from level to level, and the channels double; stages on the way up also read the image of the way down.
    """

    def __init__(self, channels: int, levels: int, heads: int, words: int, depthwise: bool) -> None:
        super().__init__()
        widths, time = [channels * 2**level for level in range(levels)], 4 * channels
        sized = partial(Stage, time=time, heads=heads, words=words, depthwise=depthwise)
        self.times, self.stem = Times(channels, time), nn.Conv2d(3, channels, 3, padding=1)
        sizes = zip([channels, *widths], widths, strict=False)
        self.down = nn.ModuleList(sized(*pair, resize="down") for pair in sizes)
        self.middle = sized(widths[-1], widths[-1], resize="up")
        above = [*widths[-2::-1], channels]
        self.up = nn.ModuleList(
            sized(2 * width, after, resize="up" if level else "")
            for level, width, after in zip(reversed(range(levels)), widths[::-1], above, strict=True)
        )
        self.norm, self.head = nn.GroupNorm(_GROUPS, channels), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, image: Tensor, noise: Tensor, step: Tensor, words: Tensor) -> Tensor:
        """The mean squared error of the predicted noise; images of later steps have more of it."""
        share = (step / _STEPS)[:, None, None, None]
        x, time = self.stem((1 - share).sqrt() * image + share.sqrt() * noise), self.times(step)
        before = []
        for stage in self.down:
            x, kept = stage(x, time, words)
            before.append(kept)
        x, _ = self.middle(x, time, words)
        for stage in self.up:
            x, _ = stage(x, time, words, before.pop())
        return functional.mse_loss(self.head(functional.silu(self.norm(x))), noise)


def unet(
    image: int = 16, channels: int = 8, levels: int = 2, heads: int = 2, words: int = 4, width: int = 16, depthwise: bool = True
) -> tuple[Any, ...]:
    """A U-Net for diffusion of images (arXiv 2006.11239), with attention to `words` words (arXiv 2112.10752)."""
    images = torch.randn(2, _EXAMPLES, 3, image, image)
    steps = torch.randint(_STEPS, (_EXAMPLES,)).float()
    return UNet(channels, levels, heads, width, depthwise), *images, steps, torch.randn(_EXAMPLES, words, width)


class EmbeddedWords(nn.Module):
    """Embedded words with positions: (batch, words) → (batch, words, hidden)."""

    def __init__(self, vocabulary: int, words: int, hidden: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, hidden), nn.Parameter(torch.randn(words, hidden) * 0.02)

    def forward(self, words: Tensor) -> Tensor:
        """The embedded words."""
        return self.words(words) + self.positions  # type: ignore[no-any-return]


class Towers(nn.Module):
    """A tower for images and one for words, whose features have length 1; a scale of their products, and a bias if `biased`."""

    def __init__(self, images: nn.Module, words: nn.Module, biased: bool) -> None:
        super().__init__()
        self.images, self.words = images, words
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1)) if biased else None

    def forward(self, images: Tensor, words: Tensor) -> tuple[Tensor, ...]:
        """The scaled features of images, those of words, and the bias."""
        features = functional.normalize(self.images(images), dim=-1), functional.normalize(self.words(words), dim=-1)
        scaled = features[0] * self.scale.exp(), features[1]
        return scaled if self.bias is None else (*scaled, self.bias)


def clip(
    image: int = 32, patch: int = 8, hidden: int = 32, layers: int = 1, heads: int = 2, width: int = 16, vocabulary: int = 64,
    words: int = 8, biased: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Towers of images and words (CLIP, arXiv 2103.00020; with a bias SigLIP, arXiv 2303.15343); `model.contrast` gives their
    loss."""
    blocks = (_block(hidden, heads, words, causal=True) for _ in range(layers))
    text = nn.Sequential(EmbeddedWords(vocabulary, words, hidden), *blocks, TokenHead(hidden, width, -1))
    towers = Towers(image_tower(image, patch, hidden, layers, heads, width), text, biased)
    return towers, torch.randn(_EXAMPLES, 3, image, image), torch.randint(vocabulary, (_EXAMPLES, words))
