"""Inception v3 (arXiv 1512.00567), as torchvision builds it."""

from __future__ import annotations

from typing import Literal

from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.convolutional.image_steps import (
    Block,
    Convnet,
    Step,
    adaptive_average_pool,
    auxiliary_branch,
    average_pool,
    chain,
    concatenation,
    conv_norm_relu,
    linear,
    loss,
    max_pool,
)

_AVERAGED = average_pool(3, 1, padding=1)


class InceptionV3(Convnet):
    """Inception v3 on 299×299 images. auxiliary: whether it has the second classifier, which helps training."""

    kind: Literal["inception_v3"] = "inception_v3"
    image: Width = 299
    auxiliary: bool = True

    def blocks(self) -> list[Block]:
        """Stem, blocks of parallel branches, head; the auxiliary classifier is part of the block with the same input."""
        blocks = [("5b", "a(32)", _a(32)), ("5c", "a(64)", _a(64)), ("5d", "a(64)", _a(64)), ("6a", "b", _b())]
        blocks += [(f"6{letter}", f"c({width})", _c(width)) for letter, width in zip("bcde", (128, 160, 160, 192), strict=True)]
        reduction, label = (
            (chain(auxiliary_branch(self._auxiliary()), _d()), f"d({self.classes})") if self.auxiliary else (_d(), "d")
        )
        blocks += [("7a", label, reduction), ("7b", "e", _e()), ("7c", "e", _e())]
        head = chain(adaptive_average_pool(1), self.dropout_step, linear(self.classes), loss)
        return [
            Block("stem", "inception_v3.stem", _stem(), pinned_to_end=True),
            *(Block(f"mixed{name}", f"inception_v3.{label}", step) for name, label, step in blocks),
            Block("head", f"inception_v3.head({self.classes}{self.option})", head, pinned_to_end=True),
        ]

    def _auxiliary(self) -> Step:
        convolutions = chain(average_pool(5, 3), conv_norm_relu(128, 1), conv_norm_relu(768, 5, padding=0))
        return chain(convolutions, adaptive_average_pool(1), linear(self.classes), loss)


def _stem() -> Step:
    first = chain(
        conv_norm_relu(32, 3, stride=2, padding=0), conv_norm_relu(32, 3, padding=0), conv_norm_relu(64, 3), max_pool(3, 2)
    )
    return chain(first, conv_norm_relu(80, 1), conv_norm_relu(192, 3, padding=0), max_pool(3, 2))


def _a(pooled: int) -> Step:
    """The block of figure 5: 1×1, 5×5, two 3×3, pool."""
    return concatenation(
        conv_norm_relu(64, 1),
        chain(conv_norm_relu(48, 1), conv_norm_relu(64, 5)),
        chain(conv_norm_relu(64, 1), conv_norm_relu(96, 3), conv_norm_relu(96, 3)),
        chain(_AVERAGED, conv_norm_relu(pooled, 1)),
    )


def _b() -> Step:
    """The block of figure 10, which halves height and width."""
    return concatenation(
        conv_norm_relu(384, 3, stride=2, padding=0),
        chain(conv_norm_relu(64, 1), conv_norm_relu(96, 3), conv_norm_relu(96, 3, stride=2, padding=0)),
        max_pool(3, 2),
    )


def _c(width: int) -> Step:
    """The block of figure 6: 7×7 convolutions as 1×7 after 7×1."""
    across, down = (1, 7), (7, 1)
    return concatenation(
        conv_norm_relu(192, 1),
        chain(conv_norm_relu(width, 1), conv_norm_relu(width, across), conv_norm_relu(192, down)),
        chain(
            conv_norm_relu(width, 1),
            conv_norm_relu(width, down),
            conv_norm_relu(width, across),
            conv_norm_relu(width, down),
            conv_norm_relu(192, across),
        ),
        chain(_AVERAGED, conv_norm_relu(192, 1)),
    )


def _d() -> Step:
    """The block that halves height and width once more."""
    return concatenation(
        chain(conv_norm_relu(192, 1), conv_norm_relu(320, 3, stride=2, padding=0)),
        chain(
            conv_norm_relu(192, 1),
            conv_norm_relu(192, (1, 7)),
            conv_norm_relu(192, (7, 1)),
            conv_norm_relu(192, 3, stride=2, padding=0),
        ),
        max_pool(3, 2),
    )


def _e() -> Step:
    """The block of figure 7: 3×3 convolutions as 1×3 in parallel with 3×1."""
    wide = concatenation(conv_norm_relu(384, (1, 3)), conv_norm_relu(384, (3, 1)))
    return concatenation(
        conv_norm_relu(320, 1),
        chain(conv_norm_relu(384, 1), wide),
        chain(conv_norm_relu(448, 1), conv_norm_relu(384, 3), wide),
        chain(_AVERAGED, conv_norm_relu(192, 1)),
    )
