"""Requests for shared units of work."""

from __future__ import annotations

import gc
import time

import pytest
import torch.distributed as dist

from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.strategy.parameter_server.work_units import UnitGrants, UnitRequests


def refused(servers: list[int]) -> bool:
    """Requests one unit of none, from servers of which the last one listens late, and forgets the request at once."""
    group, rank = dist.new_group(), dist.get_rank()
    if rank == 0:
        granted = UnitRequests(group, servers).take()
        gc.collect()
    else:
        time.sleep(1.0 if rank == servers[-1] else 0.0)
        granted = UnitGrants(group, 0, is_first=rank == servers[0]).grants(0)
    dist.barrier()
    return granted


@pytest.mark.parametrize("servers", [[1], [1, 2]])
def test_all_servers_hear_of_a_refusal_before_the_worker_ends(servers: list[int]) -> None:
    assert not any(run_on_ranks(refused, 1 + len(servers), servers))
