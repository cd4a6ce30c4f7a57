"""PyTorch's methods of process groups as calls of collectives."""

from __future__ import annotations

import re
from typing import Final

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from scaleproof.simulator.captured.groups import COLLECTIVES  # noqa: E402
from scaleproof.validator.capture.communication.c10d_group import METHODS, C10dGroup, CollectiveCall  # noqa: E402

RANKS: Final = 4
_COLLECTIVE: Final = re.compile(r"_?(all_?(reduce|gather|to_?all)|reduce|broadcast|scatter|gather)\w*")


class Group(C10dGroup):
    """Returns the calls."""

    def collective(self, call: CollectiveCall) -> CollectiveCall:
        return call


def test_every_collective_of_pytorch_has_a_method() -> None:
    assert {name for name in dir(dist.ProcessGroup) if _COLLECTIVE.fullmatch(name)} <= METHODS.keys()
    assert {method.collective for method in METHODS.values()} <= COLLECTIVES.keys()


@pytest.mark.parametrize(
    ("method", "written", "read", "whole"),
    [
        ("allreduce", 8, 8, 8), ("broadcast", 8, 8, 8), ("all_gather_single", 32, 8, 32), ("reduce_scatter_single", 8, 32, 32),
        ("scatter", 8, 0, 32), ("gather", 0, 8, 32), ("alltoall_base", 8, 8, 8),
    ],
)  # fmt: skip
def test_calls_have_what_they_write_and_read_and_their_root(method: str, written: int, read: int, whole: int) -> None:
    output, own = torch.zeros(written, dtype=torch.uint8), torch.zeros(read, dtype=torch.uint8)
    options = dist.BroadcastOptions()
    options.rootRank = 3
    own_of = METHODS[method]
    arguments = [output] if own_of.in_place else [[output], [own]]
    call = getattr(Group(0, RANKS), method)(*arguments, *([[2] * 4, [2] * 4] if own_of.split else []), options)
    assert [tensor.numel() for tensor in (*call.written, *call.read)] == [written, read]
    assert call.root == (3 if own_of.rooted else -1)
    assert call.size_bytes(RANKS) == whole
    assert (call.splits is not None) == own_of.split


def test_each_input_of_a_gather_has_the_tensors_of_all_ranks() -> None:
    inputs = [torch.zeros(1), torch.zeros(2)]
    joined = CollectiveCall("all_gather", [torch.zeros(4), torch.zeros(8)], inputs)
    assert [(own.numel(), [target.numel() for target in targets]) for own, targets in joined.gathered()] == [(1, [4]), (2, [8])]
    by_rank = CollectiveCall("all_gather", [[torch.zeros(1), torch.zeros(2)] for _ in range(RANKS)], inputs)
    assert [[target.numel() for target in targets] for _, targets in by_rank.gathered()] == [[1] * RANKS, [2] * RANKS]
