"""Inception v3 (arXiv 1512.00567), as torchvision builds it."""

from __future__ import annotations

from typing import Literal

from scaleproof.simulator.common.spec import Width
from scaleproof.simulator.model.convolutional.chain import Convnet
from scaleproof.simulator.model.convolutional.image_steps import (
    Block,
    Step,
    aside,
    average_pool,
    average_to,
    chain,
    concatenation,
    dropout,
    linear,
    loss,
    max_pool,
    unit,
)

_AVERAGED = average_pool(3, 1, padding=1)


class InceptionV3(Convnet):
    """Inception v3 on 299×299 images. auxiliary: with the second classifier that helps training."""

    kind: Literal["inception_v3"] = "inception_v3"
    image: Width = 299
    auxiliary: bool = True

    def blocks(self) -> list[Block]:
        """Stem, blocks of parallel branches, head; the auxiliary classifier goes with the block that reads what it reads."""
        blocks = [("5b", "a(32)", _a(32)), ("5c", "a(64)", _a(64)), ("5d", "a(64)", _a(64)), ("6a", "b", _b())]
        blocks += [(f"6{letter}", f"c({width})", _c(width)) for letter, width in zip("bcde", (128, 160, 160, 192), strict=True)]
        reduction, label = (chain(aside(self._auxiliary()), _d()), f"d({self.classes})") if self.auxiliary else (_d(), "d")
        blocks += [("7a", label, reduction), ("7b", "e", _e()), ("7c", "e", _e())]
        head = chain(average_to(1), dropout, linear(self.classes), loss)
        return [
            Block("stem", "inception_v3.stem", _stem(), glued=True),
            *(Block(f"mixed{name}", f"inception_v3.{label}", step) for name, label, step in blocks),
            Block("head", f"inception_v3.head({self.classes})", head, glued=True),
        ]

    def _auxiliary(self) -> Step:
        convolutions = chain(average_pool(5, 3), unit(128, 1), unit(768, 5, padding=0))
        return chain(convolutions, average_to(1), linear(self.classes), loss)


def _stem() -> Step:
    first = chain(unit(32, 3, stride=2, padding=0), unit(32, 3, padding=0), unit(64, 3), max_pool(3, 2))
    return chain(first, unit(80, 1), unit(192, 3, padding=0), max_pool(3, 2))


def _a(pooled: int) -> Step:
    """Figure 5 of the paper: 1×1, 5×5, two 3×3, pool."""
    return concatenation(
        unit(64, 1),
        chain(unit(48, 1), unit(64, 5)),
        chain(unit(64, 1), unit(96, 3), unit(96, 3)),
        chain(_AVERAGED, unit(pooled, 1)),
    )


def _b() -> Step:
    """Figure 10: to half the height and width."""
    return concatenation(
        unit(384, 3, stride=2, padding=0),
        chain(unit(64, 1), unit(96, 3), unit(96, 3, stride=2, padding=0)),
        max_pool(3, 2),
    )


def _c(width: int) -> Step:
    """Figure 6: 7×7 convolutions as 1×7 after 7×1."""
    across, down = (1, 7), (7, 1)
    return concatenation(
        unit(192, 1),
        chain(unit(width, 1), unit(width, across), unit(192, down)),
        chain(unit(width, 1), unit(width, down), unit(width, across), unit(width, down), unit(192, across)),
        chain(_AVERAGED, unit(192, 1)),
    )


def _d() -> Step:
    """To half the height and width once more."""
    return concatenation(
        chain(unit(192, 1), unit(320, 3, stride=2, padding=0)),
        chain(unit(192, 1), unit(192, (1, 7)), unit(192, (7, 1)), unit(192, 3, stride=2, padding=0)),
        max_pool(3, 2),
    )


def _e() -> Step:
    """Figure 7: 3×3 convolutions as 1×3 beside 3×1."""
    wide = concatenation(unit(384, (1, 3)), unit(384, (3, 1)))
    return concatenation(
        unit(320, 1),
        chain(unit(384, 1), wide),
        chain(unit(448, 1), unit(384, 3), wide),
        chain(_AVERAGED, unit(192, 1)),
    )
