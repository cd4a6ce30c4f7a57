"""What convolutional networks are made of: steps that an image passes through, noting what each computes and keeps.

What is kept is what torch keeps for the backward pass: the inputs of convolutions, linear layers, batch norms and pools, the
indices of max-pools, and what ReLUs write in place. Batch norms also keep two numbers per channel for the whole batch, too few
to count. Accesses to memory are those of each kernel on its own: all elements, each time that they are read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Convolution, Matmul, MemoryBound, Operator, SavedActivation


class Image(NamedTuple):
    """An activation of one sample.

    data: it is what the model is given, whose gradient nobody needs. kept: it is kept for the backward pass already.
    needed: who made it needs it there.
    """

    channels: int
    height: int
    width: int
    data: bool = False
    kept: bool = False
    needed: bool = False

    @property
    def elements(self) -> int:
        return self.channels * self.height * self.width


@dataclass(slots=True)
class Notes:
    """What the steps of one layer compute, learn and keep; lists as in `Layer`."""

    operators: list[Operator] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    kept: list[SavedActivation] = field(default_factory=list)

    def keep(self, image: Image) -> Image:
        """The image, kept once however many steps read it."""
        if not image.kept:
            self.kept.append(SavedActivation("activation", image.elements))
        return image._replace(kept=True)

    def release(self, image: Image) -> Image:
        """An image that its reader does not need: it is kept if who made it needs it."""
        return self.keep(image) if image.needed else image

    def memory(self, name: str, read: int, written: int, backward_read: int, backward_written: int) -> None:
        self.operators.append(MemoryBound(name, read, written, backward_read, backward_written))


Step = Callable[[Image, Notes], Image]


class Block(NamedTuple):
    """A step that is a layer of its own. label: what it is, the same for all that are built alike."""

    name: str
    label: str
    step: Step
    glued: bool = False


def layers_of(blocks: Iterable[Block], channels: int, side: int) -> list[Layer]:
    """The layers that square images pass through one after another. Raises FieldError where too little of an image is left."""
    layers: list[Layer] = []
    image = Image(channels, side, side, data=True)
    for block in blocks:
        notes = Notes(kept=[SavedActivation("input", image.elements, group="input")])
        result = block.step(image._replace(kept=True, needed=False), notes)
        signature = f"{block.label}[{image.channels}x{image.height}x{image.width}]"
        lists = tuple(notes.operators), tuple(notes.tensors)
        layers.append(Layer(block.name, signature, *lists, result.elements, block.glued, tuple(notes.kept)))
        image = result
    return layers


def chain(*steps: Step) -> Step:
    """One step after another."""

    def step(image: Image, notes: Notes) -> Image:
        for part in steps:
            image = part(image, notes)
        return image

    return step


def concatenation(*branches: Step) -> Step:
    """Branches that read the same image; their channels are put together in memory."""

    def step(image: Image, notes: Notes) -> Image:
        image = notes.keep(image)
        results = [notes.release(branch(image, notes)) for branch in branches]
        result = Image(sum(part.channels for part in results), results[0].height, results[0].width)
        # backward, the branches' gradients of the image are summed
        sums = (len(branches) - 1) * image.elements
        notes.memory("concatenation", result.elements, result.elements, 2 * sums, sums)
        return result

    return step


def residual(body: Step, shortcut: Step) -> Step:
    """The sum of two branches, in place of the first."""

    def step(image: Image, notes: Notes) -> Image:
        image = notes.keep(image)
        result = body(image, notes)
        shortcut(image, notes)
        notes.memory("addition", 2 * result.elements, result.elements, 2 * image.elements, image.elements)
        return result

    return step


def aside(branch: Step) -> Step:
    """A branch whose result nobody reads, with a loss of its own; the image passes by."""

    def step(image: Image, notes: Notes) -> Image:
        image = notes.keep(image)
        branch(image, notes)
        notes.memory("sum", 0, 0, 2 * image.elements, image.elements)
        return image

    return step


def identity(image: Image, notes: Notes) -> Image:
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
    """A convolution. padding: on each side; half of the kernel if None, which keeps height and width at a stride of 1."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel

    def step(image: Image, notes: Notes) -> Image:
        image = notes.keep(image)
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
        notes.operators.append(operator)
        notes.tensors += [operator.weights, outputs] if bias else [operator.weights]
        return result

    return step


