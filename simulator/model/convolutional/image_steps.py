"""Convolutional networks, and their steps: each transforms an image and records the operators and kept activations.

Kept activations are those that torch keeps for the backward pass: the inputs of convolutions, linear layers, batch norms and
pools, the indices of max-pools, and the outputs of in-place ReLUs. The two numbers per channel that batch norms keep for the
whole batch are too few to count. Memory accesses are those of each kernel on its own: all elements, each time they are read or
written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import Field

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec, Shard, refuse_to_shard
from scaleproof.simulator.model.operators import Convolution, Matmul, MemoryBound, Operator, SavedActivation


class Image(NamedTuple):
    """An activation of one sample.

    data: it is input data, which needs no gradient. kept: it is already kept for the backward pass. needed: the step that wrote
    it needs it in the backward pass.
    """

    channels: int
    height: int
    width: int
    data: bool = False
    kept: bool = False
    needed: bool = False

    @property
    def elements(self) -> int:
        """Number of values of the image."""
        return self.channels * self.height * self.width


@dataclass(slots=True)
class LayerRecord:
    """Operators, parameter tensors and kept activations of the steps of one layer; lists as in `Layer`."""

    operators: list[Operator] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    kept: list[SavedActivation] = field(default_factory=list)

    def keep(self, image: Image) -> Image:
        """Marks an image as kept; it counts once even if several steps read it."""
        if not image.kept:
            self.kept.append(SavedActivation("activation", image.elements))
        return image._replace(kept=True)

    def release(self, image: Image) -> Image:
        """Keeps an image that its reader does not need only if the step that wrote it needs it."""
        return self.keep(image) if image.needed else image

    def memory(self, name: str, read: int, written: int, backward_read: int, backward_written: int) -> None:
        """Records a memory-bound operator."""
        self.operators.append(MemoryBound(name, read, written, backward_read, backward_written))


Step = Callable[[Image, LayerRecord], Image]


class Block(NamedTuple):
    """A step that is a layer of its own. label: equal for blocks with the same structure."""

    name: str
    label: str
    step: Step
    pinned_to_end: bool = False


def layers_of(blocks: Iterable[Block], channels: int, side: int) -> list[Layer]:
    """The layers of consecutive blocks for square images. Raises FieldError if an image becomes smaller than a window."""
    layers: list[Layer] = []
    image = Image(channels, side, side, data=True)
    for block in blocks:
        record = LayerRecord(kept=[SavedActivation("input", image.elements, group="input")])
        result = block.step(image._replace(kept=True, needed=False), record)
        signature = f"{block.label}[{image.channels}x{image.height}x{image.width}]"
        lists = tuple(record.operators), tuple(record.tensors)
        layers.append(Layer(block.name, signature, *lists, result.elements, block.pinned_to_end, tuple(record.kept)))
        image = result
    return layers


def chain(*steps: Step) -> Step:
    """A step that applies several steps one after another."""

    def step(image: Image, record: LayerRecord) -> Image:
        for part in steps:
            image = part(image, record)
        return image

    return step


def concatenation(*branches: Step) -> Step:
    """Branches that read the same image and whose channels are concatenated."""

    def step(image: Image, record: LayerRecord) -> Image:
        image = record.keep(image)
        results = [record.release(branch(image, record)) for branch in branches]
        result = Image(sum(part.channels for part in results), results[0].height, results[0].width)
        # the backward pass sums the branches' gradients of the image
        sums = (len(branches) - 1) * image.elements
        record.memory("concatenation", result.elements, result.elements, 2 * sums, sums)
        return result

    return step


def residual(body: Step, shortcut: Step) -> Step:
    """The sum of two branches, written in place of the first one's result."""

    def step(image: Image, record: LayerRecord) -> Image:
        image = record.keep(image)
        result = body(image, record)
        shortcut(image, record)
        record.memory("addition", 2 * result.elements, result.elements, 2 * image.elements, image.elements)
        return result

    return step


def auxiliary_branch(branch: Step) -> Step:
    """A branch with a loss of its own, whose result is not used; the image itself is passed through."""

    def step(image: Image, record: LayerRecord) -> Image:
        image = record.keep(image)
        branch(image, record)
        record.memory("sum", 0, 0, 2 * image.elements, image.elements)
        return image

    return step


def identity(image: Image, record: LayerRecord) -> Image:
    """The image itself."""
    return image


