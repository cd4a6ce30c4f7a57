"""Planted faults are found: an order that deadlocks, messages that do not match, a rank that is missing, tensors that NCCL does
not take, and marks on a wrong device."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.futures import Future

from tests.validator.gpus.families import FAMILIES
from tests.validator.gpus.player import Fault, Job, play
from tests.validator.gpus.replay import faults
from tests.validator.verdicts import in_bulk


def one_queue(_: int) -> None:
    """Both directions between a worker and a server share a group."""
    from scaleproof.validator.strategy.parameter_server import links, trainer

    class Shared(links.Links):
        def __init__(self, leaders: Any, servers: Any, own: bool) -> None:
            super().__init__(leaders, servers, own=False)

    trainer.Links = Shared  # type: ignore[attr-defined]


def swapped_sends(rank: int) -> None:
    """The first worker pushes buckets in another order than servers receive them."""
    from scaleproof.validator.strategy.parameter_server.worker import Worker

    push = Worker.push
    if rank == 0:
        replaced: Any = Worker
        replaced.push = lambda worker, bucket: push(worker, len(worker.layout.buckets) - 1 - bucket)


def missing_member(rank: int) -> None:
    """The second worker leaves out the sum of a bucket."""
    from scaleproof.validator.strategy.layout.collectives import Collectives

    begin_sum, numbers = Collectives.begin_sum, count()

    def begun(collectives: Collectives, flat: Tensor) -> Future[Tensor]:
        if next(numbers) != 5:
            return begin_sum(collectives, flat)
        future: Future[Tensor] = Future()
        future.set_result(flat)
        return future

    if rank == 1:
        replaced: Any = Collectives
        replaced.begin_sum = begun


def wrong_device(_: int) -> None:
    """Marks are taken on the current GPU of a thread."""
    from scaleproof.validator.strategy import train

    replaced: Any = train
    clock = replaced.CudaClock
    replaced.CudaClock = lambda new_event, synchronize, _: clock(new_event, synchronize, lambda: None)


def refused(change: Any, _: int) -> None:
    """Sums are of other tensors."""
    from scaleproof.validator.strategy.layout.collectives import Collectives

    begin_sum = Collectives.begin_sum
    replaced: Any = Collectives
    replaced.begin_sum = lambda collectives, flat: begin_sum(collectives, change(flat))


def on_host(flat: Tensor) -> Tensor:
    return flat.cpu()


def boolean(flat: Tensor) -> Tensor:
    return flat.bool()


def strided(flat: Tensor) -> Tensor:
    return torch.cat([flat, flat])[::2]


@pytest.mark.parametrize(
    ("family", "fault", "found"),
    [
        ("ddp", missing_member, "rank 0 makes all_reduce"),
        *in_bulk(
            ("overlapped servers", one_queue, "rank 0 is stuck in receive"),
            ("overlapped servers", swapped_sends, "bytes from rank 0"),
        ),
    ],
)
def test_wrong_orders_are_found(family: str, fault: Fault, found: str, tmp_path: Path) -> None:
    ranks = play(Job(FAMILIES[family].scenario(), fault, patience_s=1.0), tmp_path)

    assert [rank.error for rank in ranks] == [""] * len(ranks)
    assert any(found in sentence for sentence in faults([rank.kernels for rank in ranks]))


@pytest.mark.parametrize(
    ("family", "fault", "error"),
    [
        ("ddp after the backward pass", partial(refused, on_host), "NCCL takes no tensor in the host's memory"),
        *in_bulk(
            ("ddp after the backward pass", wrong_device, "an event of cuda:1 is recorded in a thread whose device is cuda:0"),
            ("ddp after the backward pass", partial(refused, boolean), "NCCL has no type for booleans"),
            ("ddp after the backward pass", partial(refused, strided), "must be contiguous"),
        ),
    ],
)
def test_what_nccl_refuses_is_found(family: str, fault: Fault, error: str, tmp_path: Path) -> None:
    ranks = play(Job(FAMILIES[family].scenario(), fault, staged=True, patience_s=1.0), tmp_path)

    assert any(error in rank.error for rank in ranks)
