"""A server's part of a bucket: its parameters, and the sum of the gradients pushed since the last update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.parameter_server.sparse_rows import RowMessages


class BucketShard:
    """A server's part of a bucket, flat in `value`. version: number of updates so far."""

    def __init__(self, context: Context, bucket: int, initial: Tensor) -> None:
        self.bucket = bucket
        self.version = 0
        self.value = nn.Parameter(initial.clone())
        self.optimizer = self._optimizer(context)
        self._sum: Tensor | None = None
        self._workers = 0

    def _optimizer(self, context: Context) -> torch.optim.Optimizer:
        return context.optimizer([self.value])

    @property
    def push_bytes(self) -> float:
        """Bytes of a push."""
        return float(self.value.nbytes)

    @property
    def reply_bytes(self) -> float:
        """Bytes of a reply."""
        return float(self.value.nbytes)

    def new_push(self) -> Tensor:
        """An empty buffer for a push."""
        return torch.empty_like(self.value.detach())

    def receive(self, pusher: int, push: Tensor) -> None:
        """Notes what a push requests in reply: nothing but the parameters."""

    def add(self, gradient: Tensor, workers: int) -> None:
        """Adds `gradient`, the sum over a number of workers. The first one since an update becomes the buffer of the sum."""
        self._sum = gradient if self._sum is None else self._sum.add_(gradient)
        self._workers += workers

    def update(self) -> None:
        """Applies the mean of the workers' gradients."""
        assert self._sum is not None, "an update follows a push"
        self.value.grad = self._sum.div_(self._workers)
        self.optimizer.step()
        self.version += 1
        self.value.grad, self._sum, self._workers = None, None, 0

    def reply(self, pusher: int) -> Tensor:
        """The message of a reply to the pusher's last push."""
        return self.value.detach()


class TableShard(BucketShard):
    """A part that begins with an embedding of which only touched rows are pushed, updated and pulled."""

    def __init__(self, context: Context, bucket: int, initial: Tensor, messages: RowMessages, updates_all: bool) -> None:
        """updates_all: whether an update has the pushes of all workers."""
        workers = context.scenario.strategy.workers if updates_all else 1
        self._messages, self._rows_updated = messages, min(messages.table_rows, workers * messages.rows)
        super().__init__(context, bucket, initial)
        self._wanted: dict[int, Tensor] = {}
        self._sums: Sequence[Tensor] = ()

    def _optimizer(self, context: Context) -> torch.optim.Optimizer:
        flat = self.value.detach()
        self._table = nn.Parameter(self._messages.table(flat))
        self._others = nn.Parameter(flat[self._messages.table_elements :])
        updated = self._rows_updated * self._messages.width + self._others.numel()
        return context.optimizer([self._table, self._others], updated)

    @property
    def push_bytes(self) -> float:
        """Bytes of a push."""
        elements = self._messages.push_elements(self.value.numel(), self.value.dtype)
        return float(elements * self.value.element_size())

    @property
    def reply_bytes(self) -> float:
        """Bytes of a reply."""
        return float(self._messages.reply_elements(self.value.numel()) * self.value.element_size())

    def new_push(self) -> Tensor:
        """An empty buffer for a push."""
        return self.value.detach().new_empty(self._messages.push_elements(self.value.numel(), self.value.dtype))

    def receive(self, pusher: int, push: Tensor) -> None:
        """Notes the rows that the pusher needs next."""
        self._wanted[pusher] = self._messages.content(push).wanted

    def add(self, gradient: Tensor, workers: int) -> None:
        """Adds the gradients of a push."""
        push = self._messages.content(gradient)
        rows = torch.sparse_coo_tensor(push.touched[None], push.values.clone(), self._table.shape, check_invariants=False)
        parts = (rows, push.others.clone())
        self._sums = [a + b for a, b in zip(self._sums, parts, strict=True)] if self._sums else parts
        self._workers += workers

    def update(self) -> None:
        """Applies the mean of the workers' gradients to the rows that they touch, and to the other parameters."""
        rows, others = self._sums
        self._table.grad, self._others.grad = rows.coalesce() / self._workers, others / self._workers
        self.optimizer.step()
        self.version += 1
        self._table.grad = self._others.grad = None
        self._sums, self._workers = (), 0

    def reply(self, pusher: int) -> Tensor:
        """The message of a reply to the pusher's last push."""
        return self._messages.reply(self.value.detach(), self._wanted[pusher])
