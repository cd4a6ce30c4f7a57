"""Ranks agree on NCCL where each has a GPU of its own, however many each sees."""

from __future__ import annotations

from datetime import timedelta
from threading import Thread

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.launch.backend import agreed, backend_for
from scaleproof.validator.launch.rank_environment import RankEnvironment


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [(["a 0", "a 1"], "nccl"), (["a 0", "b 0"], "nccl"), (["a 0", "a 0"], "staged"), (["a 0", "a 1", "a 0"], "staged"),
     (["", ""], "gloo")],
)  # fmt: skip
def test_nccl_is_for_ranks_with_a_gpu_each(gpus: list[str], backend: str) -> None:
    assert backend_for(gpus) == backend


def test_a_rank_that_sees_no_gpu_is_named() -> None:
    with pytest.raises(RunError, match="rank 1 sees no GPU, but 2 of 3 ranks do; look at its driver"):
        backend_for(["a 0", "", "a 1"])


def test_ranks_learn_of_one_another_from_the_store() -> None:
    store, backends = HashStore(), dict[int, str]()

    def agree(rank: int) -> None:
        place = RankEnvironment(rank, 2, rank, 2)
        backends[rank] = agreed(place, store, torch.device("cpu"), timedelta(seconds=10))

    threads = [Thread(target=agree, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backends == {0: "gloo", 1: "gloo"}