def batch_norm(image: Image, notes: Notes) -> Image:
    """Batch norm in training: the image is read for its statistics, then again to normalise it; so is its gradient."""
    image = notes.keep(image)
    notes.tensors += [image.channels, image.channels]
    notes.memory("batch norm", 2 * image.elements, image.elements, 4 * image.elements, image.elements)
    return image._replace(data=False, kept=False, needed=False)


def relu(image: Image, notes: Notes) -> Image:
    """ReLU in place, which needs what it wrote."""
    notes.memory("relu", image.elements, image.elements, 2 * image.elements, image.elements)
    return image._replace(needed=True)


def max_pool(kernel: int, stride: int, padding: int = 0) -> Step:
    """Max-pool, which keeps the index of each maximum in eight bytes, as torch does."""

    def step(image: Image, notes: Notes) -> Image:
        image = notes.keep(image)
        result = Image(
            image.channels, _side(image.height, kernel, stride, padding), _side(image.width, kernel, stride, padding)
        )
        notes.kept.append(SavedActivation("indices", result.elements, 8))
        notes.memory("max pool", image.elements, result.elements, result.elements, image.elements)
        return result

    return step


def average_pool(kernel: int, stride: int, padding: int = 0) -> Step:
    """Average pool over windows."""

    def step(image: Image, notes: Notes) -> Image:
        image = notes.keep(image)
        result = Image(
            image.channels, _side(image.height, kernel, stride, padding), _side(image.width, kernel, stride, padding)
        )
        notes.memory("average pool", image.elements, result.elements, result.elements, image.elements)
        return result

    return step


def average_to(side: int) -> Step:
    """Average pool to `side` × `side`, whatever the image; to a single number it is a mean, which needs nothing backward."""

    def step(image: Image, notes: Notes) -> Image:
        image = notes.release(image) if side == 1 else notes.keep(image)
        result = Image(image.channels, side, side)
        notes.memory("average pool", image.elements, result.elements, result.elements, image.elements)
        return result

    return step


def dropout(image: Image, notes: Notes) -> Image:
    """Dropout, which keeps a mask of one byte for each element."""
    image = notes.release(image)
    notes.kept.append(SavedActivation("mask", image.elements, 1))
    notes.memory("dropout", image.elements, image.elements, image.elements, image.elements)
    return image._replace(kept=False, needed=False)


def linear(outputs: int) -> Step:
    """A linear layer with a bias over all that the image holds."""

    def step(image: Image, notes: Notes) -> Image:
        image = notes.keep(image)
        notes.operators.append(Matmul("linear", 1, outputs, image.elements, input_gradient=not image.data))
        notes.tensors += [image.elements * outputs, outputs]
        return Image(outputs, 1, 1)

    return step


def loss(image: Image, notes: Notes) -> Image:
    """Cross-entropy, which keeps the probabilities."""
    notes.kept.append(SavedActivation("probabilities", image.elements))
    notes.memory("loss", image.elements, image.elements, 2 * image.elements, image.elements)
    return image


def unit(outputs: int, kernel: int | tuple[int, int], stride: int = 1, padding: int | None = None) -> Step:
    """Convolution, batch norm and ReLU."""
    return chain(convolution(outputs, kernel, stride, padding), batch_norm, relu)


def _side(side: int, kernel: int, stride: int, padding: int) -> int:
    """Height or width of what a convolution or a pool gives. Raises FieldError if nothing is left."""
    result = (side + 2 * padding - kernel) // stride + 1
    if result < 1:
        raise FieldError(
            ("model", "image"), f"nothing is left of so small an image before a window of {kernel}; give more pixels"
        )
    return result
