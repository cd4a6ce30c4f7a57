"""Passes over the scores of attention without flash: what they move, and the kernels that are launched.

Without flash, software scales and masks scores, normalises them and drops some, with one kernel each unless it fuses them. A
framework lists its kernels (`attention_passes`); without a list, or where Megatron's kernel fits, one fused softmax is all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Precision
from scaleproof.simulator.cluster.device.kernels.passes import SOFTMAX_ACCESSES
from scaleproof.simulator.frameworks.framework import Framework, ScorePass
from scaleproof.simulator.model.operators import Attention

# Megatron's kernel takes heads and sequences in fours and up to 2,048 keys (megatron/fused_kernels and model/fused_softmax.py).
_FUSED_SOFTMAX_OF: Final = 4
_FUSED_SOFTMAX_KEYS: Final = 2048
# Bytes of an element where training in 16 bits computes in 32.
WIDE_BYTES: Final = 4


class ScorePasses:
    """Kernels between the products of one attention operator over some samples, for one way to train."""

    def __init__(self, framework: Framework, operator: Attention, samples: float, precision: Precision, autocast: bool) -> None:
        self._operator, self._samples, self._autocast = operator, samples, autocast
        self._size = ELEMENT_BYTES[precision]
        is_fused = operator.flash or (
            framework.fused_softmax
            and not operator.heads * samples % _FUSED_SOFTMAX_OF
            and operator.keys <= _FUSED_SOFTMAX_KEYS
        )
        other = "bidirectional" if operator.seen < 1 else "causal"
        passes = (one for one in framework.attention_passes.values() if one.when != other and one.forward + one.backward)
        self._passes: Sequence[ScorePass] = () if is_fused else tuple(passes)

    def extra_bytes(self, dropped: float) -> tuple[float, float]:
        """Bytes that both passes of training move in addition to a fused softmax. dropped: scores that dropout reads, which
        have the precision of the softmax before it."""
        if not self._passes:
            return 0.0, 0.0
        operator = self._operator
        inputs = operator.queries * operator.heads * operator.width
        inputs += operator.keys * operator.key_heads * (operator.width + operator.value_width)
        elements = {"scores": operator.scores * self._samples, "inputs": inputs * self._samples}
        both_bytes = self._casts * (self._size + WIDE_BYTES) * elements["scores"]
        if any(map(self._is_wide, self._passes)):
            both_bytes += 2 * (WIDE_BYTES - self._size) * dropped
        forward_bytes, backward_bytes = (both_bytes - self._size * count * elements["scores"] for count in SOFTMAX_ACCESSES)
        for one in self._passes:
            element_bytes = (WIDE_BYTES if self._is_wide(one) else self._size) * elements[one.of]
            forward_bytes += one.forward * element_bytes
            backward_bytes += one.backward * element_bytes
        return forward_bytes, backward_bytes

    @property
    def extra_kernels(self) -> tuple[int, int]:
        """Kernels that both passes of training launch in addition to a fused softmax."""
        if not self._passes:
            return 0, 0
        forward, backward = (sum(bool(count) for count in counts) for counts in zip(*self._counts, strict=True))
        return forward + self._casts - 1, backward + self._casts - 1

    @property
    def _counts(self) -> list[tuple[float, float]]:
        return [(one.forward, one.backward) for one in self._passes]

    def _is_wide(self, one: ScorePass) -> bool:
        """Whether a pass reads and writes 32 bits in training with 16."""
        return self._size < WIDE_BYTES and (one.wide == "always" or (one.wide == "autocast" and self._autocast))

    @property
    def _casts(self) -> int:
        """Number of casts of scores between kernels with 16 and with 32 bits, in each pass of training."""
        wide = [False, *(self._is_wide(one) for one in self._passes if one.of == "scores" and one.forward), False]
        return sum(left != right for left, right in pairwise(wide))
