"""A server's part of a bucket: its parameters, and the sum of the gradients pushed since the last update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from scaleproof.validator.strategy.base import Context
from scaleproof.validator.strategy.parameter_server.sparse_rows import RowMessages
from scaleproof.validator.train.master_copies import MasterOptimizer, updated_by

# So few that their update costs nothing, and enough for the kernels of larger parts.
_LOADED_ELEMENTS: Final = 4096


def load_kernels(context: Context) -> None:
    """Sums and applies gradients of a few parameters once. CUDA loads a kernel when it is first launched and may wait for the
    device then, on which messages wait for workers, and these for the update."""
    if context.device.type == "cuda":
        part = BucketShard(context, 0, torch.zeros(_LOADED_ELEMENTS, dtype=context.dtype, device=context.device))
        for _ in range(2):
            part.add(torch.zeros_like(part.value), 1)
        part.update()
        part.reply(0).clone()
        torch.cuda.synchronize(context.device)


class BucketShard:
    """A server's part of a bucket, flat in `value`. version: number of updates so far, those without an effect included.

    In fp16 the optimizer updates copies in fp32; gradients are summed, and divided by the scale of losses, in fp32.
    """

    def __init__(self, context: Context, bucket: int, initial: Tensor) -> None:
        self.bucket = bucket
        self.version = 0
        self.value = nn.Parameter(initial)
        self.optimizer = self._optimizer(context)
        self._dtype = context.updated_dtype
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
        self._sum = gradient.to(self._dtype) if self._sum is None else self._sum.add_(gradient)
        self._workers += workers

    def update(self) -> bool:
        """Applies the mean of the workers' gradients; returns whether it did, since gradients that are not finite are left
        out."""
        assert self._sum is not None, "an update follows a push"
        applied = self._step([self._sum.div_(self._workers)])
        self._sum, self._workers = None, 0
        return applied

    def _step(self, means: Sequence[Tensor]) -> bool:
        """Applies gradients of the optimizer's parameters; returns whether it did."""
        skipped, updated = self._skipped(), self._updated()
        for one, mean in zip(updated, means, strict=True):
            one.grad = mean.to(one)
        self.optimizer.step()
        self.version += 1
        for one in updated:
            one.grad = None
        return self._skipped() == skipped

    def _skipped(self) -> int:
        return len(self.optimizer.skipped) if isinstance(self.optimizer, MasterOptimizer) else 0

    def _updated(self) -> list[nn.Parameter]:
        """What the optimizer updates."""
        return updated_by(self.optimizer, [p for group in self.optimizer.param_groups for p in group["params"]])

    def final(self) -> Tensor:
        """The parameters in the precision in which they are updated, flat."""
        return torch.cat([one.detach().flatten() for one in self._updated()]).to(self.value.device)

    def reply(self, pusher: int) -> Tensor:
        """The message of a reply to the pusher's last push."""
        return self.value.detach()


class TableShard(BucketShard):
    """A part that begins with tables of which only touched rows are pushed, updated and pulled."""

    def __init__(self, context: Context, bucket: int, initial: Tensor, messages: RowMessages, updates_all: bool) -> None:
        """updates_all: whether an update has the pushes of all workers."""
        workers = context.scenario.strategy.workers if updates_all else 1
        self.messages = messages
        self._row_elements = sum(min(one.rows, workers * one.touched) * one.width for one in messages.tables)
        super().__init__(context, bucket, initial)
        self._wanted: dict[int, Sequence[Tensor]] = {}
        self._sums: Sequence[Tensor] = ()

    def _optimizer(self, context: Context) -> torch.optim.Optimizer:
        flat = self.value.detach()
        self._tables = [nn.Parameter(table) for table in self.messages.views(flat)]
        others = nn.Parameter(flat[self.messages.table_elements :])
        return context.optimizer([*self._tables, others], self._row_elements + others.numel())

    @property
    def push_bytes(self) -> float:
        """Bytes of a push."""
        elements = self.messages.push_elements(self.value.numel(), self.value.dtype)
        return float(elements * self.value.element_size())

    @property
    def reply_bytes(self) -> float:
        """Bytes of a reply."""
        return float(self.messages.reply_elements(self.value.numel()) * self.value.element_size())

    def new_push(self) -> Tensor:
        """An empty buffer for a push."""
        return self.value.detach().new_empty(self.messages.push_elements(self.value.numel(), self.value.dtype))

    def request(self, pusher: int, rows: Sequence[Tensor]) -> None:
        """Notes the rows that the pusher needs next, by table."""
        self._wanted[pusher] = rows

    def receive(self, pusher: int, push: Tensor) -> None:
        """Notes the rows that the pusher needs next."""
        self.request(pusher, self.messages.content(push).wanted)

    def add(self, gradient: Tensor, workers: int) -> None:
        """Adds the gradients of a push."""
        push = self.messages.content(gradient)
        *values, others = (part.to(self._dtype, copy=True) for part in (*push.values, push.others))
        rows = (
            torch.sparse_coo_tensor(touched[None], own, table.shape, check_invariants=False)
            for touched, own, table in zip(push.touched, values, self._tables, strict=True)
        )
        parts = [*rows, others]
        self._sums = [a + b for a, b in zip(self._sums, parts, strict=True)] if self._sums else parts
        self._workers += workers

    def update(self) -> bool:
        """Applies the mean of the workers' gradients to the rows that they touch, and to the other parameters; returns whether
        it did."""
        *rows, others = self._sums
        applied = self._step([*(one.coalesce() / self._workers for one in rows), others / self._workers])
        self._sums, self._workers = (), 0
        return applied

    def reply(self, pusher: int) -> Tensor:
        """The message of a reply to the pusher's last push."""
        return self.messages.reply(self.value.detach(), self._wanted[pusher])
