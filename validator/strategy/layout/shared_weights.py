"""Weights that layers on several ranks share: each of these ranks has a copy, and their gradients are summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.distributed as dist
from torch import nn

from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy.layout.collectives import Collectives
from scaleproof.validator.strategy.layout.flat import pack, views
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.train.models.wiring import Tie


class SharedWeights:
    """Sums the gradients of shared weights over the ranks that have a copy.

    layers: this rank's. place_of: the stage or device of each layer. columns: all groups of ranks that have a model, in the
    order of places. All ranks must create it with the same ties.
    """

    def __init__(
        self,
        recorder: Recorder,
        layers: Mapping[int, nn.Module],
        ties: Sequence[Tie],
        place_of: Sequence[int],
        columns: Sequence[Sequence[int]],
    ) -> None:
        self._recorder = recorder
        self._sums: list[tuple[Collectives, list[nn.Parameter]]] = []
        holders: dict[tuple[int, str], list[tuple[int, str]]] = {}
        for tie in ties:
            owner = (tie.owner, tie.owner_name)
            holders.setdefault(owner, [owner]).append((tie.layer, tie.name))
        by_places: dict[tuple[int, ...], list[list[tuple[int, str]]]] = {}
        for names in holders.values():
            by_places.setdefault(tuple(sorted({place_of[number] for number, _ in names})), []).append(names)
        for places, shared in sorted(by_places.items()):
            for column in columns if len(places) > 1 else ():
                ranks = [column[place] for place in places]
                group = dist.new_group(sorted(ranks))
                if dist.get_rank() in ranks:
                    own = [
                        next(layers[number].get_parameter(name) for number, name in names if number in layers)
                        for names in shared
                    ]
                    trained = [parameter for parameter in own if parameter.requires_grad]
                    if trained:
                        self._sums.append((Collectives(recorder, Team.numbered(group, sorted(ranks), "copies")), trained))

    def sum(self) -> None:
        """Replaces each copy's gradient by the sum over all copies."""
        for collectives, parameters in self._sums:
            with self._recorder.span(Phase.SYNCHRONISE):
                gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
                flat = pack(gradients)
                collectives.sum(flat)
                for gradient, total in zip(gradients, views(flat, gradients), strict=True):
                    gradient.copy_(total)