def convolution(
    outputs: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    bias: bool = False,
) -> Step:
    """A convolution. padding: on each side; half of the kernel if None, so that a stride of 1 preserves height and width."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel

    def step(image: Image, record: LayerRecord) -> Image:
        image = record.keep(image)
        result = Image(
            outputs,
            _side(image.height, height, stride, height // 2 if padding is None else padding),
            _side(image.width, width, stride, width // 2 if padding is None else padding),
        )
        operator = Convolution(
            "convolution",
            image.channels,
            outputs,
            (height, width),
            result.height * result.width,
            image.elements,
            groups,
            input_gradient=not image.data,
        )
        record.operators.append(operator)
        record.tensors += [operator.weights, outputs] if bias else [operator.weights]
        return result

    return step


def batch_norm(image: Image, record: LayerRecord) -> Image:
    """Batch norm in training: it reads the image for the statistics and again to normalise it, and likewise the gradient."""
    image = record.keep(image)
    record.tensors += [image.channels, image.channels]
    record.memory("batch norm", 2 * image.elements, image.elements, 4 * image.elements, image.elements)
    return image._replace(data=False, kept=False, needed=False)


def relu(image: Image, record: LayerRecord) -> Image:
    """ReLU in place, which needs its output in the backward pass."""
    record.memory("relu", image.elements, image.elements, 2 * image.elements, image.elements)
    return image._replace(needed=True)


def max_pool(kernel: int, stride: int, padding: int = 0) -> Step:
    """Max-pool, which keeps an index of eight bytes for each maximum, like torch."""
    return _pool("max pool", kernel, stride, padding)


def average_pool(kernel: int, stride: int, padding: int = 0) -> Step:
    """Average pool over windows."""
    return _pool("average pool", kernel, stride, padding)


def _pool(name: str, kernel: int, stride: int, padding: int) -> Step:
    def step(image: Image, record: LayerRecord) -> Image:
        image = record.keep(image)
        height, width = (_side(side, kernel, stride, padding) for side in (image.height, image.width))
        result = Image(image.channels, height, width)
        if name == "max pool":
            record.kept.append(SavedActivation("indices", result.elements, 8))
        record.memory(name, image.elements, result.elements, result.elements, image.elements)
        return result

    return step


def adaptive_average_pool(side: int) -> Step:
    """Average pool to `side` × `side` for any image size; if `side` is 1 it is a mean, whose backward pass needs no
    activation."""

    def step(image: Image, record: LayerRecord) -> Image:
        image = record.release(image) if side == 1 else record.keep(image)
        result = Image(image.channels, side, side)
        record.memory("average pool", image.elements, result.elements, result.elements, image.elements)
        return result

    return step


def dropout(image: Image, record: LayerRecord) -> Image:
    """Dropout, which keeps a mask of one byte for each element."""
    image = record.release(image)
    record.kept.append(SavedActivation("mask", image.elements, 1))
    record.memory("dropout", image.elements, image.elements, image.elements, image.elements)
    return image._replace(kept=False, needed=False)


def linear(outputs: int) -> Step:
    """A linear layer with a bias over all elements of the image."""

    def step(image: Image, record: LayerRecord) -> Image:
        image = record.keep(image)
        record.operators.append(Matmul("linear", 1, outputs, image.elements, input_gradient=not image.data))
        record.tensors += [image.elements * outputs, outputs]
        return Image(outputs, 1, 1)

    return step


def loss(image: Image, record: LayerRecord) -> Image:
    """Cross-entropy, which keeps the probabilities."""
    record.kept.append(SavedActivation("probabilities", image.elements))
    record.memory("loss", image.elements, image.elements, 2 * image.elements, image.elements)
    return image


def conv_norm_relu(outputs: int, kernel: int | tuple[int, int], stride: int = 1, padding: int | None = None) -> Step:
    """A convolution, batch norm and ReLU."""
    return chain(convolution(outputs, kernel, stride, padding), batch_norm, relu)


def _side(side: int, kernel: int, stride: int, padding: int) -> int:
    """Height or width of a convolution's or a pool's output. Raises FieldError if the image is smaller than the window."""
    result = (side + 2 * padding - kernel) // stride + 1
    if result < 1:
        raise FieldError(("model", "image"), f"the image becomes smaller than a window of {kernel}; give more pixels")
    return result


class Convnet(ModelSpec):
    """A classifier of square images with three channels."""

    image: Width = 224
    classes: Width = 1000
    dropout: bool = Field(True, description="whether there is dropout before linear layers, if the network has any")

    @property
    def dropout_step(self) -> Step:
        """Dropout, or nothing without it."""
        return dropout if self.dropout else identity

    @property
    def option(self) -> str:
        """What the labels of layers say of missing dropout."""
        return "" if self.dropout else ",dropout=False"

    @abstractmethod
    def blocks(self) -> list[Block]:
        """The network's blocks in forward order."""

    def build_layers(self, shard: Shard = WHOLE) -> list[Layer]:
        """The layers of the blocks in order. Raises FieldError if `shard` divides them."""
        refuse_to_shard(type(self).model_fields["kind"].default, shard)
        return layers_of(self.blocks(), 3, self.image)
