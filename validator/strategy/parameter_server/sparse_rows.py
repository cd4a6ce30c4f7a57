"""Messages with the rows of an embedding that samples touch, in place of the whole table.

The table is the first tensor of the first bucket, on the first server. A push has the gradients of the touched rows and of the
server's other parameters in the bucket, the numbers of these rows, and those of the rows that the worker's next samples touch.
The reply has the parameters of the latter. All messages have the same number of rows, the last of which may be repeated with a
gradient of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.data import Batch, touched_rows


class RowPush(NamedTuple):
    """The content of a push: gradients of rows, shape (rows, width), and of other parameters; numbers of rows, touched and
    wanted."""

    values: Tensor
    others: Tensor
    touched: Tensor
    wanted: Tensor


@dataclass(frozen=True)
class RowMessages:
    """The format of messages. table_rows, width: of the table. rows: number of rows in a message."""

    table_rows: int
    width: int
    rows: int

    @classmethod
    def of(cls, scenario: Scenario) -> RowMessages | None:
        """The format of a scenario with sparse gradients; None for others."""
        rows, model = touched_rows(scenario), scenario.model
        return cls(model.vocabulary, model.hidden, rows) if rows is not None and isinstance(model, Transformer) else None

    @property
    def table_elements(self) -> int:
        """Number of elements of the whole table."""
        return self.table_rows * self.width

    @property
    def row_elements(self) -> int:
        """Number of elements of a message's rows."""
        return self.rows * self.width

    def number_elements(self, dtype: torch.dtype) -> int:
        """Elements of a data type that the numbers of touched and wanted rows take in a push."""
        return 2 * self.rows * torch.int64.itemsize // dtype.itemsize

    def push_elements(self, part: int, dtype: torch.dtype) -> int:
        """Number of elements of a push for a part of `part` parameters, the table included."""
        return self.reply_elements(part) + self.number_elements(dtype)

    def reply_elements(self, part: int) -> int:
        """Number of elements of a reply for a part of `part` parameters, the table included."""
        return part - self.table_elements + self.row_elements

    def push(self, gradient: Tensor, touched: Tensor, wanted: Tensor) -> Tensor:
        """The message of a push. gradient: of the whole part, flat. touched, wanted: see `padded`."""
        values = self.table(gradient)[touched]
        # repetitions at the end
        values[1:][touched[1:] == touched[:-1]] = 0
        numbers = torch.cat([touched, wanted]).view(gradient.dtype)
        return torch.cat([values.flatten(), gradient[self.table_elements :], numbers])

    def content(self, push: Tensor) -> RowPush:
        """The content of a push: gradients are views of the message."""
        values, others, numbers = push.tensor_split((self.row_elements, len(push) - self.number_elements(push.dtype)))
        # a copy begins at a multiple of eight bytes
        touched, wanted = numbers.clone().view(torch.int64).tensor_split(2)
        return RowPush(values.view(self.rows, self.width), others, touched, wanted)

    def reply(self, value: Tensor, wanted: Tensor) -> Tensor:
        """The message of a reply. value: parameters of the whole part, flat."""
        return torch.cat([self.table(value)[wanted].flatten(), value[self.table_elements :]])

    def adopt(self, reply: Tensor, wanted: Tensor, value: Tensor) -> None:
        """Copies a reply to the parameters of the whole part."""
        self.table(value)[wanted] = reply[: self.row_elements].view(self.rows, self.width)
        value[self.table_elements :] = reply[self.row_elements :]

    def table(self, part: Tensor) -> Tensor:
        """The view of the table in a flat part, shape (table rows, width)."""
        return part[: self.table_elements].view(self.table_rows, self.width)

    def numbers(self, scenario: Scenario, batches: Sequence[Batch]) -> list[Tensor]:
        """The numbers of the rows that each batch touches, as by `padded`. Emulated layers, whose samples have no tokens, touch
        the first ones.

        Raises InputError if samples touch more rows than the scenario says.
        """
        if scenario.compute == "paced":
            return [torch.arange(self.rows, device=batches[0].inputs.device)] * len(batches)
        return [self.padded(torch.unique(batch.inputs)) for batch in batches]

    def padded(self, rows: Tensor) -> Tensor:
        """Sorted numbers of rows, the last one repeated up to the number of rows in a message. Raises InputError for more."""
        missing = self.rows - len(rows)
        if missing < 0:
            share = f"{len(rows) / self.table_rows:.4f}"
            message = f"a worker's samples of a step touch {len(rows)} of {self.table_rows} rows, the scenario says {self.rows}"
            raise InputError(f"strategy.sparse.rows: {message}; give at least {share}")
        return torch.cat([rows, rows[-1:].expand(missing)])


class RowsReply:
    """A reply on its way; `wait` copies its rows into the worker's parameters."""

    def __init__(self, format_: RowMessages, work: dist.Work, buffer: Tensor, wanted: Tensor, value: Tensor) -> None:
        self._format, self._work, self._buffer, self._wanted, self._value = format_, work, buffer, wanted, value

    def wait(self) -> None:
        """Waits for the reply, and takes it over."""
        self._work.wait()
        self._format.adopt(self._buffer, self._wanted, self._value)
