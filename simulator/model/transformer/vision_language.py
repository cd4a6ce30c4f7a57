"""Models that read images and text: a vision tower, whose projected outputs are tokens of a decoder (arXiv 2304.08485)."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from scaleproof.simulator.common.spec import Depth, Spec, Width
from scaleproof.simulator.model.layers import WHOLE, Layer, Shard
from scaleproof.simulator.model.operators import Matmul, MemoryBound, SavedActivation
from scaleproof.simulator.model.transformer.attention import Heads, attention, qkv_projection
from scaleproof.simulator.model.transformer.decoder import LlamaDefaults, options, sharding
from scaleproof.simulator.model.transformer.layer_parts import (
    Activation,
    ActivationStream,
    Norm,
    activation_function,
    block,
    even_share,
    linear,
    mlp,
    norm,
)

# Of an image: red, green and blue.
_CHANNELS: Final = 3


class Projector(Spec):
    """What makes tokens of the decoder out of the tower's: one product, or two with a GELU between them.

    merge: side of the squares of patches whose outputs are concatenated to one token; pool: of those that are averaged.
    """

    merge: Width = 1
    pool: Width = 1
    norm: Norm | None = Field(None, description="of the tower's outputs; none if absent")
    width: Width | None = Field(None, description="columns of the first of two products; one product if absent")
    biases: bool = True


class Vision(Spec):
    """A vision transformer that reads square images (arXiv 2010.11929)."""

    layers: Depth
    hidden: Width
    heads: Width
    feedforward: Width
    image: Width = Field(description="pixels of a side of an image")
    patch: Width = Field(14, description="pixels of a side of a patch")
    frames: Width = Field(1, description="frames that a patch spans; an image is repeated")
    activation: Activation = "gelu"
    norm: Norm = "layer"
    positions: Literal["learned", "rotary"] = "learned"
    class_token: bool = Field(False, description="whether a token that is no patch passes the tower")
    patch_bias: bool = False
    end_norms: int = Field(0, ge=0, le=2, description="norms before the first block and after the last one")
    window: Width | None = Field(None, description="patches that a patch attends to; all if absent")
    global_blocks: int = Field(0, ge=0, description="number of blocks that attend to all patches in spite of the window")
    projector: Projector = Projector()

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        side = self.patch * self.projector.merge * self.projector.pool
        if self.image % side:
            raise ValueError(f"image: {self.image} pixels are no multiple of {side}, the side of a token; give one")
        if self.hidden % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide hidden {self.hidden}; give a divisor of it")
        if self.global_blocks > self.layers:
            raise ValueError(f"global_blocks: {self.global_blocks} is more than layers {self.layers}; give fewer")
        return self

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2

    @property
    def tokens(self) -> int:
        """Tokens of the decoder for an image."""
        return self.patches // (self.projector.merge * self.projector.pool) ** 2


class VisionLanguage(LlamaDefaults):
    """A Llama whose samples also have images; `sequence` counts the tokens of text and of images."""

    kind: Literal["vision_language"] = "vision_language"
    vision: Vision
    images: Width = Field(1, description="images of a sample")

    @model_validator(mode="after")
    def _images_fit(self) -> Self:
        if (tokens := self.images * self.vision.tokens) > self.sequence:
            raise ValueError(f"sequence: {self.sequence} is less than the {tokens} tokens of a sample's images; give more")
        return self

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """Patches, blocks and projector of the tower, which each context-parallel rank computes, then the layers of the
        decoder. Raises FieldError if it cannot be divided so."""
        tower, count = self.vision, self.images
        # class tokens and patches cannot be divided as words are: ranks divide the tower's heads and MLPs alone
        own = shard._replace(expert=1, expert_tensor=None, sequence=False, context=1)
        tokens = tower.patches + tower.class_token
        stream = ActivationStream.checked(count * tokens, tower.hidden, own, tower.norm, False)
        end = f"{options(self)}{sharding(shard)})"
        windows = [tower.window] * (tower.layers - tower.global_blocks) + [None] * tower.global_blocks
        blocks = []
        for index, window in enumerate(windows):
            signature = f"{self.kind}.vision.{'block' if window == tower.window else 'global'}({end}"
            part = _block(stream, tower, min(window or tokens, tokens))
            blocks.append(part.named(f"vision{index}", signature, stream.local_elements))
        first = _patches(stream, tower).named(
            "patches", f"{self.kind}.patches({end}", stream.local_elements, pinned_to_end=True
        )
        last = _projector(stream, tower, count * tower.tokens, self.hidden)
        output = count * tower.tokens * self.hidden
        return [first, *blocks, last.named("projector", f"{self.kind}.projector({end}", output), *super().build_layers(shard)]


def _block(stream: ActivationStream, tower: Vision, keys: int) -> Layer:
    """A block of the tower, in which each token attends to `keys` others of its image."""
    ranks, width = stream.shard.tensor, tower.hidden // tower.heads
    heads = even_share("heads", tower.heads, ranks)
    shape = Heads(heads, heads, width, width, False, True, keys)
    mixing = qkv_projection(stream, shape, True, tower.positions == "rotary") + attention(stream, shape, True)
    feedforward = even_share("feedforward", tower.feedforward, ranks)
    return block(stream, (mixing, mlp(stream, feedforward, tower.activation, True)))


def _patches(stream: ActivationStream, tower: Vision) -> Layer:
    """The product that embeds patches, with positions, a class token and the norms around the blocks, if any."""
    n, hidden, pixels = stream.local_elements, tower.hidden, _CHANNELS * tower.frames * tower.patch**2
    bias = (hidden,) if tower.patch_bias else ()
    part = Layer(
        operators=(Matmul("patches", stream.tokens, hidden, pixels, input_gradient=False),),
        tensors=(*((hidden,) if tower.class_token else ()), pixels * hidden, *bias),
        kept=(SavedActivation("pixels", stream.tokens * pixels, group="input"),),
    )
    if tower.positions == "learned":
        rows = tower.patches + tower.class_token
        part += Layer(operators=(MemoryBound("add embedding", 2 * n, n, n, n),), tensors=(rows * hidden,))
    for _ in range(tower.end_norms):
        part += norm(stream) + Layer(kept=(SavedActivation("end norm", n, group="input"),))
    return part


def _projector(stream: ActivationStream, tower: Vision, rows: int, hidden: int) -> Layer:
    """Tokens of the decoder, `rows` × `hidden`, from the outputs of the tower."""
    form = tower.projector
    inner = tower.hidden * form.merge**2
    part = Layer(kept=(SavedActivation("input", stream.local_elements, group="input"),))
    if form.pool > 1:
        part += Layer(
            operators=(MemoryBound("pool", stream.local_elements, rows * inner, rows * inner, stream.local_elements),)
        )
    if form.norm is not None:
        part += norm(stream._replace(tokens=rows * form.merge**2, norm=form.norm))
        part += Layer(kept=(SavedActivation("norms", rows * inner),))
    if form.width is not None:
        part += linear("up", rows, form.width, inner, form.biases) + activation_function(rows * form.width, "gelu")
    part += linear("down", rows, hidden, form.width or inner, form.biases)
    # its rows replace those of placeholders among the embedded words
    moved = rows * hidden
    return part + Layer(operators=(MemoryBound("place images", moved, moved, moved, moved),))
