"""Names of a script's measured communication: the parallel dimension and the collective, as captures name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaleproof.simulator.captured.groups import COLLECTIVES, GroupRoles
from scaleproof.simulator.captured.record import Capture
from scaleproof.simulator.common.communication import UNKNOWN, Collective, Dimension, number_of
from scaleproof.validator.record.recorder import RAW_SPAN

_SEND = "send"


class Labels:
    """Names communication by the groups of a capture."""

    def __init__(self, capture: Capture) -> None:
        self._classes = [(one, GroupRoles.from_ranks(one)) for one in capture.classes]

    def of(self, recorded: bytes, kinds: Sequence[Sequence[Any]]) -> bytes:
        """The recorded rows of RAW_SPAN, whose column `communication` is an index of kinds, with their numbers instead.

        kinds: operation, ranks of the group and its description, see `CollectiveKind`.
        """
        numbers = np.array([*(self._number(*kind) for kind in kinds), UNKNOWN], dtype=np.int16)
        rows = np.frombuffer(recorded, dtype=RAW_SPAN).copy()
        rows["communication"] = numbers[rows["communication"]]
        return rows.tobytes()

    def _number(self, op: str, ranks: Sequence[int], description: str) -> int:
        if op == _SEND:
            return number_of(Dimension.PIPELINE, Collective.SEND)
        known = COLLECTIVES[op]
        for one, roles in self._classes:
            for index, group in enumerate(one.groups):
                if list(group.ranks) == list(ranks) and group.description == description:
                    return number_of(roles.dimension(index, known), Collective.of(known))
        # a group of ranks that are equivalent to captured ones
        similar = (
            (index, roles)
            for one, roles in self._classes
            for index, group in enumerate(one.groups)
            if (len(group.ranks), group.description) == (len(ranks), description)
        )
        index, roles = next(similar, (-1, self._classes[0][1]))
        return number_of(roles.dimension(index, known), Collective.of(known))
