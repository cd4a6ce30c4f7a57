"""Function that ranks run in a test: one of them is signalled to stop."""

from __future__ import annotations

import os
import signal

from scaleproof.proof.elastic.hand_over import HandOver
from scaleproof.validator.launch.rank import here


def signal_one(signalled: int) -> list[bool]:
    """Whether ranks agree to hand over before and after one of them is signalled."""
    hand_over = HandOver()
    before = hand_over.agreed()
    if here().rank == signalled:
        os.kill(os.getpid(), signal.SIGTERM)
    return [before, hand_over.agreed()]
