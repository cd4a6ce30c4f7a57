"""Seconds of flash attention, by blocks of queries."""

from __future__ import annotations

import math
from typing import Final

from scaleproof.simulator.cluster.device.kernels import Speed
from scaleproof.simulator.model.operators import Attention

# Queries in a block of a flash kernel, and the multiple to which it pads the width of a head. Its backward pass recomputes the
# scores: five products where the forward pass has two (arXiv 2307.08691, sections 3 and 4.1).
_FLASH_ROWS: Final = 128
_FLASH_WIDTH: Final = 32
_FLASH_BACKWARD: Final = 2.5
# Widths of heads between which `Kernels` interpolates the rates.
_FLASH_NARROW: Final = 64
_FLASH_WIDE: Final = 128


def flash_s(operator: Attention, samples: float, speed: Speed, *, backward: bool = False) -> float:
    """Seconds of a flash attention kernel, which computes blocks of queries of one head and skips masked scores."""
    kernels = speed.kernels
    share = kernels.flash_shares[backward]
    work = _FLASH_BACKWARD if backward else 1.0
    blocks = math.ceil(operator.queries / _FLASH_ROWS) * operator.heads * samples
    waves = max(1.0, blocks / kernels.processors)
    widths = sum(math.ceil(width / _FLASH_WIDTH) * _FLASH_WIDTH for width in (operator.width, operator.value_width))
    keys = operator.keys * operator.seen + kernels.flash_ramp_keys
    block_flops = 2.0 * min(_FLASH_ROWS, operator.queries) * keys * widths * work
    # linear interpolation for heads between 64 and 128 wide
    narrow = min(1.0, max(0.0, (_FLASH_WIDE - max(operator.width, operator.value_width)) / (_FLASH_WIDE - _FLASH_NARROW)))
    share *= 1 - narrow * (1 - kernels.flash_narrow_share)
    busy_s = waves * block_flops * kernels.processors / (speed.peak_flops * share)
    queries = operator.heads * operator.queries * (operator.width + operator.value_width)
    read = operator.key_heads * operator.keys * (operator.width + operator.value_width)
    moved_bytes = (queries + read) * samples * work * speed.element_bytes
    return kernels.launch_s + max(busy_s, moved_bytes / speed.reached_Bps)
