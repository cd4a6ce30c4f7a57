"""Embedding tables that are divided over workers by table, by column or by row, with all-to-alls of lookups.

Workers send the numbers of rows to their owners. Of whole tables and of columns, owners send sums of rows back; of ranges of
rows, partial sums are scattered, or rows sent back one by one to tokens with sums of their own (TorchRec, doi
10.1145/3523227.3547387). Owners add the gradients of all workers and update
their parts in the backward pass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from scaleproof.simulator.model.recommender.hstu import Hstu
from scaleproof.simulator.model.recommender.placement import TablePart, place
from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.layout.team import Team
from scaleproof.validator.strategy.model_parallel.pass_collectives import PassCollectives, both_ways, identity
from scaleproof.validator.train.models.recommender import Lookups
from scaleproof.validator.train.optimizers import update_in_backward


class DividedLookups(Lookups):
    """Lookups in tables of which this worker has parts, and in replicas of the others.

    The parts are no parameters of the module, as gradients of these are averaged. weight: of this worker's mean gradient in
    that over all samples.
    """

    def __init__(self, whole: Lookups, context: Context, weight: float) -> None:
        nn.ModuleDict.__init__(self, dict(whole.items()))
        plan = context.scenario.strategy.plan
        assert plan.tables is not None, "tables are divided"
        self.spec, self.lookups, self.weight, self.workers = whole.spec, whole.lookups, weight, plan.workers
        self.collectives = PassCollectives(context.recorder, Team.of([list(range(plan.workers))], "tables"))
        self.placed = place(self.spec.tables, plan.tables, plan.workers)
        self.shapes: dict[int, torch.Size] = {}
        self.own: list[tuple[TablePart, nn.Parameter]] = []
        for part in self.placed:
            table = whole[str(part.table)].get_parameter("weight")
            self.shapes[part.table] = table.shape
            if part.owner == self.collectives.team.place:
                self.own.append((part, _updated(table.detach()[_inside(part)].clone(), context)))
        for number in self.shapes:
            del self[str(number)]
        self.empty = torch.zeros(0, device=context.device, dtype=context.dtype)

    def pooled(self, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """By table, sums of its rows."""
        replicated = super().pooled({number: own for number, own in rows.items() if number not in self.shapes})
        divided = self.divided({number: own for number, own in rows.items() if number in self.shapes})
        # owners add the gradients of all workers
        return replicated | {n: both_ways(identity, lambda g: g * self.weight, one) for n, one in divided.items()}

    @abstractmethod
    def divided(self, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """By divided table, sums of its rows."""

    def gathered(self) -> dict[str, Tensor]:
        """By name, divided tables as a whole; to be called on all workers together."""
        whole = {number: self.empty.new_zeros(shape) for number, shape in self.shapes.items()}
        for part, values in self.own:
            whole[part.table][_inside(part)] = values.detach()
        for table in whole.values():
            dist.all_reduce(table, group=self.collectives.team.group)
        return {f"{number}.weight": table for number, table in whole.items()}


class OwnedLookups(DividedLookups):
    """Lookups in whole tables or in ranges of their columns, each with one owner."""

    def divided(self, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Sends numbers of rows to owners, which send sums of rows back, in order of their parts."""
        workers, me = self.workers, self.collectives.team.place
        samples = len(next(iter(rows.values())))
        owned = [[part for part in self.placed if part.owner == owner] for owner in range(workers)]
        parts = [part for own in owned for part in own]
        sent = [sum(rows[part.table].numel() for part in own) for own in owned]
        numbers = torch.cat([rows[part.table].flatten() for part in parts])
        arrived = self.collectives.exchanged(numbers, [sent[me]] * workers, sent, None, None).view(workers, sent[me])
        # an end for workers without parts
        of_each = torch.split(arrived, [*(rows[part.table].numel() for part, _ in self.own), 0], 1)
        sums = [
            functional.embedding_bag(one.reshape(samples * workers, -1), values, mode="sum", sparse=True).view(workers, -1)
            for one, (_, values) in zip(of_each, self.own, strict=False)
        ]
        # gradients arrive by an all-to-all of all workers
        outputs = torch.cat(sums, 1).flatten() if sums else self.empty.clone().requires_grad_()
        back = [samples * sum(len(part.columns) for part in own) for own in owned]
        pooled = self.collectives.exchanged(outputs, back, [back[me]] * workers, None, None)
        pieces = torch.split(pooled, [samples * len(part.columns) for part in parts])
        columns = {part: one.view(samples, -1) for part, one in zip(parts, pieces, strict=True)}
        return {n: torch.cat([columns[part] for part in self.placed if part.table == n], -1) for n in rows}


