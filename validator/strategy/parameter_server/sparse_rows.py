"""Messages with the rows of embedding tables that samples touch, in place of whole tables.

Tables are the first tensors of a server's part of a bucket. Workers have the rows of each that the samples of a step touch, and
the server's other parameters in the bucket, next to one another. A push has the gradients of these, the numbers of the rows,
and those of the rows that the worker's next samples touch. The reply has the parameters of the latter. All messages have the
same number of rows of a table, the last of which may be repeated with a gradient of zero. Before the first step workers
request rows without a push.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.strategy.parameter_server.shards import Layout
from scaleproof.validator.train.data import Batch, SparseTable, looked_up, sparse_tables

# By number of a table, numbers of its rows.
Rows = Mapping[int, Tensor]


class RowPush(NamedTuple):
    """The content of a push: by table gradients of rows, shape (rows, width), and gradients of other parameters; by table
    numbers of rows, touched and wanted."""

    values: Sequence[Tensor]
    others: Tensor
    touched: Sequence[Tensor]
    wanted: Sequence[Tensor]


@dataclass(frozen=True)
class RowMessages:
    """The format of messages with a server's part of a bucket. tables: those that it begins with."""

    tables: Sequence[SparseTable]

    @classmethod
    def of(cls, scenario: Scenario, layout: Layout, bucket: int, server: int) -> RowMessages | None:
        """The format for a server's part of a bucket; None if it has no tables of which rows are sent."""
        tables = {table.number: table for table in sparse_tables(scenario)}
        own = [tables[tensor] for tensor, _, _ in layout.ranges(bucket, server) if tensor in tables]
        return cls(own) if own else None

    @property
    def table_elements(self) -> int:
        """Number of elements of the whole tables."""
        return sum(table.rows * table.width for table in self.tables)

    @property
    def row_elements(self) -> int:
        """Number of elements of a message's rows."""
        return sum(table.touched * table.width for table in self.tables)

    def number_elements(self, dtype: torch.dtype) -> int:
        """Elements of a data type that the numbers of touched and wanted rows take in a push."""
        return 2 * sum(self._counts) * torch.int64.itemsize // dtype.itemsize

    def push_elements(self, part: int, dtype: torch.dtype) -> int:
        """Number of elements of a push for a part of `part` parameters, whole tables included."""
        return self.reply_elements(part) + self.number_elements(dtype)

    def reply_elements(self, part: int) -> int:
        """Number of elements of a reply for a part of `part` parameters, whole tables included."""
        return part - self.table_elements + self.row_elements

    def push(self, gradient: Tensor, touched: Rows, wanted: Rows) -> Tensor:
        """The message of a push. gradient: of a worker's part, flat. touched, wanted: see `touched_rows`."""
        return torch.cat([gradient, self.request(touched).view(gradient.dtype), self.request(wanted).view(gradient.dtype)])

    def request(self, wanted: Rows) -> Tensor:
        """The message of a request without a push: the numbers of the rows of the reply."""
        return torch.cat([wanted[table.number] for table in self.tables])

    def new_request(self, device: torch.device) -> Tensor:
        """An empty buffer for a request."""
        return torch.empty(sum(self._counts), dtype=torch.int64, device=device)

    def requested(self, request: Tensor) -> Sequence[Tensor]:
        """By table, the numbers of the rows of the reply to a request."""
        return torch.split(request, self._counts)

    def content(self, push: Tensor) -> RowPush:
        """The content of a push: gradients are views of the message."""
        values, others, numbers = push.tensor_split((self.row_elements, len(push) - self.number_elements(push.dtype)))
        # a copy begins at a multiple of eight bytes
        touched, wanted = numbers.clone().view(torch.int64).tensor_split(2)
        return RowPush(self._rows(values), others, self.requested(touched), self.requested(wanted))

    def reply(self, value: Tensor, wanted: Sequence[Tensor]) -> Tensor:
        """The message of a reply. value: parameters of the whole part, flat."""
        rows = (table[own].flatten() for table, own in zip(self.views(value), wanted, strict=True))
        return torch.cat([*rows, value[self.table_elements :]])

    def views(self, part: Tensor) -> list[Tensor]:
        """The views of the tables in a flat part, shapes (rows, width)."""
        pieces = torch.split(part[: self.table_elements], [table.rows * table.width for table in self.tables])
        return [piece.view(-1, table.width) for table, piece in zip(self.tables, pieces, strict=True)]

    @property
    def _counts(self) -> list[int]:
        return [table.touched for table in self.tables]

    def _rows(self, values: Tensor) -> list[Tensor]:
        pieces = torch.split(values, [table.touched * table.width for table in self.tables])
        return [piece.view(-1, table.width) for table, piece in zip(self.tables, pieces, strict=True)]


def touched_rows(scenario: Scenario, batches: Sequence[Batch]) -> list[Rows]:
    """The numbers of the rows that each batch touches, sorted, the last one repeated up to the number of rows in a message.
    Emulated layers, whose samples look nothing up, touch the first ones.

    Raises InputError if samples touch more rows than the scenario says.
    """
    tables = sparse_tables(scenario)
    if not tables:
        return []
    if scenario.compute == "paced":
        device = batches[0].inputs.device
        return [{table.number: torch.arange(table.touched, device=device) for table in tables}] * len(batches)
    return [
        {table.number: _padded(table, torch.unique(rows)) for table, rows in zip(tables, own, strict=True)}
        for own in looked_up(scenario, batches)
    ]


def _padded(table: SparseTable, rows: Tensor) -> Tensor:
    missing = table.touched - len(rows)
    if missing < 0:
        share = f"{len(rows) / table.rows:.4f}"
        message = f"a worker's samples of a step touch {len(rows)} of {table.rows} rows, the scenario says {table.touched}"
        raise InputError(f"strategy.sparse.rows: {message}; give at least {share}")
    return torch.cat([rows, rows[-1:].expand(missing)])
