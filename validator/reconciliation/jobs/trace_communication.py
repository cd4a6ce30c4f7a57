"""Communication of traced steps by parallel dimension and collective: calls, bytes, and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scaleproof.validator.reconciliation.jobs.dimensions import Dimensions
from scaleproof.validator.reconciliation.jobs.trace_spans import ExposedPiece, TracedRank, Transfer, exposed, sent_bytes


@dataclass(frozen=True)
class TracedCommunication:
    """Communication of one dimension by one collective, of the mean rank in a step.

    dimension: 'TP', 'DP', …, or 'unknown'. collective: 'all_reduce', …, or 'unknown'. ranks: size of its groups. calls: their
    number. message_bytes: of all calls, as nccl-tests count them. transfer_s: seconds of all calls without waiting. waiting_s:
    for other ranks. exposed_s: seconds in which the rank computes nothing, with waiting.
    """

    dimension: str
    collective: str
    ranks: int
    calls: float
    message_bytes: float
    sent_bytes: float
    transfer_s: float
    waiting_s: float
    exposed_s: float

    @property
    def bus_Bps(self) -> float:
        """Bus bandwidth of the transfers in bytes per second, as nccl-tests define it; 0 if unknown."""
        return self.sent_bytes / self.transfer_s if self.transfer_s > 0 else 0.0

    def plain(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return vars(self) | {"bus_Bps": self.bus_Bps}


def communication(
    ranks: Sequence[TracedRank],
    moving: Sequence[Sequence[Sequence[Transfer]]],
    dimensions: Dimensions,
) -> tuple[TracedCommunication, ...]:
    """Communication by dimension, collective and size of group, the longest first. moving: transfers of each rank and step."""
    found: dict[tuple[str, str, int], list[Transfer]] = {}
    pieces: dict[tuple[str, str, int], list[ExposedPiece]] = {}
    for rank, steps in zip(ranks, moving, strict=True):
        for works, own in zip(rank.steps.works, steps, strict=True):
            for transfer in own:
                found.setdefault(_kind(transfer, dimensions), []).append(transfer)
            for piece in exposed(works, own):
                pieces.setdefault(_kind(piece.transfer, dimensions), []).append(piece)
    count = sum(len(steps) for steps in moving)
    parts = [_part(kind, own, pieces.get(kind, []), count) for kind, own in found.items()]
    return tuple(sorted(parts, key=lambda part: -part.transfer_s - part.waiting_s))


def _kind(transfer: Transfer, dimensions: Dimensions) -> tuple[str, str, int]:
    exchange = transfer.key[1]
    return dimensions.of(exchange), exchange.op or "unknown", exchange.size


def _part(
    kind: tuple[str, str, int], own: Sequence[Transfer], pieces: Sequence[ExposedPiece], count: int
) -> TracedCommunication:
    """Means over `count` steps of ranks."""
    exchanges = [transfer.key[1] for transfer in own]
    waiting_s = sum(transfer.waiting_s for transfer in own)
    return TracedCommunication(
        *kind,
        calls=len(own) / count,
        message_bytes=sum(exchange.size_bytes for exchange in exchanges) / count,
        sent_bytes=sum(map(sent_bytes, exchanges)) / count,
        transfer_s=(sum(transfer.work.end_s - transfer.work.start_s for transfer in own) - waiting_s) / count,
        waiting_s=waiting_s / count,
        exposed_s=sum(piece.end_s - piece.start_s for piece in pieces) / count,
    )