class _Requests(NamedTuple):
    """Requests for rows. keys: of this worker by owner, the number of a sum times `most`, and of a row of the owner; arrived:
    those of all workers, `from_each` of each; for_each: number of own ones for each owner."""

    most: int
    keys: Tensor
    for_each: Tensor
    arrived: Tensor
    from_each: Tensor


class RowLookups(DividedLookups):
    """Lookups in tables of which each worker has a range of rows."""

    def requests(self, rows: Mapping[int, Tensor]) -> _Requests:
        """Sends numbers of rows to owners, each in one integer with that of its sum."""
        samples, most = len(next(iter(rows.values()))), max(len(part.rows) for part in self.placed)
        owners, keys = [], []
        for place_of, (number, own) in enumerate(rows.items()):
            first = own.new_tensor([part.rows.start for part in self.placed if part.table == number])
            owner = torch.bucketize(own, first, right=True) - 1
            bag = place_of * samples + torch.arange(samples, device=own.device).unsqueeze(-1)
            keys.append((bag * most + own - first[owner]).flatten())
            owners.append(owner.flatten())
        owner = torch.cat(owners)
        for_each = torch.bincount(owner, minlength=self.workers)
        from_each = self.collectives.counts(for_each.unsqueeze(-1)).flatten()
        sorted_keys = torch.cat(keys)[owner.argsort(stable=True)]
        arrived = self.collectives.exchanged(sorted_keys, from_each.tolist(), for_each.tolist(), None, None)
        return _Requests(most, sorted_keys, for_each, arrived, from_each)

    def divided(self, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Scatters partial sums of the requested rows."""
        workers, samples = self.workers, len(next(iter(rows.values())))
        most, _, _, arrived, from_each = self.requests(rows)
        bag, row = arrived // most, arrived % most
        table, sample = bag // samples, bag % samples
        sample += samples * torch.arange(workers, device=row.device).repeat_interleave(from_each)
        sums = []
        for place_of, (_, values) in enumerate(self.own):
            chosen = table == place_of
            partial = values.new_zeros(workers * samples, values.shape[1])
            found = functional.embedding(row[chosen], values, sparse=True)
            sums.append(partial.index_add(0, sample[chosen], found))
        outputs = self.collectives.scattered(torch.cat(sums, 1), 0)
        return dict(zip(rows, torch.split(outputs, [values.shape[1] for _, values in self.own], 1), strict=True))


class TokenRowLookups(RowLookups):
    """Lookups of tokens in tables of which each worker has a range of rows. All tables are as wide."""

    def divided(self, rows: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Sends the requested rows back, and adds those of each token."""
        samples = len(next(iter(rows.values())))
        most, keys, for_each, arrived, from_each = self.requests(rows)
        table, row = arrived // most // samples, arrived % most
        found = self.own[0][1].new_zeros(len(arrived), self.own[0][1].shape[1])
        for place_of, (_, values) in enumerate(self.own):
            chosen = (table == place_of).nonzero().squeeze(-1)
            found = found.index_add(0, chosen, functional.embedding(row[chosen], values, sparse=True))
        back = self.collectives.exchanged(found, for_each.tolist(), from_each.tolist(), None, None)
        sums = back.new_zeros(samples * len(rows), back.shape[1]).index_add(0, keys // most, back)
        return dict(zip(rows, torch.split(sums, samples), strict=True))


def divided(whole: Lookups, context: Context, weight: float) -> Lookups:
    """This worker's part of the lookups as the scenario divides tables; to be called on all workers together."""
    how = context.scenario.strategy.plan.tables
    of_rows = TokenRowLookups if isinstance(context.scenario.model, Hstu) else RowLookups
    return (of_rows if how is not None and how.shard == "row" else OwnedLookups)(whole, context, weight)


def _inside(part: TablePart) -> tuple[slice, slice]:
    return slice(part.rows.start, part.rows.stop), slice(part.columns.start, part.columns.stop)


def _updated(values: Tensor, context: Context) -> nn.Parameter:
    """A part of a table whose touched rows are updated as soon as their gradients are computed."""
    parameter = nn.Parameter(values)
    update_in_backward(parameter, context.model.row_optimizer([parameter]))
    return parameter
