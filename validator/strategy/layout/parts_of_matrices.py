"""Muon where each rank has a part of every matrix: ranks gather the momentum, and make orthogonal what they have parts of.

All ranks of a team gather the momentum of all matrices in 16 bits, and make those orthogonal of which they update a part
(arXiv 2502.16982, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.flat import pack
from scaleproof.validator.train.muon import NARROW, orthogonal


class Piece(NamedTuple):
    """The elements of a flattened parameter that a rank has. number: of the parameter, equal on all ranks."""

    number: int
    begin: int
    end: int


class PartsOfMatrices:
    """Makes matrices orthogonal of which each rank of a team has pieces.

    shapes: of all matrices, by number. pieces: of each rank of the team, in the order of its matrices, at most one of each.
    """

    def __init__(self, collectives: Collectives, shapes: Sequence[torch.Size], pieces: Sequence[Sequence[Piece]]) -> None:
        self._collectives, self._shapes, self._pieces = collectives, shapes, pieces
        self._longest = max(sum(piece.end - piece.begin for piece in own) for own in pieces)

    def __call__(self, momentum: Iterable[Tensor]) -> Iterable[Tensor]:
        """This rank's pieces of the orthogonal matrices. momentum: its pieces of the momentum."""
        team, pieces = self._collectives.team, list(momentum)
        if not self._longest:
            return []
        own = pack([*pieces, torch.zeros(0, dtype=NARROW)])
        own = torch.nn.functional.pad(own, (0, self._longest - len(own)))
        gathered = own.new_empty(team.size * self._longest)
        with self._collectives.recorder.waiting(self._collectives.recorder.now()), self._collectives.noted(gathered):
            self._collectives.begin_gather(gathered, own).wait()
        rows = gathered.view(team.size, -1)
        wholes = {piece.number: own.new_empty(self._shapes[piece.number].numel()) for piece in self._pieces[team.place]}
        for row, everyones in zip(rows, self._pieces, strict=True):
            begin = 0
            for piece in everyones:
                length = piece.end - piece.begin
                if piece.number in wholes:
                    wholes[piece.number][piece.begin : piece.end] = row[begin : begin + length]
                begin += length
        return [
            orthogonal(wholes[piece.number].view(self._shapes[piece.number])).flatten()[piece.begin : piece.end].view_as(like)
            for piece, like in zip(self._pieces[team.place], pieces, strict=True)
        ]


def rows_of(shape: torch.Size, ranks: int, number: int) -> list[Piece]:
    """The piece of each rank of a matrix whose rows they share in equal chunks, as torch shards tensors."""
    columns = shape[1:].numel()
    each = -(-shape[0] // ranks)
    bounds = [columns * min(shape[0], place * each) for place in range(ranks + 1)]
    return [Piece(number, begin, end) for begin, end in pairwise(bounds)]
